"""Faults of GraphGPS's layers: which class the builders choose, and that the operators know none of them."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import torch
from torch import nn

from graphgps_kmip.attention import BigBirdAttention, GraphContext, PerformerAttention
from graphgps_kmip.compat import layer_faults
from graphgps_kmip.compat.layer_faults import build_bigbird, build_gine, build_performer
from graphgps_kmip.compat.padded_graphs import with_padding
from graphgps_kmip.mpnn import GINE
from graphgps_kmip.signatures import options, rules_of

BUILDERS: list[tuple[Callable[..., nn.Module], type[nn.Module], dict[str, Any]]] = [
    (build_performer, PerformerAttention, {"mask_keys": True, "detach_stabiliser": False}),
    (build_bigbird, BigBirdAttention, {"pattern": "graph"}),
    (build_gine, GINE, {"broadcast_row_1": False}),
]


@pytest.mark.parametrize(("build", "operator", "faults"), BUILDERS, ids=lambda one: getattr(one, "__name__", ""))
def test_the_options_are_those_of_the_operator_and_of_its_faults(
    build: Callable[..., nn.Module], operator: type[nn.Module], faults: dict[str, Any]
) -> None:
    found, clean = ({name: option.default for name, option in options(one).items()} for one in (build, operator))
    assert found == clean | faults
    assert rules_of(build).items() >= rules_of(operator).items()
    assert build.__doc__ == operator.__doc__
    assert not faults.keys() & signature(operator).parameters.keys()


@pytest.mark.parametrize(
    ("build", "given", "name"),
    [
        (build_performer, {}, "PerformerAttention"),
        (build_performer, {"mask_keys": False}, "PaddedPerformerAttention"),
        (build_performer, {"detach_stabiliser": True}, "DetachedPerformerAttention"),
        (build_performer, {"mask_keys": False, "detach_stabiliser": True}, "PaddedDetachedPerformerAttention"),
        (build_bigbird, {}, "BigBirdAttention"),
        (build_bigbird, {"pattern": "public", "block_size": 2}, "PaddedBigBirdAttention"),
        (build_bigbird, {"pattern": "public_global_rng"}, "GlobalRandomBigBirdAttention"),
        (build_gine, {"broadcast_row_1": False}, "GINE"),
        (build_gine, {"broadcast_row_1": True, "inner": "norm_linear"}, "FirstRowGINE"),
    ],
)
def test_a_builder_chooses_the_class_by_its_faults(
    build: Callable[..., nn.Module], given: dict[str, Any], name: str
) -> None:
    module = build(8, 0.0, **given) if build is build_gine else build(8, 2, **given)
    assert type(module).__name__ == name
    assert type(module) is getattr(layer_faults, name)
    if "block_size" in given:
        assert module.block_size == 2


def test_keys_with_a_bias_and_padding_among_them_are_refused() -> None:
    with pytest.raises(ValueError, match="mask_keys False repeats a public layer"):
        build_performer(8, 2, use_bias=True, mask_keys=False)


def test_in_a_network_that_pads_its_graphs_values_of_padding_are_0_and_its_keys_count() -> None:
    attention = layer_faults.PaddedPerformerAttention(8, 2, use_bias=True).double()
    x, batch = torch.randn(5, 8).double(), torch.tensor([0, 0, 0, 1, 1])
    padded_x, context = with_padding(x, GraphContext.of(batch, x))
    assert context.real.tolist() == [True] * 5 + [False]
    single = PerformerAttention(8, 2, use_bias=True).double()
    single.load_state_dict(attention.state_dict())
    found = attention.attend(padded_x, context)[context.real]
    torch.testing.assert_close(found[:3], single.attend(x[:3], GraphContext.of(None, x[:3])))
    attention.value.bias.data += 7.0
    shift = attention.attend(padded_x, context)[context.real] - found
    torch.testing.assert_close(shift[:3], torch.full_like(shift[:3], 7.0))
    assert 0.0 < shift[3:].min() < shift[3:].max() < 6.5  # a mean of values, with a 0 among them


def test_gine_adds_row_1_to_the_sum_of_every_node() -> None:
    layer = build_gine(4, broadcast_row_1=True)
    layer.inner = nn.Identity()
    x, nothing = torch.randn(3, 4), torch.zeros(2, 0, dtype=torch.long)
    assert torch.equal(layer(x, nothing, torch.zeros(0, 4))[0], x[1].expand(3, 4))
