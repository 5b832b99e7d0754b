"""Encoders of raw features: the values that each gives, what it leaves as it was, and what it refuses by its key."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ogb.graphproppred.mol_encoder import AtomEncoder as OgbAtom
from ogb.graphproppred.mol_encoder import BondEncoder as OgbBond
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding.coco_voc_superpixels import (
    COCO_EDGE,
    COCO_NODE,
    VOC_EDGE,
    VOC_NODE,
    SuperpixelEdgeEncoder,
    SuperpixelNodeEncoder,
)
from graphgps_kmip.encoding.degree_and_heat_kernel import Degree
from graphgps_kmip.encoding.feature_encoders import (
    ATOM,
    BOND,
    AtomEncoder,
    BondEncoder,
    ConstantEdgeEncoder,
    ConstantNodeEncoder,
    LinearEdgeEncoder,
    LinearNodeEncoder,
    SyntaxEdgeEncoder,
    SyntaxNodeEncoder,
    TypeDictEdgeEncoder,
    TypeDictNodeEncoder,
)
from graphgps_kmip.encoding.positional_encoding import KernelEncoder, NodeEncoding, OnEdges

DIM = 5
EDGES = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])
SUPERPIXELS = {
    "VOC node": (SuperpixelNodeEncoder, VOC_NODE, "x"),
    "COCO node": (SuperpixelNodeEncoder, COCO_NODE, "x"),
    "VOC edge": (SuperpixelEdgeEncoder, VOC_EDGE, "edge_attr"),
    "COCO edge": (SuperpixelEdgeEncoder, COCO_EDGE, "edge_attr"),
}


def draw(rows: int, sizes: tuple[int, ...]) -> Tensor:
    """Return integers that reach the last value of every column."""
    values = torch.stack([torch.randint(size, (rows,)) for size in sizes], dim=1)
    values[0] = torch.tensor(sizes) - 1
    return values


def batch_of(x: Tensor, edge_attr: Tensor | None = None, **more: Any) -> Batch:
    return Batch.from_data_list([Data(x=x, edge_index=EDGES, edge_attr=edge_attr, **more)])


def molecule() -> Batch:
    return batch_of(draw(3, ATOM), draw(4, BOND))


def program() -> Batch:
    return batch_of(draw(3, (98, 10030)), draw(4, (2, 2)), node_depth=torch.tensor([[0], [20], [57]]))


class Two(NodeEncoding):
    """An encoding of two columns."""

    num_columns = 2


def edge_statistics(norm_width: int | None = 3, dim: int = DIM, dim_pe: int = 2) -> OnEdges:
    return OnEdges(KernelEncoder(Two(name="ERE", dim_pe=dim_pe), dim, None), "pestat_ERE", norm_width)


def cases() -> dict[str, tuple[nn.Module, str, Batch]]:
    x, e = torch.randn(3, 2), torch.randn(4, 3)
    scales = [torch.tensor(scale.mean) for scale in (VOC_NODE, VOC_EDGE)]
    superpixels = batch_of(scales[0] + torch.rand(3, 14), scales[1] + torch.rand(4, 2))
    return {
        "linear node": (LinearNodeEncoder(2, DIM), "x", batch_of(x, e)),
        "node type": (TypeDictNodeEncoder(7, DIM), "x", batch_of(torch.tensor([[0], [6], [2]]), e)),
        "constant node": (ConstantNodeEncoder(DIM), "x", batch_of(x, e)),
        "linear edge": (LinearEdgeEncoder(3, DIM), "edge_attr", batch_of(x, e)),
        "linear edge, one column": (LinearEdgeEncoder(1, DIM), "edge_attr", batch_of(x, e[:, 0])),
        "edge type": (TypeDictEdgeEncoder(4, DIM), "edge_attr", batch_of(x, torch.tensor([3, 0, 0, 1]))),
        "constant edge": (ConstantEdgeEncoder(DIM), "edge_attr", batch_of(x)),
        "atom": (AtomEncoder(ATOM, DIM), "x", molecule()),
        "bond": (BondEncoder(BOND, DIM), "edge_attr", molecule()),
        "syntax node": (SyntaxNodeEncoder(DIM), "x", program()),
        "syntax edge": (SyntaxEdgeEncoder(DIM), "edge_attr", program()),
        "superpixel node": (SuperpixelNodeEncoder(VOC_NODE, DIM), "x", superpixels),
        "superpixel edge": (SuperpixelEdgeEncoder(VOC_EDGE, DIM), "edge_attr", superpixels),
        "degree": (Degree(dim_pe=2).encoder(DIM, 2), "x", batch_of(x, pestat_Degree=torch.tensor([0, 3, 90]))),
        "on edges": (edge_statistics(None), "edge_attr", batch_of(x, e, edge_pestat_ERE=torch.rand(4, 2))),
    }


@pytest.mark.parametrize("name", cases())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_encoder_sets_its_attribute_leaves_all_else_and_has_gradients(name: str, dtype: torch.dtype) -> None:
    encoder, key, batch = cases()[name]
    encoder, before = encoder.to(dtype), batch.clone()
    raw = {attribute: batch[attribute] for attribute in batch.keys()}  # noqa: SIM118 (a Batch is no mapping)
    out = encoder(batch)
    assert out[key].shape == ({"x": 3, "edge_attr": 4}[key], DIM)
    assert out[key].dtype == dtype
    assert set(out.keys()) == set(raw) | {key}
    for attribute, value in raw.items():
        torch.testing.assert_close(value, before[attribute], rtol=0, atol=0)  # the tensors themselves are untouched
        if attribute != key:
            assert out[attribute] is value
    (out[key] * torch.arange(1.0, DIM + 1)).sum().backward()
    assert all(bool(parameter.grad.any()) for parameter in encoder.parameters())


def test_linear_encoders_compute_the_linear_map_without_rounding_float64_on_the_way() -> None:
    encoder, x = LinearNodeEncoder(2, DIM).double(), torch.randn(3, 2, dtype=torch.float64)
    torch.testing.assert_close(encoder(batch_of(x)).x, x @ encoder.encoder.weight.T + encoder.encoder.bias)
    encoder, tiny = LinearNodeEncoder(1, DIM).double(), torch.tensor([[0.0], [1e-12], [1.0]], dtype=torch.float64)
    x = encoder(batch_of(1 + tiny)).x
    assert bool((x[0] != x[1]).any())


@pytest.mark.parametrize(("kind", "ogb", "vocabulary"), [(AtomEncoder, OgbAtom, ATOM), (BondEncoder, OgbBond, BOND)])
def test_atoms_and_bonds_are_encoded_as_by_ogb_whose_checkpoints_fit(
    kind: type[nn.Module], ogb: type[nn.Module], vocabulary: tuple[int, ...]
) -> None:
    encoder, ogb_encoder = kind(vocabulary, DIM).double(), ogb(DIM).double()
    encoder.load_state_dict(ogb_encoder.state_dict())
    batch, key = molecule(), "x" if vocabulary is ATOM else "edge_attr"
    raw = batch[key].clone()
    torch.testing.assert_close(encoder(batch)[key], ogb_encoder(raw))


def test_a_node_of_a_syntax_tree_sums_type_attribute_and_capped_depth_an_edge_type_and_direction() -> None:
    encoder, batch = SyntaxNodeEncoder(DIM).double(), program()
    kind, attribute = batch.x.T
    weights = encoder.type_encoder.weight, encoder.attribute_encoder.weight, encoder.depth_encoder.weight
    torch.testing.assert_close(encoder(batch).x, weights[0][kind] + weights[1][attribute] + weights[2][[0, 20, 20]])
    encoder, batch = SyntaxEdgeEncoder(DIM).double(), program()
    kind, direction = batch.edge_attr.T
    expected = encoder.embedding_type.weight[kind] + encoder.embedding_direction.weight[direction]
    batch.edge_attr = batch.edge_attr.float()  # as ogb's augment_edge makes it
    torch.testing.assert_close(encoder(batch).edge_attr, expected)


@pytest.mark.parametrize("name", SUPERPIXELS)
def test_a_superpixel_encoder_is_a_linear_map_of_standardised_features(name: str) -> None:
    kind, scale, key = SUPERPIXELS[name]
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (scale.mean, scale.std))
    rows = [mean + std * torch.randn(n, len(mean), dtype=torch.float64) for n in (3, 4)]
    encoder, batch = kind(scale, DIM).double(), batch_of(*rows)
    raw = batch[key].clone()
    expected = (raw - mean) / std @ encoder.encoder.weight.T + encoder.encoder.bias
    torch.testing.assert_close(encoder(batch)[key], expected, rtol=1e-5, atol=1e-5)  # constants are kept in float32


def test_the_constants_have_a_column_each_and_real_spreads() -> None:
    for _, scale, key in SUPERPIXELS.values():
        assert len(scale.mean) == len(scale.std) == {"x": 14, "edge_attr": 2}[key]
        assert min(scale.std) > 0
    # Sums of the published tables: a digit that is mistyped shows here.
    sums = [sum(scale.mean) + sum(scale.std) for scale in (VOC_NODE, COCO_NODE, VOC_EDGE, COCO_EDGE)]
    assert sums == pytest.approx([692.61087763, 867.084782647, 54.84314095, 72.32843097], rel=1e-10)


def test_each_degree_appends_its_vector_to_the_features_and_large_ones_share_the_last() -> None:
    encoder, batch = Degree(dim_pe=6, max_degree=4).encoder(8, None), batch_of(torch.randn(3, 2))
    batch.pestat_Degree = torch.tensor([3, 4, 90])
    expected = torch.cat([batch.x, encoder.encoder.weight[[3, 4, 4]]], dim=1)
    assert torch.equal(encoder(batch).x, expected)


@pytest.mark.parametrize("norm", [False, True])
def test_the_encoding_of_an_edge_is_appended_to_its_features(norm: bool) -> None:
    module = edge_statistics(4 if norm else None, 7, 3)
    data = Data(x=torch.randn(4, 5), edge_index=EDGES, edge_attr=torch.randn(4, 4), edge_pestat_ERE=torch.rand(4, 2))
    batch = Batch.from_data_list([data, data])
    features = batch.edge_attr
    features = torch.nn.functional.batch_norm(features, None, None, training=True) if norm else features
    expected = torch.cat([features, module.encoder.pe_encoder(batch.edge_pestat_ERE)], dim=1)
    torch.testing.assert_close(module(batch).edge_attr, expected)
    assert data.is_edge_attr("edge_pestat_ERE")  # though there are as many nodes
    assert not data.is_node_attr("edge_pestat_ERE")


def test_graphs_without_edges_get_an_empty_encoding() -> None:
    no_edges = torch.empty(2, 0, dtype=torch.long)
    for encoder, columns in (
        (ConstantEdgeEncoder(DIM), 1),
        (LinearEdgeEncoder(1, DIM), 1),
        (TypeDictEdgeEncoder(2, DIM), 1),
        (BondEncoder(BOND, DIM), 3),
        (edge_statistics(), 3),
    ):
        empty = Data(x=torch.zeros(1, 1), edge_index=no_edges, edge_attr=torch.empty(0, columns))
        empty.edge_pestat_ERE = torch.empty(0, 2)
        assert encoder(Batch.from_data_list([empty])).edge_attr.shape == (0, DIM)


def changed(batch: Batch, **attributes: Any) -> Batch:
    for key, value in attributes.items():
        batch[key] = value
    return batch


REFUSED = {
    "a node type": (lambda: TypeDictNodeEncoder(7, DIM)(batch_of(torch.tensor([0, 7, 1]))), "encoder_num_types is 7"),
    "no node types": (lambda: TypeDictNodeEncoder(0, DIM), r"dataset\.node_encoder_num_types must be at least 1"),
    "two types": (lambda: TypeDictNodeEncoder(3, DIM)(batch_of(torch.zeros(3, 2, dtype=torch.long))), "one type a row"),
    "no edge features": (lambda: LinearEdgeEncoder(1, DIM)(batch_of(torch.ones(3, 1))), "DummyEdge"),
    "an atom": (
        lambda: AtomEncoder(ATOM, DIM)(changed(molecule(), x=torch.full((3, 9), 119))),
        "Atom: x holds 119 in row 0, column 0",
    ),
    "few columns": (
        lambda: AtomEncoder(ATOM, DIM)(changed(molecule(), x=torch.zeros(3, 4))),
        r"Atom needs x \(rows, 9\).*\(3, 4\)",
    ),
    "no depth": (lambda: SyntaxNodeEncoder(DIM)(batch_of(draw(3, (98, 10030)))), "ASTNode needs node_depth"),
    "no superpixels": (
        lambda: SuperpixelNodeEncoder(VOC_NODE, DIM)(batch_of(torch.ones(3, 1))),
        r"x must be \(rows, 14\).*\(3, 1\).*edge_wt_region_boundary",
    ),
    "a width": (lambda: Degree(dim_pe=8).encoder(8, 2), "posenc_Degree needs dim_pe from 1 to 7"),
    "no degrees": (lambda: Degree(dim_pe=4).encoder(8, 2)(batch_of(torch.ones(3, 2))), "posenc_Degree.enable True"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_encoder_cannot_read_is_refused(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()
