"""What tests start and wait for: processes, with one limit for all that only ends what hangs.

`preloaded` forks a process that has imported torch, which takes seconds, and nothing of this project off a server;
`python` starts a new one, where the start itself is tested.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HANGS = 3600.0  # seconds: twenty times the longest wait on an idle machine, for others may use the same cores

FORKING = """
import json, os, sys
folder, preload, *codes = sys.argv[1:]
sys.argv[1:] = []
exec(preload, {"__name__": "__main__"})
statuses = []
for number, code in enumerate(codes):
    child = os.fork()
    if not child:
        for stream in (1, 2):
            os.dup2(os.open(f"{folder}/{number}.{stream}", os.O_CREAT | os.O_WRONLY), stream)
        exec(code, {"__name__": "__main__"})
        sys.exit()
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(statuses))
"""

# What takes seconds to import, and no module that a test looks for in sys.modules (ours, GraphGym, yacs, ogb).
LIBRARIES = "torch, torch_geometric.datasets, lightning_fabric, torchmetrics, sklearn.model_selection, pandas"
# Reads a line with requests {argv, cwd, env, files}, and answers with the ids of their processes, which run side by
# side, and with their exit statuses. A child leaves the loop and goes to the end of the module, as any process does.
SERVER = """
import gc, json, os, runpy, sys, tempfile
exec("import " + sys.argv[1])
gc.freeze()  # so that collections in the children leave these objects, and the pages they share, alone
places = [place for place in sys.path[1:] if place not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
child = True
while child and (line := sys.stdin.readline()):
    children = []
    for request in json.loads(line):
        child = os.fork()
        if not child:
            break
        children.append(child)
    else:
        print(json.dumps(children), flush=True)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in children]), flush=True)
if child:
    os._exit(0)
os.setsid()
for stream, file in enumerate(request["files"]):
    opened = os.open(file, os.O_CREAT | (os.O_WRONLY if stream else os.O_RDONLY), 0o600)
    os.dup2(opened, stream)
    os.close(opened)
sys.stdin = open(0)
os.chdir(request["cwd"])
os.environ.clear()
os.environ.update(request["env"])
tempfile.tempdir = None  # a library has asked for it, and TMPDIR may be another one now
kind, *rest = request["argv"]
first = os.path.dirname(os.path.abspath(kind)) if kind.endswith(".py") else "" if kind == "-c" else os.getcwd()
sys.path[:] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *places]
if kind == "-c":
    sys.argv[:] = [kind, *rest[1:]]
    for name in [name for name in globals() if not name.startswith("__") and name != "rest"]:
        del globals()[name]
    exec(rest.pop(0))
elif kind == "-m":
    sys.argv[:] = rest
    runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
else:
    sys.argv[:] = [kind, *rest]
    runpy.run_path(kind, run_name="__main__")
"""


def run(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in the folder of the project; ``options`` as of `subprocess.run`."""
    defaults: dict[str, Any] = {"cwd": ROOT, "capture_output": True, "text": True, "check": False, "timeout": HANGS}
    return subprocess.run(command, **defaults | options)


def python(*argv: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, *argv], **options)


@functools.cache
def _server() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SERVER, LIBRARIES]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}  # as select sees them
    server = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes)
    atexit.register(server.communicate)  # closes its standard input, at whose end it exits
    return server


def _answer(server: subprocess.Popen[bytes]) -> list[int] | None:
    assert server.stdout is not None
    if not select.select([server.stdout], [], [], HANGS)[0]:
        return None
    line = server.stdout.readline()
    assert line, "the server of preloaded processes has died"
    return json.loads(line)


def _serve(
    argv: Sequence[str | Path], cwd: str | Path, environments: Sequence[Mapping[str, str]]
) -> list[subprocess.CompletedProcess[str]]:
    if argv[0] not in ("-c", "-m") and not str(argv[0]).endswith(".py"):
        raise ValueError(f"preloaded({argv[0]!r}): must start with -c, -m or a script: use python for options")
    server = _server()
    with tempfile.TemporaryDirectory() as folder:
        files = [
            [os.devnull, f"{folder}/{number}.out", f"{folder}/{number}.err"] for number in range(len(environments))
        ]
        shared = {"argv": [str(word) for word in argv], "cwd": str(cwd)}
        each = [shared | {"env": dict(env), "files": three} for env, three in zip(environments, files, strict=True)]
        assert server.stdin is not None
        server.stdin.write(json.dumps(each).encode() + b"\n")
        children = _answer(server)
        assert children is not None, "the server of preloaded processes does not answer"
        statuses = _answer(server)
        if statuses is None:
            for child in children:
                os.killpg(child, signal.SIGKILL)
            _answer(server)
            raise subprocess.TimeoutExpired(list(argv), HANGS)
        texts = [[Path(file).read_text() for file in three[1:]] for three in files]
    ended = zip(statuses, texts, strict=True)
    return [subprocess.CompletedProcess(list(argv), status, *both) for status, both in ended]


def preloaded(
    *argv: str | Path, cwd: str | Path = ROOT, env: Mapping[str, str] | None = None, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a script, ``-m module`` or ``-c code`` in a process that has imported libraries, but nothing of this project.

    Variables that a library reads as it loads (``OMP_NUM_THREADS``, ``TRITON_INTERPRET``) have no effect here.
    """
    (done,) = _serve(argv, cwd, [env or os.environ])
    if check:
        done.check_returncode()
    return done


def preloaded_at_once(count: int, *argv: str | Path) -> list[subprocess.CompletedProcess[str]]:
    return _serve(argv, ROOT, [os.environ] * count)


def preloaded_ranks(world: int, *argv: str | Path) -> list[subprocess.CompletedProcess[str]]:
    """Run each rank of a process group, preloaded, with the environment that torchrun sets."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared |= {"TORCHELASTIC_RUN_ID": "test", "PYTHONPATH": ROOT}
    ranks = [shared | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(world)]
    return _serve(argv, ROOT, [os.environ | {key: str(value) for key, value in rank.items()} for rank in ranks])


def forked(preload: str, codes: Sequence[str]) -> list[subprocess.CompletedProcess[str]]:
    """Run each code in a process of its own, all forked from one that has run `preload`, which should only import."""
    with tempfile.TemporaryDirectory() as folder:
        statuses = preloaded("-c", FORKING, folder, preload, *codes, check=True).stdout.splitlines()[-1]
        files = [[Path(folder, f"{number}.{stream}") for stream in (1, 2)] for number in range(len(codes))]
        ended = zip(codes, json.loads(statuses), files, strict=True)
        return [
            subprocess.CompletedProcess(code, status, *(file.read_text() for file in both))
            for code, status, both in ended
        ]


def wait_for(true: Callable[[], object]) -> None:
    until = time.monotonic() + HANGS
    while not true():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)
