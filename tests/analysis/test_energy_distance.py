"""Energy distances of attention weights: by loops over all pairs, and of known distributions by mathematics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad, quad
from torch import Tensor

from graphgps_kmip.errors import InputError
from run import narrow_estimators as energy

DEGREES = [3, 0, 1, 5, 3, 2, 0]
PTR = torch.tensor([0, *DEGREES]).cumsum(0)


def drawn(num: int, seed: int) -> Tensor:
    return energy.random_weights(PTR, num, seed)


def by_loops(x: Tensor, y: Tensor, ptr: Tensor) -> list[float]:
    """The definition, pair by pair."""
    distances = []
    for start, end in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
        sample, other = x[:, start:end].numpy(), y[:, start:end].numpy()
        apart = sum(math.dist(a, b) for a in sample for b in other) / (len(sample) * len(other))
        spreads = [
            sum(math.dist(a, b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j)
            / (len(rows) * (len(rows) - 1))
            for rows in (sample, other)
        ]
        distances.append(2 * apart - sum(spreads))
    return distances


@pytest.mark.parametrize("held", [2**22, 40])
def test_each_node_has_the_distance_of_the_definition(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "PAIRS", held)  # few: the nodes of a degree come in parts
    x, y = drawn(4, seed=1), drawn(6, seed=2) ** 2
    distances = energy.energy_distances(x, y, PTR)
    np.testing.assert_allclose(distances, by_loops(x, y, PTR), rtol=0, atol=1e-13)
    assert distances[[1, 6]].tolist() == [0, 0]  # no edges
    again = energy.energy_distances(x, y, PTR, energy.mean_spread(y, PTR))
    torch.testing.assert_close(again, distances, rtol=0, atol=0)


def test_float32_weights_are_compared_in_float64() -> None:
    x, y = drawn(4, seed=1).float(), drawn(3, seed=2).float()
    distances = energy.energy_distances(x, y, PTR)
    assert distances.dtype == torch.float64
    np.testing.assert_allclose(distances, by_loops(x.double(), y.double(), PTR), rtol=0, atol=1e-13)


def test_two_constants_are_twice_their_distance_apart() -> None:
    ptr = torch.tensor([0, 2])
    x, y = torch.tensor([[1.0, 0.0]] * 3), torch.tensor([[0.4, 0.6]] * 2)
    twice = 2 * 0.6 * math.sqrt(2)
    assert energy.energy_distances(x, y, ptr).item() == pytest.approx(twice, abs=1e-7)
    assert energy.energy_distances_of_point(x[0], y, ptr).item() == pytest.approx(twice, abs=1e-7)
    assert energy.energy_distances(x, x[:2], ptr).item() == 0


def test_the_estimate_is_unbiased_over_all_samples_of_two_known_distributions() -> None:
    """One of two edges, chosen by a fair coin, against a constant 1/2: 2 sqrt(1/2) - sqrt(2) / 2."""
    ptr, half = torch.tensor([0, 2]), torch.tensor([0.5, 0.5])
    sides = torch.eye(2, dtype=torch.float64)
    draws = [torch.stack([sides[a], sides[b]]) for a in (0, 1) for b in (0, 1)]  # equally likely samples of two
    expected = 2 * math.sqrt(1 / 2) - math.sqrt(2) / 2
    distances = [energy.energy_distances_of_point(half, sample, ptr).item() for sample in draws]
    assert sum(distances) / 4 == pytest.approx(expected, abs=1e-12)
    same = [energy.energy_distances(sample, other, ptr).item() for sample in draws for other in draws]
    assert sum(same) / 16 == pytest.approx(0, abs=1e-12)
    assert min(same) < 0


def test_random_weights_of_two_edges_are_a_logistic_function_of_triangular_logits() -> None:
    limit, width = 8.0, 16.0

    def density(value: float) -> float:  # of the difference of two uniform logits
        return (width - abs(value)) / width**2

    def share(value: float) -> float:
        return 1 / (1 + math.exp(-value))

    to_half = quad(lambda a: math.sqrt(2) * abs(share(a) - 0.5) * density(a), -width, width, limit=200)[0]
    apart, _ = dblquad(
        lambda b, a: math.sqrt(2) * abs(share(a) - share(b)) * density(a) * density(b),
        *(-width, width, -width, width),
        epsabs=1e-5,
    )
    ptr = 2 * torch.arange(1001)
    random = energy.random_weights(ptr, 30, limit=limit)
    torch.testing.assert_close(random.view(30, -1, 2).sum(-1), torch.ones(30, 1000).double(), rtol=0, atol=1e-14)
    distances = energy.energy_distances_of_point(energy.uniform_weights(ptr), random, ptr).mean()
    assert distances.item() == pytest.approx(2 * to_half - apart, abs=0.01)
    assert energy.mean_spread(random, ptr).mean().item() == pytest.approx(apart, abs=0.01)


def test_uniform_weights_are_one_over_the_degree() -> None:
    expected = [1 / degree for degree in DEGREES for _ in range(degree)]
    assert energy.uniform_weights(PTR).tolist() == expected


def test_one_training_is_refused() -> None:
    with pytest.raises(InputError, match="1 sample has no spread, .* give the weights of 2 or more trainings"):
        energy.energy_distances(drawn(1, seed=0), drawn(3, seed=1), PTR)


def test_weights_of_another_graph_are_refused() -> None:
    with pytest.raises(InputError, match=r"expected weights of \(trainings, 14 edges\), got \(3, 13\)"):
        energy.energy_distances(drawn(3, seed=0)[:, 1:], drawn(3, seed=1), PTR)
