"""Encoders of superpixel graphs: published constants, standardisation, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding import SuperpixelEdgeEncoder, SuperpixelNodeEncoder
from graphgps_kmip.encoding.coco_voc_superpixels import COCO_EDGE, COCO_NODE, VOC_EDGE, VOC_NODE, Scale

DIM = 5
EDGES = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])
ENCODERS = {
    "VOC node": (SuperpixelNodeEncoder, VOC_NODE, "x"),
    "COCO node": (SuperpixelNodeEncoder, COCO_NODE, "x"),
    "VOC edge": (SuperpixelEdgeEncoder, VOC_EDGE, "edge_attr"),
    "COCO edge": (SuperpixelEdgeEncoder, COCO_EDGE, "edge_attr"),
}


def batch_like(scale: Scale, dtype: torch.dtype = torch.float64) -> Batch:
    """Return a graph whose raw features look like those of the data set, in nodes and edges alike."""
    mean, std = torch.tensor(scale.mean, dtype=dtype), torch.tensor(scale.std, dtype=dtype)
    rows = [mean + std * torch.randn(n, len(mean), dtype=dtype) for n in (3, 4)]
    return Batch.from_data_list([Data(x=rows[0], edge_index=EDGES, edge_attr=rows[1])])


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("standardise", [True, False])
def test_a_superpixel_encoder_is_a_linear_map_of_standardised_features(name: str, standardise: bool) -> None:
    kind, scale, key = ENCODERS[name]
    encoder, batch = kind(scale, DIM, standardise=standardise).double(), batch_like(scale)
    raw = batch[key].clone()
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (scale.mean, scale.std))
    wanted = (raw - mean) / std if standardise else raw
    wanted = wanted @ encoder.encoder.weight.T + encoder.encoder.bias
    torch.testing.assert_close(encoder(batch)[key], wanted, rtol=1e-5, atol=1e-5)  # constants are kept in float32


@pytest.mark.parametrize("name", ENCODERS)
def test_standardisation_is_on_unless_switched_off(name: str) -> None:
    kind, scale, key = ENCODERS[name]
    encoder = kind(scale, DIM)
    batch = batch_like(scale, torch.float32)
    before = batch[key].clone()
    batch[key] = torch.tensor(scale.mean).expand_as(before)
    torch.testing.assert_close(encoder(batch)[key], encoder.encoder.bias.expand(len(before), DIM))


@pytest.mark.parametrize("name", ENCODERS)
def test_the_raw_features_stay_as_they_were_and_gradients_reach_the_map(name: str) -> None:
    kind, scale, key = ENCODERS[name]
    encoder, batch = kind(scale, DIM), batch_like(scale)
    raw, copy = batch[key], batch[key].clone()
    out = encoder(batch)[key]
    assert out.dtype == torch.float32
    out.square().sum().backward()
    assert all(bool(parameter.grad.any()) for parameter in encoder.parameters())
    torch.testing.assert_close(raw, copy, rtol=0, atol=0)


def test_the_constants_are_no_part_of_a_checkpoint() -> None:
    assert set(SuperpixelNodeEncoder(VOC_NODE, DIM).state_dict()) == {"encoder.weight", "encoder.bias"}


def test_the_constants_have_a_column_each_and_real_spreads() -> None:
    for _, scale, key in ENCODERS.values():
        assert len(scale.mean) == len(scale.std) == {"x": 14, "edge_attr": 2}[key]
        assert min(scale.std) > 0
    # Sums of the published tables: a digit that is mistyped shows here.
    sums = [sum(scale.mean) + sum(scale.std) for scale in (VOC_NODE, COCO_NODE, VOC_EDGE, COCO_EDGE)]
    assert sums == pytest.approx([692.61087763, 867.084782647, 54.84314095, 72.32843097], rel=1e-10)


def test_features_that_are_not_superpixels_are_refused() -> None:
    graph = Data(x=torch.ones(3, 1), edge_index=EDGES, edge_attr=torch.ones(4, 1))
    with pytest.raises(ValueError, match=r"x must be \(rows, 14\).*\(3, 1\).*edge_wt_region_boundary"):
        SuperpixelNodeEncoder(VOC_NODE, DIM)(Batch.from_data_list([graph]))
    with pytest.raises(ValueError, match=r"edge_attr must be \(rows, 2\).*\(4, 1\)"):
        SuperpixelEdgeEncoder(VOC_EDGE, DIM)(Batch.from_data_list([graph]))
    graph.edge_attr = None
    with pytest.raises(ValueError, match="COCOEdge needs edge features.*DummyEdge"):
        SuperpixelEdgeEncoder(COCO_EDGE, DIM)(Batch.from_data_list([graph]))
