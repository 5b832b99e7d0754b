"""Run by test_processes.py, once in each of two processes."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import nn
from torch_geometric.nn import BatchNorm

from graphgps_kmip.train.distributed import make_fabric, on_rank_zero, share_batch_norms
from tests.train.killed import at_batch
from tests.train.toy import TASK, ToyLoader, make_loaders, run, weighted_cross_entropy

OPTIONS = {
    "dropout": 0.0,
    "max_epoch": 3,
    "ckpt_clean": False,
    "optimizer": partial(torch.optim.SGD, momentum=0.9),  # unlike Adam it shows a gradient of the wrong size
    "lr": 0.5,
    "batch_accumulation": 2,
    "task": replace(TASK, loss=weighted_cross_entropy),
}


def uneven_loaders(rank: int = 0, world: int = 1) -> list[ToyLoader]:
    """Train in batches of 11 and 1, test of 4 and 1: the batches of 1 leave the second process with a filler."""
    return [make_loaders(rank, world, 11)[0], *make_loaders(rank, world)[1:]]


def compare(folder: Path, fabric: Fabric) -> None:
    rank, world = fabric.global_rank, fabric.world_size
    run(folder / "two", loaders=uneven_loaders(rank, world), fabric=fabric, **OPTIONS)
    run(folder / "resumed", loaders=uneven_loaders(rank, world), fabric=fabric, **OPTIONS)
    options = {**OPTIONS, "auto_resume": True, "epoch_resume": 0}
    run(folder / "resumed", loaders=uneven_loaders(rank, world), fabric=fabric, **options)
    torch.save(normalise(rank, world), folder / f"norm{rank}.pt")
    try:
        on_rank_zero(fabric, fail)
    except ValueError as error:
        print(f"in all processes: {error}\n", end="", flush=True)
    try:
        run(folder / "unsharded", loaders=[list(make_loaders()[0])], fabric=fabric)
    except ValueError as error:
        print(f"{error}\n", end="", flush=True)


def normalise(rank: int = 0, world: int = 1) -> dict[str, torch.Tensor]:
    """Normalise rows of which the second process has all, then none, then the only one."""
    torch.manual_seed(0)
    rows, cotangent = torch.randn(2, 7, 3, dtype=torch.float64)
    norm = share_batch_norms(nn.Sequential(BatchNorm(3, allow_single_element=True))).double()
    results = {}
    for case, (here, there) in {"both": (5, 2), "empty": (7, 0), "single": (0, 1)}.items():
        x = rows[: here + there].clone().requires_grad_()
        rows_here = slice(None) if world == 1 else slice(here) if rank == 0 else slice(here, here + there)
        out = norm(x[rows_here])
        norm.zero_grad()
        (out * cotangent[: here + there][rows_here]).sum().backward()
        results |= {f"{case} out": out.detach(), f"{case} gradient": x.grad[rows_here]}
        # A parameter's gradient is the sum over processes, which DistributedDataParallel takes.
        results |= {f"{case} {name}": p.grad.clone() for name, p in norm.named_parameters()}
        results |= {f"{case} {name}": buffer.clone() for name, buffer in norm.named_buffers()}
    return results


def fail() -> None:
    raise ValueError("no room")


def stop(folder: Path, fabric: Fabric) -> None:
    rank = fabric.global_rank
    # The first process hears the signal in epoch 2, the second three batches earlier: it must go on until then.
    hook = at_batch(16 - 3 * rank, lambda: os.kill(os.getpid(), signal.SIGTERM))
    run(folder / "stopped", hook, loaders=make_loaders(rank, 2), fabric=fabric, ckpt_period=100)


if __name__ == "__main__":
    torch.set_num_threads(1)
    launched = make_fabric("cpu")
    compare(Path(sys.argv[1]), launched)
    stop(Path(sys.argv[1]), launched)
