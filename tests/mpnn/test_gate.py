"""The gate of EquivStableLapPE: what it depends on, and what it does to the layers that have it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from graphgps_kmip.mpnn import GINE, GatedGCN
from graphgps_kmip.mpnn.message_passing import DistanceGate
from tests.mpnn.cases import DIM, call, make_graph


def test_the_gate_of_an_edge_is_a_number_of_the_distance_of_its_ends() -> None:
    torch.manual_seed(0)
    gate, graph = DistanceGate(DIM, nn.GELU).double(), make_graph(6)
    (source, target), p = graph.edge_index, graph.encoding
    expected = [torch.sigmoid(gate.mlp(((p[i] - p[j]) ** 2).sum()[None])) for j, i in zip(source, target, strict=True)]
    torch.testing.assert_close(gate(p, graph.edge_index), torch.stack(expected), rtol=1e-12, atol=1e-12)
    assert isinstance(gate.mlp[1], nn.GELU)


@pytest.mark.parametrize("kind", [GatedGCN, GINE])
def test_rotations_and_shifts_of_the_encoding_change_nothing_and_distances_do(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    layer, graph = kind(DIM, equivstable_pe=True).double().eval(), make_graph(6)
    rotation = torch.linalg.qr(torch.randn(DIM, DIM).double())[0]
    expected = call(layer, graph)
    moved = call(layer, graph, encoding=graph.encoding @ rotation + torch.randn(DIM).double())
    torch.testing.assert_close(moved, expected, rtol=1e-10, atol=1e-10)
    assert (call(layer, graph, encoding=3 * graph.encoding)[0] - expected[0]).abs().max() > 1e-4


def test_gatedgcn_updates_its_edges_without_the_gate() -> None:
    torch.manual_seed(0)
    gated, graph = GatedGCN(DIM, equivstable_pe=True).double().eval(), make_graph(6)
    free = GatedGCN(DIM).double().eval()
    free.load_state_dict(gated.state_dict(), strict=False)
    torch.testing.assert_close(call(gated, graph)[1], call(free, graph)[1], rtol=0, atol=0)
    assert not torch.equal(call(gated, graph)[0], call(free, graph)[0])


def test_the_gate_adds_no_names_to_a_layer_without_it() -> None:
    names = {name.split(".")[0] for name in GatedGCN(DIM).state_dict()}
    assert names == {*"ABCDE", "node_norm", "edge_norm"}
    assert {name for name in GatedGCN(DIM, equivstable_pe=True).state_dict() if "gate" in name} == {
        f"gate.mlp.{place}.{kind}" for place in (0, 2) for kind in ("weight", "bias")
    }
