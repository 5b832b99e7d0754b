"""Multi-process training (DDP): one global batch for each step, and collectives for losses, scores and objects.

Rank r of W trains on rows r, r + W, r + 2W, ... of each global batch; a rank whose share is empty gets one graph in a
batch with `filler = True`, which runs forward and backward so that the collectives match, but none of its rows counts
(except in the statistics of batch norms, which are those of all processes: `batch_norm`). With (total_r, weight_r) from
the task, rank r runs backward on total_r * W / sum_r weight_r; DDP averages over W, so the gradient is that of
sum(total) / sum(weight), as of one process on the global batch. Losses, scores and labels are gathered from the real
rows only: no sample counts twice. Rank 0 writes all files, and all ranks must see the run folder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from torch import Tensor

from graphgps_kmip.errors import RunError

Result = TypeVar("Result")
REPORTED = "graphgps_kmip: the first process has printed its error"
PATIENCE = 10.0  # seconds; a mistake that all processes make, they find within less


def make_fabric(accelerator: str = "auto", devices: int | list[int] = 1, precision: str = "32-true") -> Fabric:
    """Return a launched Fabric: one process, one for each device, or those that torchrun started.

    Args:
        accelerator: "auto", "cpu" or "cuda".
        devices: how many on this machine, or which; under torchrun its own number counts instead.
        precision: "32-true", "bf16-mixed" or "64-true".
    """
    nodes = 1
    if dist.is_torchelastic_launched():
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    processes = nodes * (devices if isinstance(devices, int) else len(devices))
    # The edge parameters of the last GatedGCN layer get no gradient; plain DDP would refuse that.
    strategy = "ddp_find_unused_parameters_true" if processes > 1 else "auto"
    fabric = Fabric(accelerator=accelerator, devices=devices, num_nodes=nodes, strategy=strategy, precision=precision)
    fabric.launch()
    return fabric


def world_size() -> int:
    """Return the number of processes of this run."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def all_reduce(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor over the processes; no gradient flows, the argument stays as it is."""
    if world_size() == 1:
        return tensor
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


def gather_rows(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the rows of all processes, which may have different numbers of them, one process after the other.

    Args:
        tensor: this process's rows, on the CPU.
        device: where collectives run.

    Shapes:
        `(n_r, ...) -> (sum of n_r, ...)`, on the CPU.
    """
    if world_size() == 1:
        return tensor
    size = torch.tensor([len(tensor)], device=device)
    sizes = [torch.empty_like(size) for _ in range(world_size())]
    dist.all_gather(sizes, size)
    longest = int(torch.cat(sizes).max())
    padded = torch.zeros(longest, *tensor.shape[1:], dtype=tensor.dtype, device=device)
    padded[: len(tensor)] = tensor.to(device)
    shares = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(shares, padded)
    return torch.cat([share[: int(n)].cpu() for share, n in zip(shares, sizes, strict=True)])


def gather_objects(value: Result) -> list[Result]:
    """Return the `value` of every process, by rank."""
    if world_size() == 1:
        return [value]
    values: list = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def on_rank_zero(fabric: Fabric, function: Callable[[], Result]) -> Result:
    """Call `function` in the first process only and return its result, or raise its error, in all of them."""
    result, error = None, None
    if fabric.is_global_zero:
        try:
            result = function()
        except (RunError, ValueError, OSError) as caught:
            error = caught
    if fabric.world_size > 1:
        result, error = fabric.broadcast((result, error))
    if error is not None:
        raise error
    return result


def tells_error(patience: float = PATIENCE) -> bool:
    """Return whether this process should print its error: one line instead of one for each process.

    The first process always does, and lets the others know; a further one does if the first has found none within
    some seconds.

    Args:
        patience (float, optional): seconds to wait. (default: ``10.0``)
    """
    if not dist.is_available() or not dist.is_initialized():
        return True
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        store.set(REPORTED, "1")
        return True
    end = time.monotonic() + patience
    try:
        while time.monotonic() < end:
            if store.check([REPORTED]):
                return False
            time.sleep(0.05)
    except RuntimeError:  # the first process, which holds the store, has ended
        return False
    return True
