"""The processes of the test of sharded k-MIP attention: ``python -m tests.attention.sharded_worker FOLDER``.

It starts groups of 1, 2 and 4 processes, one after the other; each process runs all cases of its group and leaves what
it found in the folder. The test makes the same cases and compares.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from graphgps_kmip.attention import sharded_attention as route
from graphgps_kmip.attention.sharded_attention import sharded_kmip_attention
from graphgps_kmip.search.sharded_search import Shards, topk_over_shards
from tests.attention.sharded_cases import Case, cases
from tests.processes import HANGS


class Counter:
    """Counts the bytes that this rank sends to others; holds the place of ``dist.all_to_all_single``."""

    sent, calls = 0, 0
    original = staticmethod(dist.all_to_all_single)

    def __call__(self, out: Tensor, rows: Tensor, received: list[int], sent: list[int], group: Any = None) -> None:
        others = sum(sent) - sent[dist.get_rank(group)]
        self.calls += 1
        self.sent += others * rows[:1].numel() * rows.element_size() if others else 0
        self.original(out, rows, received, sent, group=group)

    def take(self) -> tuple[int, int]:
        """Bytes and calls since it was asked last."""
        counts, self.sent, self.calls = (self.sent, self.calls), 0, 0
        return counts


def attend(case: Case, rank: int, counter: Counter, group: Any = None) -> dict[str, Any]:
    """Search alone, then attention forward and backward; what this rank got and sent."""
    first = sum(case.sizes[:rank])
    q, k, v, cotangent = (tensor[first : first + case.sizes[rank]] for tensor in case.tensors())
    own = {"num_keys": case.num_keys, "ptr": case.ptr, "backend": case.backend, "requires_grad": case.grad}
    edits = case.on_rank.get(rank, {})
    q, k, v = (edits.get(name, lambda tensor: tensor)(tensor) for name, tensor in (("q", q), ("k", k), ("v", v)))
    own |= {name: value for name, value in edits.items() if name not in "qkv"}
    q, k, v = (tensor.detach().clone().requires_grad_(own["requires_grad"]) for tensor in (q, k, v))
    ptr = None if own["ptr"] is None else torch.tensor(own["ptr"])
    found: dict[str, Any] = {}
    if dist.get_world_size(group) > 1 and not case.on_rank:
        shards = Shards.agree(q, k, v, own["num_keys"], ptr, group, own["backend"])
        counter.take()
        found["index"], found["score"] = topk_over_shards(q, k, shards, own["num_keys"], own["backend"])
        found["search bytes"], found["search calls"] = counter.take()
    torch.manual_seed(rank)
    out = sharded_kmip_attention(
        q, k, v, own["num_keys"], ptr, group=group, backend=own["backend"], dropout=case.dropout
    )
    forward_bytes, found["forward calls"] = counter.take()
    found |= {"out": out.detach(), "forward bytes": forward_bytes - found.get("search bytes", 0)}
    if own["requires_grad"]:
        found["grad"] = torch.autograd.grad(out, (q, k, v), cotangent)
        found["backward bytes"], found["backward calls"] = counter.take()
    return found


def one_process(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    route.SLOTS_AT_ONCE = 7  # so that a few pairs are many parts
    rendezvous = f"file://{folder}/rendezvous-{world}"
    limit = timedelta(seconds=HANGS)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world, timeout=limit)
    dist.all_to_all_single = counter = Counter()
    results: dict[str, Any] = {}
    for name, case in cases(world).items():
        try:
            results[name] = attend(case, rank, counter)
        except ValueError as error:
            results[name] = error
        keep(results, Path(folder) / f"{world}-{rank}.pt")
    if world == 4:
        results |= in_groups(rank, counter)
    results["twice"] = attend(cases(world)["even shards"], rank, counter)
    keep(results, Path(folder) / f"{world}-{rank}.pt")
    dist.destroy_process_group()


def keep(results: dict[str, Any], path: Path) -> None:
    """Save what is there so far, whole: another rank may fail next and this process be ended."""
    torch.save(results, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def in_groups(rank: int, counter: Counter) -> dict[str, Any]:
    """Two groups of two processes work at the same time, each on its own rows; and a group refuses who is not in it."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    pair = cases(2)["graphs over the borders"]
    results: dict[str, Any] = {"in a group of two": attend(pair, rank // 2, counter, groups[rank % 2])}
    try:
        sharded_kmip_attention(*pair.tensors()[:3], 4, group=groups[1 - rank % 2])
    except ValueError as error:
        results["a group of others"] = error
    return results


def main(folder: str) -> int:
    """Run all groups, and return 1 if a process of any failed."""
    status = 0
    for world in (1, 2, 4):
        try:
            # forked, so that seven processes share one import; nothing has started a thread yet
            mp.start_processes(one_process, (world, folder), world, start_method="fork")
        except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
            print(f"group of {world}: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
