"""Environment of a run, for records: code version, package versions, hardware, peak memory."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import torch

import graphgps_kmip

PACKAGES = ("torch", "torch_geometric", "pykeops", "numpy")


def code_version() -> str:
    """Return git's description of the commit where the package is in its own repository, else its version."""
    folder = Path(graphgps_kmip.__file__).parent
    # Asked first: an installed package may be inside somebody else's repository.
    tracked = _git(folder, "ls-files", "--error-unmatch", "__init__.py")
    described = _git(folder, "describe", "--always", "--dirty", "--tags") if tracked else ""
    return described or graphgps_kmip.__version__


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that can change a result; those not installed are left out."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    versions["torch"] = torch.__version__  # with its build: the metadata of the public CUDA wheels leaves that out
    return versions


def hardware(device: torch.device) -> dict[str, str | int]:
    """Return the CPU's model, the cores this process may use, and the GPU if `device` is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts = {"cpu": _cpu_model(), "cores": cores, "device": str(device)}
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def peak_memory() -> dict[str, int]:
    """Return the peak resident memory of this process, and of its CUDA device if it used one, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts bytes on macOS, kibibytes on Linux
    peak = {"ram": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    if torch.cuda.is_initialized():
        peak["cuda"] = torch.cuda.max_memory_allocated()
    return peak


def restart_peak_memory() -> None:
    """Let `peak_memory` count from what is in use now on: what ran before in this process counts no longer.

    On the CPU only Linux can do so; elsewhere its peak stays that of the whole process.
    """
    with contextlib.suppress(OSError):  # no Linux, or a container that does not allow it
        Path("/proc/self/clear_refs").write_text("5")
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def _git(folder: Path, *arguments: str) -> str:
    try:
        answer = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
