"""Whether Triton kernels can run: installed, on a GPU or interpreted, and equal to plain torch at their first use."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable
from functools import cache

import torch

logger = logging.getLogger(__name__)


def triton_can_run(device: torch.device, check: Callable[[torch.device], None]) -> bool:
    """Whether Triton kernels run on a device: on a GPU where ``check(device)`` raises nothing, or interpreted."""
    if not is_installed():
        return False
    return is_interpreting() or (device.type == "cuda" and failure(check, device) is None)


triton_can_run._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as in ops/native/compile_kernels.py


@cache
def is_installed() -> bool:
    """Whether triton is there."""
    return importlib.util.find_spec("triton") is not None


def is_interpreting() -> bool:
    """Whether kernels run in Triton's interpreter, on any device and very slowly: ``TRITON_INTERPRET=1``."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def failure(check: Callable[[torch.device], None], device: torch.device) -> str | None:
    """Run a check of kernels on a device, outside of any autocast; log and return the failure, None if it passes."""
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
            check(device)
    except Exception as error:  # compilers and drivers raise anything
        reason = f"its self-check failed on {torch.cuda.get_device_name(device)}: {type(error).__name__}: {error}"
        reason, family = reason.splitlines()[0], check.__module__.rpartition(".")[2]
        logger.warning("Triton kernels of %s are not used, plain torch is: %s", family, reason)
        return reason
    return None


def power_above(number: int) -> int:
    """Return the smallest power of two that is at least so large, 1 or more."""
    return 1 << max(0, number - 1).bit_length()
