"""Checks that this machine has the devices that ``accelerator`` and ``devices`` ask for, before anything starts."""

from __future__ import annotations

import torch

from graphgps_kmip.errors import ConfigError


def check_devices(accelerator: str, devices: int | list[int]) -> None:
    """Refuse devices that this machine does not have.

    Args:
        accelerator: "auto", "cpu", "cuda", "gpu", "mps" or "tpu".
        devices: how many, or which.

    Raises:
        ConfigError: there is no such device, or not so many.
    """
    here = f"{accelerator}:{devices[0]}" if isinstance(devices, list) else accelerator
    if accelerator in ("cpu", "auto") and isinstance(devices, list):
        raise ConfigError(f"accelerator {here}: only cuda devices have numbers: write accelerator {accelerator}")
    if accelerator == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("accelerator mps: this machine has no such device: write accelerator auto, or cpu")
    if accelerator == "tpu":
        raise ConfigError("accelerator tpu: this package has not been made for it: write accelerator auto, cuda or cpu")
    if accelerator not in ("cuda", "gpu"):
        return
    found = torch.cuda.device_count()
    if not found:
        raise ConfigError(
            f"accelerator {here}: torch finds no CUDA device on this machine: write accelerator auto, or cpu"
        )
    if isinstance(devices, list) and devices[0] >= found:
        raise ConfigError(f"accelerator {here}: this machine has {found} CUDA devices, numbered from 0: choose one")
    if isinstance(devices, int) and devices > found:
        raise ConfigError(f"devices {devices}: this machine has {found} CUDA devices: write {found} or fewer")
