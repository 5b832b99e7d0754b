"""The data sets of the benchmark: queries, keys and values of chosen geometry, made anew from a seed in every cell."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.search import SearchProblem

NUM_CLUSTERS, SPREAD = 50, 0.2
REPEATS_OF_A_KEY = 100


@dataclass(frozen=True)
class Inputs:
    """Queries, keys and values (H, N, D) of the graphs that ``ptr`` (B+1,) bounds."""

    q: Tensor
    k: Tensor
    v: Tensor
    ptr: Tensor

    def problem(self, num_keys: int) -> SearchProblem:
        """Return the search for ``num_keys`` keys of each query."""
        return SearchProblem.of(self.q, self.k, self.ptr, self.ptr, num_keys)

    @cached_property
    def context(self) -> GraphContext:
        """The same graphs, as the attention modules are told about them."""
        sizes = self.ptr.diff()
        return GraphContext(torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes), self.ptr)

    @property
    def num_pairs(self) -> int:
        """Query-key pairs of all graphs and heads."""
        return int((self.ptr.diff() ** 2).sum()) * self.q.size(0)

    def to(self, device: str) -> Inputs:
        """Return the same inputs on a device."""
        return Inputs(*(tensor.to(device) for tensor in (self.q, self.k, self.v, self.ptr)))


def gaussian(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Queries and keys from N(0, I)."""
    return torch.randn(shape), torch.randn(shape)


def unit(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Keys of norm 1 (an order by norm prunes nothing), queries from N(0, I)."""
    q, k = gaussian(shape)
    return q, torch.nn.functional.normalize(k, dim=-1)


def clustered(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """50 centres from N(0, I), every query and key at one of them plus 0.2 N(0, I)."""
    centres = torch.randn(shape[0], NUM_CLUSTERS, shape[2])
    picked = torch.randint(NUM_CLUSTERS, shape[:2])[..., None].expand(shape)
    q, k = (noise * SPREAD for noise in gaussian(shape))
    return q + centres.gather(1, picked), k + centres.gather(1, picked)


def falling(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Key norms fall while scores rise, in the order of storage: every key enters every query's best list.

    ``k_i = a_i u + b_i w`` with orthogonal u and w, a_i rising to 1, |k_i| falling from 2 to 1.05, and queries u plus
    0.01 N(0, I): the worst case of an order by norm and of a running threshold alike.
    """
    if shape[2] < 2:
        raise ValueError("--data falling needs two directions: give --dims 2 or more")
    rise = torch.linspace(0, 1, shape[1], dtype=torch.float64)
    norm = torch.linspace(2, 1.05, shape[1], dtype=torch.float64)
    k = torch.zeros(shape, dtype=torch.float64)
    k[..., 0], k[..., 1] = rise, (norm**2 - rise**2).sqrt()
    q = 0.01 * torch.randn(shape)
    q[..., 0] += 1
    return q, k.float()


def duplicates(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Gaussian keys, each of them 100 times at random places: ties everywhere."""
    q, k = gaussian(shape)
    distinct = max(1, shape[1] // REPEATS_OF_A_KEY)
    return q, k[:, torch.randint(distinct, (shape[1],))]


DATA: dict[str, Callable[[tuple[int, int, int]], tuple[Tensor, Tensor]]] = {
    make.__name__: make for make in (gaussian, unit, clustered, falling, duplicates)
}


@dataclass(frozen=True)
class Shape:
    """What a data set fixes by itself: sizes that are None are the user's to choose."""

    n: int | None = None
    dim: int | None = None
    heads: int | None = None


def shape_of(data: str) -> Shape:
    """Say which sizes a data set fixes.

    Args:
        data: a name of ``DATA``, ``batch:GRAPHSxNODESxHEADS`` (Gaussian), or ``captured:FILE``.

    Raises:
        ValueError: it is none of these, or the file does not hold what `capture.py` writes.
    """
    if data in DATA:
        return Shape()
    if data.startswith("batch:"):
        graphs, nodes, heads = _batch_sizes(data)
        return Shape(graphs * nodes, None, heads)
    if data.startswith("captured:"):
        heads, n, dim = _captured(data)["q"].shape
        return Shape(n, dim, heads)
    raise ValueError(f"--data {data}: unknown, choose {', '.join(DATA)}, batch:32x480x4 or captured:FILE")


def make_inputs(data: str, n: int, dim: int, heads: int, seed: int = 0) -> Inputs:
    """Make the inputs of one cell on the CPU, float32; values are Gaussian and as wide as the keys."""
    torch.manual_seed(seed)
    if data.startswith("captured:"):
        saved = _captured(data)
        return Inputs(saved["q"].float(), saved["k"].float(), torch.randn(saved["q"].shape), saved["ptr"])
    ptr = torch.tensor([0, n])
    if data.startswith("batch:"):
        graphs, nodes, _ = _batch_sizes(data)
        ptr = torch.arange(graphs + 1) * nodes
    q, k = DATA.get(data, gaussian)((heads, n, dim))
    return Inputs(q, k, torch.randn(heads, n, dim), ptr)


def _batch_sizes(data: str) -> tuple[int, int, int]:
    found = re.fullmatch(r"batch:(\d+)x(\d+)x(\d+)", data)
    if not found or "0" in found.groups():
        raise ValueError(f"--data {data}: expected batch:GRAPHSxNODESxHEADS, such as batch:32x480x4")
    return tuple(int(number) for number in found.groups())


def _captured(data: str) -> dict[str, Tensor]:
    file = Path(data.removeprefix("captured:"))
    if not file.is_file():
        raise ValueError(f"--data {data}: no such file, make one with --capture RUN_FOLDER")
    saved = torch.load(file, weights_only=True)
    if not isinstance(saved, dict) or not {"q", "k", "ptr"} <= saved.keys():
        raise ValueError(f"--data {data}: expected tensors q (H, N, D), k (H, N, D) and ptr, make it with --capture")
    return saved
