"""Coordinates as sines and cosines: eq. 38 against a loop, and statistics of the training nodes only."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from graphgps_kmip.data.sets.city_networks import NUM_FREQUENCIES, encode_coordinates


@pytest.fixture
def city() -> tuple[Tensor, Tensor]:
    """Return features of 40 junctions near Paris (longitude, latitude, 3 others) and the mask of 25 that train."""
    place = torch.tensor([2.3, 48.8]) + 0.1 * torch.randn(40, 2)
    return torch.cat([place, torch.randn(40, 3) * 20 + 7], 1), torch.arange(40) % 8 < 5


def reference(features: list[list[float]], train: list[bool]) -> list[list[float]]:
    training_rows = [row for row, trains in zip(features, train, strict=True) if trains]
    result = []
    for row in features:
        out = []
        for column in (0, 1):
            values = [other[column] for other in training_rows]
            share = (row[column] - min(values)) / (max(values) - min(values))
            angle = (2 * share - 1) * 0.9 * math.pi
            out += [math.sin(angle * 2**power) for power in range(8)]
            out += [math.cos(angle * 2**power) for power in range(8)]
        for column in range(2, len(row)):
            values = [other[column] for other in training_rows]
            mean = math.fsum(values) / len(values)
            deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
            out.append((row[column] - mean) / deviation)
        result.append(out)
    return result


def test_the_encoding_is_that_of_a_loop_over_the_formulas(city: tuple[Tensor, Tensor]) -> None:
    features, train = city
    encoded = encode_coordinates(features, train)
    assert encoded.dtype == torch.float32
    assert encoded.shape == (40, 35)
    expected = torch.tensor(reference(features.double().tolist(), train.tolist()))
    torch.testing.assert_close(encoded, expected, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1 / 3, 1e7 / 3])
def test_a_column_that_is_constant_in_training_becomes_zero_everywhere(
    city: tuple[Tensor, Tensor], constant: float
) -> None:
    features, train = city
    features = features.double()
    features[train] = constant
    angles, others = encode_coordinates(features, train).tensor_split([4 * NUM_FREQUENCIES], dim=1)
    assert others.count_nonzero() == 0
    longitude_sin, longitude_cos, latitude_sin, latitude_cos = angles.chunk(4, dim=1)
    assert longitude_sin.count_nonzero() == latitude_sin.count_nonzero() == 0
    assert longitude_cos.eq(1).all()
    assert latitude_cos.eq(1).all()


@pytest.mark.parametrize("shape", [(40,), (40, 1)])
def test_features_without_two_coordinates_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"longitude and latitude first, got \(40"):
        encode_coordinates(torch.zeros(shape), torch.ones(40, dtype=torch.bool))
