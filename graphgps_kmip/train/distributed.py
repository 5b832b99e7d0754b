"""Multi-process training (DDP): one global batch for each step, and collectives for losses, scores and objects.

Rank r of W trains on rows r, r + W, ... of each global batch; if there are none, on a graph with `filler = True`, which
counts in the statistics of batch norms only. Rank r runs backward on total_r * W / sum_r weight_r of its task; DDP
averages over W: the gradient is that of one process. Rank 0 writes all files, and all ranks must see the run folder.

torchrun keeps one key-value store for all its starts (`--max-restarts`), and a restart would read old addresses in it
(pytorch/pytorch issues 135712 and 167288): each start has its keys, by a number that the first process sends to others.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.nn import BatchNorm

from graphgps_kmip.errors import RunError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Result = TypeVar("Result")
STARTS = "graphgps_kmip/starts"  # of the keys in torchrun's store, which nothing else uses
PAUSE = 0.05  # seconds between two looks at the store
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
NEVER = -1
KEPT_BYTES = 256 * 2**20  # larger blocks are mapped and given back, so that holes in the heap are small next to them
OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES", "LD_PRELOAD")


def make_fabric(accelerator: str = "auto", devices: int | list[int] = 1, precision: str = "32-true") -> Fabric:
    """Return a launched Fabric: one process, one for each device, or those that torchrun started.

    Args:
        accelerator: "auto", "cpu" or "cuda".
        devices: how many on this machine, or which; under torchrun its own number counts instead.
        precision: "32-true", "bf16-mixed" or "64-true".
    """
    from lightning_fabric import Fabric  # takes a second or two to import
    from lightning_fabric.plugins import DoublePrecision

    class Float64(DoublePrecision):
        """Double precision that leaves outputs in float64; Fabric's casts them to float32, before the loss."""

        def convert_output(self, data: Any) -> Any:
            return data

    nodes = 1
    if dist.is_torchelastic_launched():
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    processes = nodes * (devices if isinstance(devices, int) else len(devices))
    # The edge parameters of the last GatedGCN layer get no gradient; plain DDP would refuse that.
    strategy = "ddp_find_unused_parameters_true" if processes > 1 else "auto"
    form = {"plugins": [Float64()]} if precision == "64-true" else {"precision": precision}
    fabric = Fabric(accelerator=accelerator, devices=devices, num_nodes=nodes, strategy=strategy, **form)
    if processes > 1 and dist.is_torchelastic_launched():
        start_process_group(fabric.device)  # Fabric leaves a group that is there as it is
    fabric.launch()
    if fabric.device.type == "cpu":
        keep_freed_memory()
    return fabric


def start_process_group(device: torch.device) -> None:
    """Start the default process group of the processes of torchrun: nccl for CUDA devices, gloo for the CPU."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store, *_ = next(dist.rendezvous("env://", rank, world))
    store = dist.PrefixStore(f"{STARTS}/{number_of_start(store, rank, world)}", store)
    backend = {"backend": "nccl", "device_id": device} if device.type == "cuda" else {"backend": "gloo"}
    dist.init_process_group(**backend, store=store, rank=rank, world_size=world)


def number_of_start(store: dist.Store, rank: int, world: int) -> str:
    """Return the number of this start, the same in all its processes and in no other start with this store.

    Each further process leaves a new word and waits for the answer to it; the first process answers until all have
    theirs. `store` is that of all starts.
    """
    if rank:
        word = uuid4().hex
        store.set(f"{STARTS}/word of {rank}", word)
        number = store.get(f"{STARTS}/answer to {word}").decode()
        store.add(f"{STARTS}/{number}/answered", 1)
        return number
    number = str(store.add(f"{STARTS}/count", 1))
    end = time.monotonic() + store.timeout.total_seconds()
    answered: set[str] = set()
    while store.add(f"{STARTS}/{number}/answered", 0) < world - 1:
        keys = [key for key in (f"{STARTS}/word of {other}" for other in range(1, world)) if store.check([key])]
        for word in {store.get(key).decode() for key in keys} - answered:
            store.set(f"{STARTS}/answer to {word}", number)
            answered.add(word)
        if time.monotonic() > end:
            raise dist.DistError(f"start {number} of this run has not all of its {world} processes")
        time.sleep(PAUSE)
    return number


def keep_freed_memory() -> bool:
    """Let glibc's malloc keep what this process frees, in blocks of up to `KEPT_BYTES`, and return whether it does.

    Large tensors are otherwise mapped and zeroed anew, a quarter of an epoch of GatedGCN on a CPU. Not without glibc,
    nor where a user has set malloc's environment variables or preloads another malloc.
    """
    if any(os.environ.get(name) for name in OWN_SETTINGS):
        return False
    with contextlib.suppress(OSError, AttributeError, TypeError):  # musl, macOS, Windows
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 (raises where mallopt is another library's)
        return bool(libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES) and libc.mallopt(M_TRIM_THRESHOLD, NEVER))
    return False


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
    """Return the rows of all processes, one after the other: `(n_r, ...) -> (sum of n_r, ...)`, on the CPU."""
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


class _Total(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:  # noqa: ARG004
        value = value.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(value)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004
        return _Total.apply(grad)


class SharedBatchNorm(nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` whose statistics in training are those of the rows of all processes, on any device.

    Every process must call it, also with no row; a single row in all is normalised by the running statistics.

    Shapes: x (n, C) -> (n, C), n differing between processes.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise; biased variance, and the unbiased one into the running statistics, as torch does."""
        if not self.training:
            return super().forward(x)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        count = wide.new_tensor(float(x.size(0)))
        count, summed = _Total.apply(torch.cat([count[None], wide.sum(dim=0)])).split([1, x.size(1)])
        mean = summed / count.clamp(min=1)
        variance = _Total.apply((wide - mean).square().sum(dim=0)) / count.clamp(min=1)
        if x.size(0) <= 1 and count <= 1:  # in this order: the second makes the host wait for a GPU
            return functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        with torch.no_grad():
            self.num_batches_tracked += 1
            momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean), momentum)
            self.running_var.lerp_((variance * count / (count - 1)).to(self.running_var), momentum)
        scale = (variance + self.eps).rsqrt() * self.weight
        return ((wide - mean) * scale + self.bias).to(x.dtype)


def share_batch_norms(model: nn.Module) -> nn.Module:
    """Replace every batch norm of a model by one over all processes; parameters and buffers stay the same objects."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return model
    for module in list(model.modules()):
        if isinstance(module, BatchNorm):  # one row here may be one of many: only the norm inside counts them all
            module.allow_single_element = False
        for name, child in module.named_children():
            if isinstance(child, _BatchNorm):
                setattr(module, name, _share_statistics(child))
    return _share_statistics(model) if isinstance(model, _BatchNorm) else model


def _share_statistics(norm: _BatchNorm) -> SharedBatchNorm:
    shared = SharedBatchNorm(norm.num_features, norm.eps, norm.momentum)
    shared.weight, shared.bias, shared.training = norm.weight, norm.bias, norm.training
    for name, buffer in norm.named_buffers():
        shared.register_buffer(name, buffer)
    return shared
