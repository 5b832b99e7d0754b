"""Random features that a network draws anew in training: when, from what, and what stays as it is."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import PerformerAttention
from graphgps_kmip.attention.performer import PERIOD, redraw_regularly


def network(period: int = 3, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = nn.Sequential(*(PerformerAttention(8, 2, dim_head=4) for _ in range(2)))
    redraw_regularly(layers, period)
    return layers


def projections(layers: nn.Sequential) -> list[Tensor]:
    return [layer.projection.clone() for layer in layers]


def test_vectors_are_drawn_at_every_period_th_call_in_training_only() -> None:
    layers, x = network(), torch.randn(5, 8)
    changed, before = [], projections(layers)
    for call in range(9):
        layers.train(call not in (1, 2))(x)
        now = projections(layers)
        changed.append([not torch.equal(old, new) for old, new in zip(before, now, strict=True)])
        before = now
    assert [all(one) for one in changed] == [any(one) for one in changed]
    assert [call for call, one in enumerate(changed) if all(one)] == [4, 7]  # the third and sixth in training
    assert not torch.equal(*before)
    assert PERIOD == 1001


def test_new_vectors_are_as_the_first_ones_were() -> None:
    layers = network(period=1).train()
    layers(torch.randn(5, 8))
    for projection in projections(layers):
        basis = nn.functional.normalize(projection[:4], dim=1)
        torch.testing.assert_close(basis @ basis.T, torch.eye(4))


def test_a_resumed_network_goes_on_as_if_never_stopped() -> None:
    layers, x = network().train(), torch.randn(5, 8)
    for _ in range(4):
        layers(x)
    resumed = network(seed=7).train()
    resumed.load_state_dict(copy.deepcopy(layers.state_dict()))
    for _ in range(2):
        torch.manual_seed(int(torch.randint(99, ())))  # the state of torch's generator has no part in it
        wanted = layers(x)
        torch.manual_seed(0)
        assert torch.equal(resumed(x), wanted)
    assert all(map(torch.equal, projections(layers), projections(resumed)))


def test_networks_of_other_seeds_draw_other_vectors_and_torchs_generator_is_untouched() -> None:
    one, other, x = network(1, seed=1).train(), network(1, seed=2).train(), torch.randn(5, 8)
    before = torch.get_rng_state()
    one(x), other(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(one[0].projection, other[0].projection)


def test_a_period_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="period must be >= 1, got 0"):
        network(period=0)
