"""What docs/differences.md says of this package where a paper and its code differ."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from graphgps_kmip import create_model
from graphgps_kmip.attention import GraphContext, KMIPAttention
from graphgps_kmip.attention.exphormer import SampledEdgeAttention
from graphgps_kmip.data.sets.city_networks import encode_coordinates
from graphgps_kmip.ops.pair_attention import pair_attention

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "differences.md").read_text()
CLOUDS = [*(ROOT / "configs" / "LargeGraphs").glob("*.yaml"), *(ROOT / "configs" / "PointClouds").glob("s*.yaml")]


def row_of(start: str) -> str:
    """The one row of the page's tables that starts with these words."""
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| {start}"))
    return row


def test_maps_of_kmip_have_biases() -> None:
    assert row_of("linear maps of queries, keys and values of k-MIP").endswith("| no biases | biases |")
    attention = KMIPAttention(8, 2, k=3)
    assert all(linear.bias is not None for linear in (attention.query, attention.key, attention.value))


def test_heads_of_the_low_width_paper_share_the_width_and_have_no_output_map() -> None:
    assert "each has d / H channels, and they are concatenated" in row_of("heads of the low-width paper's attention")
    shapes = {name: tuple(value.shape) for name, value in SampledEdgeAttention(8, 2).named_parameters()}
    assert shapes.pop("edge_bias.weight") == (2, 8)
    assert shapes.pop("edge_bias.bias") == (2,)
    assert shapes == dict.fromkeys(("query.weight", "key.weight", "value.weight", "edge.weight"), (8, 8))


def test_city_networks_have_67_inputs() -> None:
    assert "67 inputs, 32 and the 35 others" in row_of("inputs of City-Networks")
    assert encode_coordinates(torch.rand(5, 37), torch.tensor([True] * 5)).shape == (5, 67)


@pytest.mark.parametrize("config", CLOUDS, ids=lambda path: path.stem)
def test_a_step_on_point_clouds_has_two_batches_of_eight(config: Path) -> None:
    assert "2 batches of 8" in row_of("clouds of a training step on ShapeNet-Part and S3DIS")
    settings = yaml.safe_load(config.read_text())
    assert (settings["train"]["batch_size"], settings["optim"]["batch_accumulation"]) == (8, 2)


def test_ppgt_multiplies_by_one_plus_phi() -> None:
    assert "| 1 + φ(p)," in row_of("factor behind the softmax (equation 5)")
    qkv, context = torch.randn(4, 12), GraphContext.of(None, torch.zeros(4, 1))
    plain, with_0, with_1 = (
        pair_attention(qkv, context, 2, scale=1.0, phi=phi) for phi in (None, torch.zeros(2, 16), torch.ones(2, 16))
    )
    torch.testing.assert_close(with_0, plain)
    torch.testing.assert_close(with_1, 2 * plain)


def test_linear_maps_of_ppgt_start_normal_and_not_truncated_at_two_deviations() -> None:
    assert "truncation is at ±2, a hundred deviations" in row_of("initial weights of linear maps (appendix C.2)")
    torch.manual_seed(0)
    model = create_model("", in_dim=9, out_dim=3, network="PPGT", num_layers=1, dim=64, num_bases=3)
    weight = model.get_parameter("layers.0.attention.0.heads.key_value.weight").detach()
    assert weight.std() == pytest.approx(0.02, rel=0.05)
    assert weight.abs().max() > 3 * 0.02
