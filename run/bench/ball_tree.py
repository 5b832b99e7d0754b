"""Ball tree search: prunes balls of keys by a bound on inner products (k-MIP thesis, section 4.2: a negative result).

Bound and search: Ram and Gray 2012, "Maximum inner-product search using tree data-structures" (arXiv:1202.6101). The
thesis names no rule for the split; this is the one of Ram and Gray.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from graphgps_kmip.ops.native import pointer
from graphgps_kmip.ops.native.compile_kernels import SOURCES, load

DEPTH = 3  # the column of a node (start, count, child, depth)


def _library() -> ctypes.CDLL:
    return load(str(Path(__file__).with_suffix("")), f"-I{SOURCES}")


class BallTree:
    """Keys in nested balls, each with the mean of its keys as centre c and their largest distance from it as radius r.

    ``<q, x> <= <q, c> + r |q|`` for every key x of a ball. A ball with more than ``leaf_size`` keys is split: a is the
    key farthest from a random one, b the key farthest from a, each key goes to the nearer of both (equal keys are
    split evenly). Expected cost O(M log M); a worst case O(M^2).

    Args:
        keys (Tensor): the keys, on the CPU.
        leaf_size (int, optional): maximum number of keys of a ball that is not split. (default: 100)
        seed (int, optional): seed of the random keys; it changes the tree, not the result. (default: 0)

    Shapes:
        keys (M, D), M >= 1.

    Raises:
        NoKernel: no C compiler on this machine.
    """

    def __init__(self, keys: Tensor, leaf_size: int = 100, seed: int = 0) -> None:
        num_keys, dim = keys.shape
        self._leaf_size = min(leaf_size, num_keys)
        self._keys = keys.detach().to(torch.float64, copy=True, memory_format=torch.contiguous_format)
        self._ids = torch.arange(num_keys)
        max_nodes = 2 * num_keys - 1  # with one key per leaf; pages that are never written cost nothing
        self._nodes = torch.empty(max_nodes, 4, dtype=torch.int64)
        self._centre, self._radius = (torch.empty(max_nodes, *shape, dtype=torch.float64) for shape in ((dim,), ()))
        build = _library().ball_tree_build
        build.restype = ctypes.c_long
        self.num_nodes = build(
            *(pointer(self._keys), pointer(self._ids)),
            *map(ctypes.c_long, (num_keys, dim, leaf_size)),
            ctypes.c_uint64(seed),
            *map(pointer, (self._nodes, self._centre, self._radius)),
        )
        if self.num_nodes < 0:
            raise MemoryError(f"no memory for a ball tree of {num_keys} keys of {dim} channels")
        self.depth = int(self._nodes[: self.num_nodes, DEPTH].max())

    def search(self, q: Tensor, num_keys: int) -> tuple[Tensor, Tensor, Tensor]:
        """Find the K largest inner products of each query, depth first, the ball with the larger bound first.

        A ball is left out when its bound is no larger than the K-th best score so far. Scores are sums in float64.

        Args:
            q (Tensor): queries, on the CPU.
            num_keys (int): K >= 1.

        Shapes:
            q (N, D); returns index (N, K) int64 (-1: missing), score (N, K) in the dtype of q (-inf: missing), both by
            descending score, and visited (N,) int64: number of balls entered.
        """
        queries = q.detach().to(torch.float64).contiguous()
        score = queries.new_full((len(q), num_keys), -torch.inf)
        index = torch.full_like(score, -1, dtype=torch.int64)
        visited = index.new_empty(len(q))
        failed = _library().ball_tree_search(
            *(pointer(self._keys), pointer(self._ids)),
            *map(ctypes.c_long, (queries.size(1), self._leaf_size, self.depth)),
            *map(pointer, (self._nodes, self._centre, self._radius, queries)),
            *map(ctypes.c_long, (len(q), num_keys)),
            ctypes.c_int(torch.get_num_threads()),
            *map(pointer, (index, score, visited)),
        )
        if failed:
            raise MemoryError("no memory for the search of a ball tree")
        score, order = score.sort(dim=1, descending=True, stable=True)
        return index.gather(1, order), score.to(q.dtype), visited
