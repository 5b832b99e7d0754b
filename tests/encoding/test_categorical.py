"""Encoders of molecules, syntax trees and nodes without features."""

from __future__ import annotations

import pytest
import torch
from ogb.graphproppred.mol_encoder import AtomEncoder as OgbAtom
from ogb.graphproppred.mol_encoder import BondEncoder as OgbBond
from torch import nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding import (
    AtomEncoder,
    BondEncoder,
    ConstantNodeEncoder,
    SyntaxEdgeEncoder,
    SyntaxNodeEncoder,
)
from graphgps_kmip.encoding.molecule import ATOM, BOND

DIM = 5
EDGES = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])


def draw(rows: int, sizes: tuple[int, ...]) -> torch.Tensor:
    """Return integers that reach the last value of every column."""
    values = torch.stack([torch.randint(size, (rows,)) for size in sizes], dim=1)
    values[0] = torch.tensor(sizes) - 1
    return values


def molecule() -> Batch:
    return Batch.from_data_list([Data(x=draw(3, ATOM), edge_index=EDGES, edge_attr=draw(4, BOND))])


def program() -> Batch:
    graph = Data(x=draw(3, (98, 10030)), edge_index=EDGES, edge_attr=draw(4, (2, 2)))
    graph.node_depth = torch.tensor([[0], [20], [57]])
    return Batch.from_data_list([graph])


@pytest.mark.parametrize(("ours", "ogbs", "vocabulary"), [(AtomEncoder, OgbAtom, ATOM), (BondEncoder, OgbBond, BOND)])
def test_atoms_and_bonds_are_encoded_as_by_ogb_whose_checkpoints_fit(
    ours: type[nn.Module], ogbs: type[nn.Module], vocabulary: tuple[int, ...]
) -> None:
    ours, ogbs = ours(vocabulary, DIM).double(), ogbs(DIM).double()
    ours.load_state_dict(ogbs.state_dict())
    batch, key = molecule(), "x" if vocabulary is ATOM else "edge_attr"
    raw = batch[key].clone()
    torch.testing.assert_close(ours(batch)[key], ogbs(raw))


def test_molecule_tables_start_with_xaviers_spread() -> None:
    tables = AtomEncoder(ATOM, DIM).atom_embedding_list
    for table, size in zip(tables, ATOM, strict=True):
        assert float(table.weight.detach().abs().max()) <= (6 / (size + DIM)) ** 0.5


def test_a_node_of_a_syntax_tree_is_the_sum_of_type_attribute_and_capped_depth() -> None:
    encoder, batch = SyntaxNodeEncoder(DIM).double(), program()
    (kind, attribute), depth = batch.x.T, batch.node_depth.clone()
    weights = encoder.type_encoder.weight, encoder.attribute_encoder.weight, encoder.depth_encoder.weight
    wanted = weights[0][kind] + weights[1][attribute] + weights[2][[0, 20, 20]]
    torch.testing.assert_close(encoder(batch).x, wanted)
    assert torch.equal(batch.node_depth, depth), "the depths themselves stay"


def test_an_edge_of_a_syntax_tree_is_the_sum_of_type_and_direction() -> None:
    encoder, batch = SyntaxEdgeEncoder(DIM).double(), program()
    kind, direction = batch.edge_attr.T
    wanted = encoder.embedding_type.weight[kind] + encoder.embedding_direction.weight[direction]
    batch.edge_attr = batch.edge_attr.float()  # as ogb's augment_edge makes it
    torch.testing.assert_close(encoder(batch).edge_attr, wanted)


def test_nodes_without_features_get_the_same_vector() -> None:
    encoder = ConstantNodeEncoder(DIM)
    batch = Batch.from_data_list([Data(num_nodes=n, edge_index=torch.empty(2, 0).long()) for n in (2, 3)])
    x = encoder(batch).x
    torch.testing.assert_close(x, encoder.encoder.weight.expand(5, DIM), rtol=0, atol=0)


def test_gradients_reach_every_table_that_was_looked_up() -> None:
    for encoder, batch, key in (
        (AtomEncoder(ATOM, DIM), molecule(), "x"),
        (BondEncoder(BOND, DIM), molecule(), "edge_attr"),
        (SyntaxNodeEncoder(DIM), program(), "x"),
        (SyntaxEdgeEncoder(DIM), program(), "edge_attr"),
        (ConstantNodeEncoder(DIM), program(), "x"),
    ):
        (encoder(batch)[key] * torch.arange(1.0, DIM + 1)).sum().backward()
        assert all(bool(parameter.grad.any()) for parameter in encoder.parameters())


def test_a_graph_without_edges_gets_an_empty_encoding() -> None:
    none = Data(x=torch.zeros(1, 9).long(), edge_index=torch.empty(2, 0).long(), edge_attr=torch.empty(0, 3).long())
    assert BondEncoder(BOND, DIM)(Batch.from_data_list([none])).edge_attr.shape == (0, DIM)


@pytest.mark.parametrize(("value", "column"), [(-1, 0), (119, 0), (2, 8)])
def test_a_value_outside_its_vocabulary_is_named(value: int, column: int) -> None:
    batch = molecule()
    batch.x[1, column] = value
    with pytest.raises(ValueError, match=rf"Atom: x holds {value} in row 1, column {column}"):
        AtomEncoder(ATOM, DIM)(batch)


def test_what_an_encoder_cannot_read_is_refused() -> None:
    batch = molecule()
    batch.x = batch.x[:, :4]
    with pytest.raises(ValueError, match=r"Atom needs x \(rows, 9\).*\(3, 4\)"):
        AtomEncoder(ATOM, DIM)(batch)
    batch.edge_attr = None
    for name, encoder in (("Bond", BondEncoder(BOND, DIM)), ("ASTEdge", SyntaxEdgeEncoder(DIM))):
        with pytest.raises(ValueError, match=f"{name} needs edge features"):
            encoder(batch)
    with pytest.raises(ValueError, match="ASTNode needs node_depth"):
        SyntaxNodeEncoder(DIM)(batch)
    batch = program()
    batch.node_depth[0] = -1
    with pytest.raises(ValueError, match=r"ASTNode: node_depth holds -1 in row 0"):
        SyntaxNodeEncoder(DIM)(batch)
