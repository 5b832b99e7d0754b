"""What k-MIP attention gives at every k, against sums written out in float64."""

from __future__ import annotations

import math

import pytest
import torch
from run.analyse import (
    ORDERS,
    Heads,
    cumulative_weight,
    distance_of_samples,
    distance_to_full,
    gaussian_heads,
    key_counts,
    kmip_outputs,
)
from torch import Tensor

from run import analyse as module

COUNTS = [1, 2, 3, 7, 12, 40]


def random_heads(
    nodes: int, heads: int = 2, dim: int = 3, dim_val: int = 4, dtype: torch.dtype = torch.float64
) -> Heads:
    shapes = [(heads, nodes, size) for size in (dim, dim, dim_val)]
    q, k, v = (torch.randn(shape, dtype=dtype) for shape in shapes)
    return Heads(q, k, v)


def row_at(heads: Heads, head: int, query: int, count: int) -> tuple[Tensor, Tensor]:
    """What one query gets from its `count` best keys, and their share of its weight, one key after the other."""
    score = scores_of(heads, head, query)
    best = sorted(range(len(score)), key=lambda key: -score[key])[:count]
    total = sum(math.exp(score[key]) for key in best)
    row = sum(math.exp(score[key]) / total * heads.v[head, key] for key in best)
    return row, torch.tensor(total / sum(map(math.exp, score)), dtype=torch.float64)


def public_row_at(heads: Heads, head: int, query: int, count: int) -> Tensor:
    """What one query gets in the public script: its `count` worst keys, divided by one term more."""
    score = scores_of(heads, head, query)
    worst = sorted(range(len(score)), key=lambda key: score[key])
    total = sum(math.exp(score[key]) for key in worst[: count + 1])
    return sum(math.exp(score[key]) / total * heads.v[head, key] for key in worst[:count])


def scores_of(heads: Heads, head: int, query: int) -> list[float]:
    return [float(heads.q[head, query] @ key) / math.sqrt(heads.q.size(-1)) for key in heads.k[head]]


@pytest.fixture(params=[2**22, 30], ids=["at once", "few queries at a time"])
def heads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Heads:
    monkeypatch.setattr(module, "SCORES", request.param)
    return random_heads(12)


def test_outputs_distances_and_weights_are_those_of_sums_written_out(heads: Heads) -> None:
    outputs = kmip_outputs(heads.q, heads.k, heads.v, COUNTS)
    distances = distance_to_full(heads.q, heads.k, heads.v, COUNTS)
    weights = cumulative_weight(heads.q, heads.k, COUNTS)
    assert (outputs.shape, distances.shape, weights.shape) == ((2, 6, 12, 4), (2, 6), (2, 6))
    for head in range(2):
        full = torch.stack([row_at(heads, head, query, 12)[0] for query in range(12)])
        for place, count in enumerate(COUNTS):
            rows, shares = zip(*(row_at(heads, head, query, count) for query in range(12)), strict=True)
            torch.testing.assert_close(outputs[head, place], torch.stack(rows))
            torch.testing.assert_close(weights[head, place], torch.stack(shares).mean())
            distance = (torch.stack(rows) - full).square().sum(1).sqrt().mean()
            torch.testing.assert_close(distances[head, place], distance, atol=1e-12, rtol=1e-9)


def test_the_public_order_takes_the_smallest_inner_products_and_one_term_more_in_the_sum(heads: Heads) -> None:
    outputs = kmip_outputs(heads.q, heads.k, heads.v, COUNTS, "public")
    for head in range(2):
        for place, count in enumerate(COUNTS):
            rows = [public_row_at(heads, head, query, count) for query in range(12)]
            torch.testing.assert_close(outputs[head, place], torch.stack(rows))


def test_the_public_order_gives_the_distances_of_gaussian_samples_that_the_public_repository_stores() -> None:
    """Means over 53 graphs and 5 layers of its ``approx-output-arc`` (2024-09-10), at the k that hardly depend on N."""
    torch.manual_seed(0)
    heads = random_heads(1500, dim=16, dim_val=16, dtype=torch.float32)
    stored = torch.tensor([1.7239, 1.7195, 1.6221, 1.4346, 1.0971], dtype=torch.float64)
    distances = [distance_to_full(heads.q, heads.k, heads.v, [1, 2, 3, 5, 11], order).mean(0) for order in ORDERS]
    torch.testing.assert_close(distances[1], stored, atol=0, rtol=0.02)
    assert distances[0][0] > 2 * stored[0], "the keys of largest inner product are further away at k = 1"


def test_the_public_order_holds_where_the_smallest_weights_are_no_float32() -> None:
    heads = random_heads(12, dtype=torch.float32)
    heads.q.mul_(60)
    assert kmip_outputs(heads.q, heads.k, heads.v, COUNTS, "public").isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("nodes", [1, 2, 12])
def test_with_all_keys_the_distance_is_zero_and_the_weight_one(nodes: int, dtype: torch.dtype) -> None:
    heads = random_heads(nodes, dtype=dtype)
    counts = [nodes, nodes + 1, 10 * nodes]
    assert all((distance_to_full(heads.q, heads.k, heads.v, counts, order) == 0).all() for order in ORDERS)
    torch.testing.assert_close(cumulative_weight(heads.q, heads.k, counts), torch.ones(2, 3, dtype=dtype))


def test_of_equal_keys_the_first_ones_are_taken() -> None:
    q, v = torch.ones(1, 4, 1), torch.tensor([[[1.0], [3.0], [5.0], [7.0]]])
    outputs = kmip_outputs(q, torch.zeros(1, 4, 1), v, [1, 2, 4])
    torch.testing.assert_close(outputs[0, :, 0, 0], torch.tensor([1.0, 2.0, 4.0]))
    torch.testing.assert_close(cumulative_weight(q, torch.zeros(1, 4, 1), [1, 2, 4]), torch.tensor([[0.25, 0.5, 1.0]]))


@pytest.mark.parametrize("dim_val", [1, 5])
def test_the_distance_of_gaussian_samples_is_that_of_many_draws(dim_val: int) -> None:
    heads = random_heads(6, dim_val=dim_val)
    heads.v.mul_(3)
    full = kmip_outputs(heads.q, heads.k, heads.v, [6])[:, 0]
    draws = torch.randn(20000, *full.shape, dtype=full.dtype)
    drawn = (draws - full).norm(dim=-1).mean((0, 2))
    torch.testing.assert_close(distance_of_samples(heads.q, heads.k, heads.v), drawn, atol=0.01, rtol=0)


def test_gaussian_heads_have_the_shapes_of_others_and_follow_the_seed() -> None:
    like = random_heads(400, dtype=torch.float32)
    size, again, other = (gaussian_heads(like, seed) for seed in (0, 0, 1))
    assert [getattr(size, name).shape for name in "qkv"] == [getattr(like, name).shape for name in "qkv"]
    torch.testing.assert_close(size.k, again.k, atol=0, rtol=0)
    assert not torch.equal(size.k, other.k)
    assert not torch.equal(size.k, size.q)
    assert abs(float(size.v.mean())) < 0.1
    assert abs(float(size.v.std()) - 1) < 0.1


def test_the_k_of_a_curve_rise_from_one_to_the_largest_and_hold_the_layers_own() -> None:
    counts = key_counts(5000, 60, 10, 37)
    assert counts == sorted(set(counts))
    assert (counts[0], counts[-1]) == (1, 5000)
    assert {10, 37} <= set(counts)
    assert len(counts) < 63
    assert key_counts(1, 60, 10) == [1]  # no k beyond the largest graph
