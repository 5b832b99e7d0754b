"""What the GPU search does on given data, counted on the CPU: groups of keys that are screened, visited, and rounds.

The kernel's control flow alone (`search/triton_search_kernels.py`), without margins, for one tile of queries.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from graphgps_kmip.search.triton_tilings import Tiling


class Counts(NamedTuple):
    """How often each part of the kernel runs for a tile.

    Args:
        screened (int): groups of ``step`` blocks whose low-precision scores are computed.
        visited (int): of these, groups with a candidate: each of their blocks is looked at again.
        entered (int): visited blocks with a candidate.
        whole (int): visited blocks with more candidates for one query than are kept, which are scored in full.
        rounds (int): insertions, one for each query at most, of all visited blocks.
    """

    screened: int
    visited: int
    entered: int
    whole: int
    rounds: int


def count(q: Tensor, k: Tensor, num_keys: int, tiling: Tiling, chunk: int = 64) -> Counts:
    """Count for one tile.

    Args:
        q: queries of the tile.
        k: keys of the graph, in any order.
        num_keys: K.
        tiling: sizes of blocks and groups.
        chunk: groups whose scores are computed at a time.

    Shapes:
        q (QUERIES, D), k (M, D).
    """
    norm, order = torch.linalg.vector_norm(k, dim=1).sort(descending=True)
    k, reach = k[order], torch.linalg.vector_norm(q, dim=1)
    slots = 1 << (num_keys - 1).bit_length()
    group = tiling.keys * tiling.step
    best = q.new_full((len(q), num_keys), -torch.inf)
    screened = visited = entered = whole = rounds = 0
    for start in range(0, len(k), group * chunk):
        scores = q @ k[start : start + group * chunk].T
        parts = scores.split(group, dim=1)
        peaks = torch.stack([part.amax(1) for part in parts], 1)  # (QUERIES, chunk)
        for at, part in enumerate(parts):
            worst = best[:, -1]
            if bool((reach * norm[start + at * group] <= worst).all()):
                return Counts(screened, visited, entered, whole, rounds)
            screened += 1
            if not bool((peaks[:, at] > worst).any()):
                continue
            visited += 1
            for block in part.split(tiling.keys, dim=1):
                candidates = (block > best[:, -1:]).sum(1)
                if not bool(candidates.any()):
                    continue
                entered += 1
                whole += int(candidates.max() > slots)
                merged = torch.cat([best, block], 1).topk(num_keys, 1)
                rounds += int((merged.indices >= num_keys).sum(1).max())
                best = merged.values
    return Counts(screened, visited, entered, whole, rounds)
