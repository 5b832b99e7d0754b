"""A project of empty packages, a fake Python and a PATH without any other, to run the shell scripts in."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import forkserver
from pathlib import Path

import pytest
from run.bench import bench_records
from run.bench.harness import PROCESSES

from tests.processes import HANGS

ROOT = Path(__file__).parents[2]
COPIED = ("run/setup_env.sh", "run/demo.sh", "run/test.sh", "constraints.txt", "setup.py", "pyproject.toml")
TOOLS = "bash cat cksum cp cut dirname env grep head mkdir mv readlink rm sed sleep tail tee uname".split()

# Says what the scripts ask of a Python, writes down its arguments as pip, and runs $FAKE_PIP in its place.
FAKE_PYTHON = f"""#!/usr/bin/env bash
case "$*" in
  *version_info*) echo "${{FAKE_VERSION:-3.11}}" ;;
  *sys.version*) echo "3.11.0 (fake)" ;;
  *"import venv"*) exit "${{FAKE_VENV:-0}}" ;;
  *fcntl*) exec "{sys.executable}" "$@" ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip "*) echo "$*" >>"$FAKE_CALLS"; eval "${{FAKE_PIP:-}}" ;;
  *) echo "ran $* in $PWD" ;;
esac
"""


@pytest.fixture(scope="session", autouse=True)
def _benchmarks_share_what_takes_long() -> Iterator[None]:
    """Let the server of the first benchmark import all: while this process lives, it serves the others too."""
    files = (ROOT / "run/bench").glob("*.py")
    modules = [f"run.bench.{file.stem}" for file in files if "\ndef make(" in file.read_text()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PROCESSES, "set_forkserver_preload", lambda _: forkserver.set_forkserver_preload(modules))
        # The rates of this machine take over a second to measure, and no test compares two measurements of them.
        patch.setattr(bench_records, "machine_facts", functools.cache(bench_records.machine_facts))
        yield


@dataclass
class Project:
    """A copy of the scripts in `root`, run with a PATH that holds `bin` alone."""

    root: Path
    bin: Path
    env: dict[str, str] = field(default_factory=dict)

    def start(self, script: str | Path, *args: str, cwd: Path | None = None, **env: str) -> subprocess.Popen:
        environment = {"PATH": str(self.bin), "FAKE_CALLS": str(self.root / "calls"), **env}
        return subprocess.Popen(
            ["bash", str(self.root / script), *args],
            cwd=cwd or self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str | Path, *args: str, cwd: Path | None = None, **env: str) -> tuple[int, str, str]:
        process = self.start(script, *args, cwd=cwd, **env)
        out, err = process.communicate(timeout=HANGS)
        return process.returncode, out, err

    @property
    def calls(self) -> list[str]:
        """What pip was asked for so far, one line a call."""
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def fake(self, name: str, text: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A fresh project folder, with spaces in its name, and a Python 3.11 that installs nothing."""
    root, programs = tmp_path / "my project", tmp_path / "bin"
    for name in COPIED:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    (root / "graphgps_kmip").mkdir()
    (root / "graphgps_kmip/__init__.py").write_text('__version__ = "0.1.0"\n')
    programs.mkdir()
    for tool in TOOLS:
        os.symlink(shutil.which(tool), programs / tool)
    made = Project(root, programs)
    made.fake("python3.11", FAKE_PYTHON)
    return made
