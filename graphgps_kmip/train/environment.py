"""What a run ran on: code version, packages, hardware."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

import graphgps_kmip

PACKAGES = ("torch", "torch_geometric", "pykeops", "numpy")


def code_version() -> str:
    """Return git's description of the commit where the package lies in its own repository, else its version."""
    folder = Path(graphgps_kmip.__file__).parent
    # Asked first: an installed package may lie inside somebody else's repository.
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
