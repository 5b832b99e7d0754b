"""Process group of a run under torchrun: each start of its processes has keys of its own in torchrun's store.

torchrun keeps one key-value store for all starts (`--max-restarts`), and the processes of a restart would read the
addresses that those before it left there: with torch 2.13, gloo and nccl then connect to ports that nobody listens to
(pytorch/pytorch issues 135712 and 167288). torchrun's own count of restarts is that of one machine and may differ from
another's, so the first process numbers the starts and sends the number to all others.
"""

from __future__ import annotations

import os
import time
from uuid import uuid4

import torch
import torch.distributed as dist

ROOT = "graphgps_kmip/starts"  # of the keys, which nothing else uses
PAUSE = 0.05  # seconds between two looks at the store


def start_process_group(device: torch.device) -> None:
    """Start the default process group of the processes of torchrun: nccl for CUDA devices, gloo for the CPU.

    Args:
        device (torch.device): of this process.

    Raises:
        torch.distributed.DistError: a process does not come within the time limit of process groups, 30 minutes.
    """
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store, *_ = next(dist.rendezvous("env://", rank, world))
    own = dist.PrefixStore(f"{ROOT}/{number_of_start(store, rank, world)}", store)
    cuda = device.type == "cuda"
    given = {"backend": "nccl", "device_id": device} if cuda else {"backend": "gloo"}
    dist.init_process_group(**given, store=own, rank=rank, world_size=world)


def number_of_start(store: dist.Store, rank: int, world: int) -> str:
    """Return the number of this start, the same in all its processes and in no other start with this store.

    Each further process leaves a word that is new, and waits for the answer to it; the first process answers until all
    have theirs. It may answer a word that an earlier start left, too: nobody reads that.

    Args:
        store (Store): of all starts.
        rank (int): of this process.
        world (int): number of processes.
    """
    if rank:
        word = uuid4().hex
        store.set(f"{ROOT}/word of {rank}", word)
        number = store.get(f"{ROOT}/answer to {word}").decode()
        store.add(f"{ROOT}/{number}/answered", 1)
        return number
    number = str(store.add(f"{ROOT}/count", 1))
    end = time.monotonic() + store.timeout.total_seconds()
    answered: set[str] = set()
    while store.add(f"{ROOT}/{number}/answered", 0) < world - 1:
        keys = [key for key in (f"{ROOT}/word of {other}" for other in range(1, world)) if store.check([key])]
        for word in {store.get(key).decode() for key in keys} - answered:
            store.set(f"{ROOT}/answer to {word}", number)
            answered.add(word)
        if time.monotonic() > end:
            raise dist.DistError(f"start {number} of this run has not all of its {world} processes")
        time.sleep(PAUSE)
    return number
