"""Environment: our files and commands, code and package versions, hardware, peak memory, dates and durations."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import platform
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import graphgps_kmip

if TYPE_CHECKING:
    import torch

PACKAGE = Path(__file__).resolve().parents[1]
SHIPPED = PACKAGE / "shipped"  # made by setup.py in a wheel; in a checkout there is none
LIBRARIES = ("torch", "torch_geometric", "pykeops", "numpy")  # which can change a result
UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))  # size, unit, size and unit of the rest


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Import without the collector of garbage: what is imported stays, and to search it takes a third of the time."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if is_enabled:
            gc.enable()


def own_files() -> Path:
    """Return the folder that holds our ``configs/`` and ``run/``: the checkout's root, or that inside of a wheel."""
    return SHIPPED if SHIPPED.is_dir() else PACKAGE.parent


def installed() -> bool:
    """Return whether the package runs from a wheel, without a checkout around it."""
    return SHIPPED.is_dir()


def train_command() -> str:
    """Return how a user starts a training: for messages."""
    return "graphgps-kmip" if installed() else f"python {_locate_script('main.py')}"


def reproduce_command() -> str:
    """Return how a user starts an experiment: for messages."""
    return "graphgps-kmip-reproduce" if installed() else f"python {_locate_script('run/reproduce.py')}"


def _locate_script(name: str) -> str:
    return name if Path.cwd() == own_files() else shlex.quote(str(own_files() / name))


def find_config(file: Path, root: Path = Path()) -> Path:
    """Return where a config file is: below ``root``, or else, for ``configs/...``, our own file of that name (logged).

    Where only our own files have its folder, a missing file is one of theirs: its error can then name near misses.
    """
    local, shipped = root / file, own_files() / file
    if local.exists() or file.parts[:1] != ("configs",):
        return local
    if shipped.is_file():
        logging.info("%s: no such file here, the package's own is read: %s", local, shipped)
        return shipped
    return shipped if shipped.parent.is_dir() and not local.parent.is_dir() else local


def code_version() -> str:
    """Return git's description of the commit where the package is in its own repository, else its version."""
    # Asked first: an installed package may be inside somebody else's repository.
    tracked = _call_git("ls-files", "--error-unmatch", "__init__.py")
    description = _call_git("describe", "--always", "--dirty", "--tags") if tracked else ""
    return description or graphgps_kmip.__version__


def _call_git(*arguments: str) -> str:
    try:
        answer = subprocess.run(["git", *arguments], cwd=PACKAGE, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that can change a result; those not installed are left out."""
    import torch

    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    versions["torch"] = torch.__version__  # with its build: the metadata of the public CUDA wheels leaves that out
    return versions


def hardware(device: torch.device) -> dict[str, str | int]:
    """Return the CPU's model, the cores this process may use, and the GPU if `device` is one."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts = {"cpu": _name_cpu(), "cores": cores, "device": str(device)}
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def _name_cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def peak_memory() -> dict[str, int]:
    """Return the peak resident memory of this process, and of its CUDA device if it used one, in bytes."""
    import torch

    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts bytes on macOS, kibibytes on Linux
    peak = {"ram": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    if torch.cuda.is_initialized():
        peak["cuda"] = torch.cuda.max_memory_allocated()
    return peak


def restart_peak_memory() -> None:
    """Let `peak_memory` count from what is in use now on; on the CPU only Linux can do so."""
    import torch

    with contextlib.suppress(OSError):  # no Linux, or a container that does not allow it
        Path("/proc/self/clear_refs").write_text("5")
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def now() -> str:
    """Return the date and time with the zone of this machine, as records hold them: ``2026-01-31T12:00:00+01:00``."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: ``0.25 s``, ``45 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    whole = round(seconds)
    for size, unit, part_size, part in UNITS:
        if whole >= size:
            rest = whole % size // part_size
            return f"{whole // size} {unit}{f' {rest} {part}' if rest else ''}"
    return f"{whole} s" if whole >= 1 or seconds == 0 else f"{seconds:.2g} s"


def axis_duration(milliseconds: float, _: object = None) -> str:
    """Return a duration in one unit, with three digits; fits matplotlib's `FuncFormatter`."""
    if milliseconds >= 1000:
        seconds = milliseconds / 1000
        return f"{seconds:,.0f} s" if seconds >= 1000 else f"{seconds:.3g} s"
    return f"{milliseconds:.3g} ms" if milliseconds >= 0.1 or milliseconds == 0 else f"{1000 * milliseconds:.3g} µs"
