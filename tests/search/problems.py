"""Random ragged search problems, and what every answer to one must fulfil."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from hypothesis import strategies
from torch import Tensor

from graphgps_kmip.testing.references import best_keys

DIM, NUM_KEYS = 3, 4  # the same in all random problems: KeOps compiles for seconds for each pair


@dataclass(frozen=True)
class Ragged:
    q: Tensor
    k: Tensor
    sizes_q: list[int]
    sizes_k: list[int]

    @property
    def ptrs(self) -> tuple[Tensor, Tensor]:
        return pointer(self.sizes_q), pointer(self.sizes_k)


def pointer(sizes: list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(sizes)])


def ragged(sizes_q: list[int], sizes_k: list[int], num_heads: int, seed: int, integers: bool = False) -> Ragged:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((num_heads, sum(sizes), DIM) for sizes in (sizes_q, sizes_k))
    q, k = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    if integers:  # many ties and duplicates, and no rounding
        q, k = q.round(), k.round()
    return Ragged(q, k, sizes_q, sizes_k)


@strategies.composite
def unequal_problems(draw: strategies.DrawFn) -> Ragged:
    num_graphs = draw(strategies.integers(1, 6))
    sizes = strategies.lists(
        strategies.one_of(strategies.just(0), strategies.integers(0, 12)), min_size=num_graphs, max_size=num_graphs
    )
    num_heads, seed = draw(strategies.integers(1, 3)), draw(strategies.integers(0, 999))
    return ragged(draw(sizes), draw(sizes), num_heads, seed, integers=draw(strategies.booleans()))


def check_answer(problem: Ragged, num_keys: int, index: Tensor, score: Tensor, tolerance: float = 1e-12) -> None:
    """Scores as by brute force; indices distinct, in the query's graph, with these scores; -1 where there is none."""
    ptr_q, ptr_k = problem.ptrs
    _, expected = best_keys(problem.q, problem.k, ptr_q.tolist(), ptr_k.tolist(), num_keys)
    torch.testing.assert_close(score.double(), expected, rtol=tolerance, atol=tolerance)
    assert index.dtype == torch.int64
    assert torch.equal(index >= 0, expected > -torch.inf)
    graph = torch.repeat_interleave(torch.tensor(problem.sizes_q))
    for head, row, slot in (index >= 0).nonzero().tolist():
        key = int(index[head, row, slot])
        assert ptr_k[graph[row]] <= key < ptr_k[graph[row] + 1]
        product = (problem.q[head, row] * problem.k[head, key]).sum()
        torch.testing.assert_close(score[head, row, slot].double(), product, rtol=tolerance, atol=tolerance)
    for row_keys in index.flatten(0, 1).tolist():
        real = [key for key in row_keys if key >= 0]
        assert len(set(real)) == len(real)
