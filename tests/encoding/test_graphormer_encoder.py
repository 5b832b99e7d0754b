"""Graphormer's degree embeddings and attention bias: brute force over pairs, laws, options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphgps_kmip.common.node_pairs import all_pairs
from graphgps_kmip.compat.public_faults import PaddedPathsEncoder
from graphgps_kmip.encoding.graphormer_bias import (
    UNREACHABLE,
    GraphormerEncoder,
    GraphToken,
    in_and_out_degrees,
    path_types,
    shortest_distances,
)

HEADS, DIM = 3, 5
KINDS = (GraphormerEncoder, PaddedPathsEncoder)
SIZES = {"num_spatial_types": 5, "num_in_degrees": 3, "num_out_degrees": 4}
LONGEST = 4  # one less than there are spatial types


def graph(num_nodes: int, num_edges: int, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(num_nodes, (2, num_edges), generator=generator)
    types = torch.randint(6, (num_edges,), generator=generator)
    x = torch.randn(num_nodes, DIM, generator=generator, dtype=torch.float64)
    incoming, outgoing = in_and_out_degrees(edges, num_nodes)
    return Data(
        x=x,
        edge_index=edges,
        in_degrees=incoming,
        out_degrees=outgoing,
        spatial_types=shortest_distances(edges, num_nodes),
        path_types=path_types(edges, num_nodes, types, LONGEST),
    )


def encoder(kind: type[GraphormerEncoder] = GraphormerEncoder, **options: Any) -> GraphormerEncoder:
    return kind(DIM, None, HEADS, **{**SIZES, "num_edge_types": 6, **options}).double()


GRAPHS = [graph(9, 14), graph(1, 0), graph(4, 0, 1), graph(12, 18, 2)]


def bias_of_pair(module: GraphormerEncoder, distance: int, types: list[int]) -> Tensor:
    farthest = SIZES["num_spatial_types"] - 1
    row = farthest + 1 if distance == UNREACHABLE else min(distance, farthest)
    bias = module.spatial_encoder.weight[row]
    padding = 0 if isinstance(module, PaddedPathsEncoder) else -1
    kinds = [kind if kind >= 0 else padding for kind in [*types, -1]]  # one place more than edges
    places = zip(kinds, module.place_encoder.view(-1, HEADS, HEADS), strict=True)
    terms = [module.edge_encoder.weight[kind] @ matrix for kind, matrix in places if kind >= 0]
    return bias + sum(terms) / max(row, 1) if terms else bias


@pytest.mark.parametrize("kind", KINDS)
def test_every_pair_gets_the_bias_of_its_distance_and_of_the_edges_on_its_path(kind: type[GraphormerEncoder]) -> None:
    module = encoder(kind)
    out = module(Batch.from_data_list(GRAPHS))
    assert int(out.spatial_types.max()) > LONGEST
    pairs = zip(out.spatial_types.tolist(), out.path_types.tolist(), strict=True)
    expected = torch.stack([bias_of_pair(module, distance, types) for distance, types in pairs])
    torch.testing.assert_close(out.pair_attr, expected, rtol=1e-12, atol=1e-12)
    rows = [
        (i + start, j + start) for start, n in ((0, 9), (9, 1), (10, 4), (14, 12)) for i in range(n) for j in range(n)
    ]
    assert out.pair_index.T.tolist() == [list(row) for row in rows]


def test_degrees_are_added_and_large_ones_share_the_last_row() -> None:
    module, batch = encoder(), Batch.from_data_list(GRAPHS)
    before = batch.x.clone()
    out = module(batch)
    assert int(out.in_degrees.max()) > 2
    expected = [
        x + module.in_degree_encoder.weight[min(i, 2)] + module.out_degree_encoder.weight[min(o, 3)]
        for x, i, o in zip(before, out.in_degrees.tolist(), out.out_degrees.tolist(), strict=True)
    ]
    torch.testing.assert_close(out.x, torch.stack(expected), rtol=1e-12, atol=1e-12)


def test_a_graph_alone_gets_what_it_gets_in_a_batch() -> None:
    module = encoder().eval()
    together = module(Batch.from_data_list(GRAPHS))
    alone = [module(Batch.from_data_list([one])) for one in GRAPHS]
    torch.testing.assert_close(together.x, torch.cat([one.x for one in alone]))
    torch.testing.assert_close(together.pair_attr, torch.cat([one.pair_attr for one in alone]))


def test_renumbered_nodes_permute_the_bias() -> None:
    module, one, order = encoder(num_edge_types=None), GRAPHS[0], torch.randperm(9)
    incoming, outgoing = in_and_out_degrees(order[one.edge_index], 9)
    moved = Data(x=one.x[order.argsort()], in_degrees=incoming, out_degrees=outgoing)
    moved.spatial_types = shortest_distances(order[one.edge_index], 9)
    before, after = (module(Batch.from_data_list([data])) for data in (one, moved))
    torch.testing.assert_close(after.x[order], before.x)
    torch.testing.assert_close(after.pair_attr.view(9, 9, HEADS)[order][:, order], before.pair_attr.view(9, 9, HEADS))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_right_and_reach_every_parameter(kind: type[GraphormerEncoder]) -> None:
    module = encoder(kind)
    names = list(dict(module.named_parameters()))

    def bias_and_x(*values: Tensor) -> tuple[Tensor, Tensor]:
        batch = Batch.from_data_list(GRAPHS[:3])
        out = torch.func.functional_call(module, dict(zip(names, values, strict=True)), (batch,))
        return out.pair_attr, out.x

    assert torch.autograd.gradcheck(bias_and_x, tuple(module.parameters()))
    out = module(Batch.from_data_list(GRAPHS))
    (out.pair_attr.sum() + out.x.sum()).backward()
    assert all(bool(parameter.grad.any()) for parameter in module.parameters())
    assert bool(module.place_encoder.grad[-(HEADS**2) :].any()) == (kind is PaddedPathsEncoder)  # reads the last matrix


def test_without_paths_or_pairs_their_tables_are_not_there() -> None:
    assert encoder(num_edge_types=None).place_encoder is None
    module = GraphormerEncoder(DIM, None, HEADS, num_in_degrees=3, num_out_degrees=4, node_degrees_only=True).double()
    out = module(Batch.from_data_list(GRAPHS))
    assert "pair_index" not in out
    assert "pair_attr" not in out
    assert len(list(module.parameters())) == 2


def test_without_types_the_tables_for_paths_may_be_there_and_are_not_read() -> None:
    module = encoder(num_edge_types=0)
    counts = {name: parameter.numel() for name, parameter in module.named_parameters()}
    assert counts["place_encoder"] == 5 * HEADS * HEADS
    assert counts["edge_encoder.weight"] == 0
    assert counts["spatial_encoder.weight"] == 6 * HEADS
    other = encoder(num_edge_types=None)
    other.load_state_dict(module.state_dict(), strict=False)
    out = [one(Batch.from_data_list(GRAPHS)).pair_attr for one in (module, other)]
    assert torch.equal(*out)


def test_all_that_is_looked_up_is_drawn_with_a_spread_of_a_fiftieth() -> None:
    module = GraphormerEncoder(50, None, 8, num_spatial_types=20, num_in_degrees=64, num_out_degrees=64)
    token = GraphToken(2000, 2000)
    drawn = [module.in_degree_encoder.weight, module.spatial_encoder.weight, token.token, token.bias]
    assert all(abs(float(one.detach().std()) / 0.02 - 1) < 0.2 for one in drawn)


def test_degrees_are_dropped_in_training_only() -> None:
    module = encoder(input_dropout=0.5)
    trained, wanted = module(Batch.from_data_list(GRAPHS)).x, encoder()
    wanted.load_state_dict(module.state_dict())
    full = wanted(Batch.from_data_list(GRAPHS)).x
    assert torch.equal(module.eval()(Batch.from_data_list(GRAPHS)).x, full)
    torch.testing.assert_close(trained, torch.where(trained == 0, 0, 2 * full))
    assert 0.3 < float((trained == 0).double().mean()) < 0.7


def test_a_batch_keeps_its_statistics_and_the_state_survives_a_round_trip() -> None:
    module, other, batch = encoder(), encoder(), Batch.from_data_list(GRAPHS)
    before = {key: value.clone() for key, value in batch if key != "x"}
    out = module(batch)
    assert all(torch.equal(out[key], value) for key, value in before.items())
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(Batch.from_data_list(GRAPHS)).pair_attr, out.pair_attr)


def test_raw_features_are_mapped_where_no_other_encoder_is_and_autocast_is_fine() -> None:
    module, batch = GraphormerEncoder(7, DIM, HEADS, **SIZES, num_edge_types=6), Batch.from_data_list(GRAPHS)
    expected = module(batch.clone())
    with torch.autocast("cpu", torch.bfloat16):
        out = module(batch)
    assert out.x.shape == (26, 7)
    torch.testing.assert_close(out.pair_attr, expected.pair_attr, rtol=0.02, atol=0.02)


def test_data_that_is_no_batch_is_one_graph() -> None:
    module = encoder()
    expected = module(Batch.from_data_list([GRAPHS[0]]))
    out = module(GRAPHS[0].clone())
    assert torch.equal(out.pair_index, expected.pair_index)
    assert torch.equal(out.pair_attr, expected.pair_attr)


def test_all_pairs_of_graphs_without_nodes_are_none() -> None:
    assert all_pairs(torch.tensor([0, 0, 2, 2])).tolist() == [[0, 0, 1, 1], [0, 1, 0, 1]]


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("rows", [None, 0])
def test_a_table_without_rows_is_refused_by_its_key(key: str, rows: int | None) -> None:
    with pytest.raises(ValueError, match=f"posenc_GraphormerBias.{key} must be 1 or more, got {rows}"):
        encoder(**{key: rows})


def test_missing_statistics_and_parts_of_graphs_are_refused() -> None:
    with pytest.raises(ValueError, match="needs in_degrees, .* set posenc_GraphormerBias.enable True"):
        encoder()(Batch.from_data_list([Data(x=GRAPHS[0].x)]))
    part = Batch.from_data_list([GRAPHS[0]])
    part.ptr = torch.tensor([0, 8])
    with pytest.raises(ValueError, match="of 81 pairs of nodes, these graphs have 64: it needs whole graphs"):
        encoder()(part)
    with pytest.raises(ValueError, match="an edge of type 5, but dataset.edge_encoder_num_types is 2: raise it"):
        encoder(num_edge_types=2)(Batch.from_data_list(GRAPHS))
