"""Inputs of the attention benchmark: queries, keys and values of several geometries, drawn from a seed in each cell."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.search import SearchProblem


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
        """The same graphs, as the attention modules take them."""
        sizes = self.ptr.diff()
        return GraphContext(torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes), self.ptr)

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
    centres = torch.randn(shape[0], 50, shape[2])
    picked = torch.randint(50, shape[:2])[..., None].expand(shape)
    q, k = (noise * 0.2 for noise in gaussian(shape))
    return q + centres.gather(1, picked), k + centres.gather(1, picked)


def descending(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Key norms decrease while scores increase, the worst case of an order by norm and of a running threshold."""
    if shape[2] < 2:
        raise ConfigError("--data descending needs two directions: give --dims 2 or more")
    a, norm = (torch.linspace(*ends, shape[1], dtype=torch.float64) for ends in ((0, 1), (2, 1.05)))
    k = torch.zeros(shape, dtype=torch.float64)
    k[..., 0], k[..., 1] = a, (norm**2 - a**2).sqrt()
    q = 0.01 * torch.randn(shape)
    q[..., 0] += 1
    return q, k.float()


def duplicates(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Gaussian keys, each of them 100 times at random places: ties everywhere."""
    q, k = gaussian(shape)
    return q, k[:, torch.randint(max(1, shape[1] // 100), (shape[1],))]


DATA = {make.__name__: make for make in (gaussian, unit, clustered, descending, duplicates)}


def parse_shape(data: str) -> tuple[int, int] | tuple[None, None]:
    """Return the nodes and heads that ``batch:GRAPHSxNODESxHEADS`` fixes; None for a name of ``DATA``."""
    if data in DATA:
        return None, None
    sizes, heads = _batch_sizes(data)
    return sum(sizes), heads


def make_inputs(data: str, n: int, dim: int, heads: int, seed: int = 0) -> Inputs:
    """Make the inputs of one cell on the CPU, float32; values are Gaussian and as wide as the keys."""
    torch.manual_seed(seed)
    ptr = torch.tensor([0, n])
    if data.startswith("batch:"):
        ptr = torch.tensor([0, *_batch_sizes(data)[0]]).cumsum(0)
    q, k = DATA.get(data, gaussian)((heads, n, dim))
    return Inputs(q, k, torch.randn(heads, n, dim), ptr)


def _batch_sizes(data: str) -> tuple[list[int], int]:
    match = re.fullmatch(r"batch:(\d+)x(\d+)(?:-(\d+))?x(\d+)", data)
    if not match or "0" in match.groups():
        choices = f"{', '.join(DATA)} or batch:GRAPHSxNODESxHEADS, such as batch:32x480x4 or batch:32x9-41x4"
        raise ConfigError(f"--data {data}: unknown, choose {choices}")
    graphs, first, last, heads = (None if number is None else int(number) for number in match.groups())
    sizes = torch.linspace(first, first if last is None else last, graphs).round().int()
    order = torch.randperm(graphs, generator=torch.Generator().manual_seed(0))
    return sizes[order].tolist(), heads
