"""Initial weights of PPGT follow the rule of each kind of part; other parameters keep what their modules set."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from graphgps_kmip.common.row_layers import AdaRMSNorm
from graphgps_kmip.model.ppgt_initialisation import initialise_ppgt


@pytest.fixture
def network() -> nn.ModuleDict:
    torch.manual_seed(0)
    network = nn.ModuleDict(
        {
            "trunk": nn.Linear(300, 300),
            "encoder": nn.Sequential(nn.Linear(300, 300), nn.Embedding(100, 300)),
            "stem": nn.Sequential(nn.Linear(300, 300), nn.GELU(), nn.Linear(300, 300), nn.GELU(), nn.Linear(300, 300)),
            "no_bias": nn.Linear(4, 4, bias=False),
            "norm": AdaRMSNorm(4),
        }
    )
    initialise_ppgt(network, [network["encoder"]], [network["stem"]])
    return network


def test_linear_maps_of_the_trunk_are_normal(network: nn.ModuleDict) -> None:
    weight = network["trunk"].weight
    assert abs(float(weight.detach().std()) - 0.02) < 2e-4
    assert float(weight.detach().abs().max()) > 4 * 0.02
    assert network["no_bias"].weight.std() < 0.05


def test_encoders_of_the_data_are_uniform_or_standard_normal(network: nn.ModuleDict) -> None:
    linear, embedding = network["encoder"]
    assert_uniform(linear, 1 / math.sqrt(300))
    assert abs(float(embedding.weight.detach().std()) - 1) < 0.02
    assert float(embedding.weight.detach().abs().max()) > 3


def test_the_last_map_of_a_stem_has_half_the_variance_of_the_hidden_ones(network: nn.ModuleDict) -> None:
    first, _, second, _, last = network["stem"]
    assert_uniform(first, math.sqrt(6 / 300))
    assert_uniform(second, math.sqrt(6 / 300))
    assert_uniform(last, math.sqrt(3 / 300))


def test_biases_are_zero_and_norms_stay(network: nn.ModuleDict) -> None:
    biases = [one.bias for one in network.modules() if isinstance(one, nn.Linear) and one.bias is not None]
    assert len(biases) == 5
    assert not any(bias.any() for bias in biases)
    assert (network["norm"].beta == 1).all()
    assert (network["norm"].alpha == 0).all()


def assert_uniform(linear: nn.Linear, bound: float) -> None:
    largest = float(linear.weight.detach().abs().max())
    assert 0.999 * bound < largest <= bound * (1 + 1e-6)
    assert abs(float(linear.weight.detach().std()) * math.sqrt(3) / bound - 1) < 0.01
