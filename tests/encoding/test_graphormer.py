"""Graphormer's distances, degrees, embeddings, bias and graph token: brute force over nodes and pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphgps_kmip.compat.public_faults import PaddedPathsEncoder
from graphgps_kmip.encoding import graphormer_bias as graphormer
from graphgps_kmip.encoding.graphormer_bias import (
    NO_EDGE,
    UNREACHABLE,
    GraphormerBias,
    GraphormerEncoder,
    GraphToken,
    path_types,
    shortest_distances,
)
from graphgps_kmip.ops.context import all_pairs, first_nodes

NO_EDGES = torch.empty(2, 0, dtype=torch.long)
LINE = torch.tensor([[0, 1, 2], [1, 2, 3]])  # directed


def random_graph(num_nodes: int, num_edges: int, seed: int = 0) -> Tensor:
    """Directed; repeated edges and self-loops are among them."""
    return torch.randint(num_nodes, (2, num_edges), generator=torch.Generator().manual_seed(seed))


GRAPHS = {
    "directed": (random_graph(12, 20), 12),
    "dense": (random_graph(9, 60), 9),
    "many components": (random_graph(20, 8), 20),
    "one node": (NO_EDGES, 1),
    "a loop alone": (torch.zeros(2, 1, dtype=torch.long), 1),
    "no edges": (NO_EDGES, 4),
}


def brute_force(edge_index: Tensor, num_nodes: int) -> Tensor:
    """By powers of the adjacency matrix: the first in which a pair is not 0."""
    table = torch.full((num_nodes, num_nodes), UNREACHABLE)
    adjacency = torch.zeros(num_nodes, num_nodes)
    adjacency[edge_index[0], edge_index[1]] = 1
    reached = torch.eye(num_nodes)
    for steps in range(num_nodes):
        table[(reached > 0) & (table == UNREACHABLE)] = steps
        reached = ((reached @ adjacency) > 0).float()
    return table


@pytest.mark.parametrize("name", GRAPHS)
def test_distances_are_lengths_of_shortest_directed_paths(name: str) -> None:
    edges, num_nodes = GRAPHS[name]
    table = shortest_distances(edges, num_nodes)
    assert table.dtype == torch.int16
    assert table.view(num_nodes, num_nodes).tolist() == brute_force(edges, num_nodes).tolist()


def test_edges_that_end_in_a_node_and_that_leave_it_are_counted_apart() -> None:
    data = Data(edge_index=torch.tensor([[0, 0, 1, 1], [1, 2, 1, 2]]), num_nodes=4)
    degrees = GraphormerBias.compute(data, node_degrees_only=True, longest=0)
    assert degrees["in_degrees"].tolist() == [0, 2, 2, 0]
    assert degrees["out_degrees"].tolist() == [2, 2, 0, 0]


@pytest.mark.parametrize("name", GRAPHS)
def test_the_types_on_a_path_lead_from_its_start_to_its_end(name: str) -> None:
    edges, num_nodes = GRAPHS[name]
    if edges.size(1):
        edges = edges.unique(dim=1)
    numbers = torch.arange(edges.size(1))  # every edge a type of its own: its path can be followed
    longest = num_nodes
    table = path_types(edges, num_nodes, numbers, longest).view(num_nodes, num_nodes, longest)
    distances = brute_force(edges, num_nodes)
    for start in range(num_nodes):
        for end in range(num_nodes):
            distance = max(int(distances[start, end]), 0)
            path = table[start, end]
            assert bool((path[distance:] == NO_EDGE).all())
            if distance:
                steps = edges[:, path[:distance].long()]
                assert [start, *steps[1].tolist()] == [*steps[0].tolist(), end]


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (torch.ones(3), "needs one integer for each edge, got edge_attr .* of torch.float32: set it to False"),
        (torch.ones(3, 2, dtype=torch.long), r"got edge_attr \(3, 2\)"),
        (torch.tensor([0, -1, 2]), "edge types must be 0 to 32767, got -1 to 2"),
    ],
)
def test_edges_without_one_type_each_are_refused(types: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        path_types(LINE, 4, types, 3)


def test_too_large_graphs_and_edges_out_of_the_graph_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="names node 3, but the graph has 3 nodes"):
        shortest_distances(LINE, 3)
    monkeypatch.setattr(graphormer, "MAX_NODES", 3)
    with pytest.raises(ValueError, match="up to 3 nodes, got 4: set posenc_GraphormerBias.node_degrees_only True"):
        shortest_distances(LINE, 4)


HEADS, DIM = 3, 5
KINDS = (GraphormerEncoder, PaddedPathsEncoder)
SIZES = {"num_spatial_types": 5, "num_in_degrees": 3, "num_out_degrees": 4}
LONGEST = 4  # one less than there are spatial types


def graph(num_nodes: int, num_edges: int, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(num_nodes, (2, num_edges), generator=generator)
    types = torch.randint(6, (num_edges,), generator=generator)
    x = torch.randn(num_nodes, DIM, generator=generator, dtype=torch.float64)
    data = Data(x=x, edge_index=edges, edge_attr=types)
    return data.update(GraphormerBias.compute(data, node_degrees_only=False, longest=LONGEST))


def encoder(kind: type[GraphormerEncoder] = GraphormerEncoder, **options: Any) -> GraphormerEncoder:
    encoding = GraphormerBias(**{**SIZES, "num_edge_types": 6, "num_heads": HEADS, **options})
    return kind(encoding, DIM, None).double()


ENCODED = [graph(9, 14), graph(1, 0), graph(4, 0, 1), graph(12, 18, 2)]


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
    out = module(Batch.from_data_list(ENCODED))
    assert int(out.spatial_types.max()) > LONGEST
    pairs = zip(out.spatial_types.tolist(), out.path_types.tolist(), strict=True)
    expected = torch.stack([bias_of_pair(module, distance, types) for distance, types in pairs])
    torch.testing.assert_close(out.pair_attr, expected, rtol=1e-12, atol=1e-12)
    rows = [
        (i + start, j + start) for start, n in ((0, 9), (9, 1), (10, 4), (14, 12)) for i in range(n) for j in range(n)
    ]
    assert out.pair_index.T.tolist() == [list(row) for row in rows]


def test_degrees_are_added_and_large_ones_share_the_last_row() -> None:
    module, batch = encoder(), Batch.from_data_list(ENCODED)
    before = batch.x.clone()
    out = module(batch)
    assert int(out.in_degrees.max()) > 2
    expected = [
        x + module.in_degree_encoder.weight[min(i, 2)] + module.out_degree_encoder.weight[min(o, 3)]
        for x, i, o in zip(before, out.in_degrees.tolist(), out.out_degrees.tolist(), strict=True)
    ]
    torch.testing.assert_close(out.x, torch.stack(expected), rtol=1e-12, atol=1e-12)


def test_without_paths_or_pairs_their_tables_are_not_there() -> None:
    assert encoder(num_edge_types=0).place_encoder is None
    module = encoder(num_spatial_types=None, node_degrees_only=True)
    out = module(Batch.from_data_list(ENCODED))
    assert "pair_index" not in out
    assert "pair_attr" not in out
    assert len(list(module.parameters())) == 2


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("rows", [None, 0])
def test_a_table_without_rows_is_refused_by_its_key(key: str, rows: int | None) -> None:
    with pytest.raises(ValueError, match=f"posenc_GraphormerBias.{key} must be 1 or more, got {rows}"):
        encoder(**{key: rows})


def test_missing_statistics_and_parts_of_graphs_are_refused() -> None:
    with pytest.raises(ValueError, match="needs in_degrees, .* set posenc_GraphormerBias.enable True"):
        encoder()(Batch.from_data_list([Data(x=ENCODED[0].x)]))
    part = Batch.from_data_list([ENCODED[0]])
    part.ptr = torch.tensor([0, 8])
    with pytest.raises(ValueError, match="of 81 pairs of nodes, these graphs have 64: it needs whole graphs"):
        encoder()(part)
    with pytest.raises(ValueError, match="an edge of type 5, but dataset.edge_encoder_num_types is 2: raise it"):
        encoder(num_edge_types=2)(Batch.from_data_list(ENCODED))


TOKEN_DIM, TOKEN_HEADS = 4, 2
TOKEN_SIZES = (5, 1, 3)


def token_graph(num_nodes: int, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(10 * num_nodes + seed)
    return Data(
        x=torch.randn(num_nodes, TOKEN_DIM, generator=generator, dtype=torch.float64),
        edge_index=torch.randint(num_nodes, (2, 2 * num_nodes - 2), generator=generator),
        expander_edge_index=torch.randint(num_nodes, (2, 4), generator=generator),
        pe_EquivStableLapPE=torch.randn(num_nodes, 3, generator=generator),
    )


def batched(graphs: list[Data]) -> Batch:
    batch = Batch.from_data_list(graphs)
    batch.pair_index = all_pairs(first_nodes(batch))
    sources = batch.x[batch.pair_index[0], :TOKEN_HEADS]
    batch.pair_attr = sources - 2 * batch.x[batch.pair_index[1], :TOKEN_HEADS]
    return batch


TOKEN_GRAPHS = [token_graph(size) for size in TOKEN_SIZES]


def dense(pairs: Tensor, values: Tensor, size: int) -> Tensor:
    """Pair by pair: (size, size, H); a pair that is there twice is an error."""
    table = torch.full((size, size, values.size(1)), torch.nan, dtype=values.dtype)
    for (i, j), value in zip(pairs.T.tolist(), values, strict=True):
        assert bool(table[i, j].isnan().all())
        table[i, j] = value
    return table


def test_a_token_is_in_front_of_each_graph_and_all_others_move_up() -> None:
    module, before = GraphToken(TOKEN_DIM, TOKEN_HEADS).double(), batched(TOKEN_GRAPHS)
    out = module(before.clone())
    rows, batch = [], []
    for number, data in enumerate(TOKEN_GRAPHS):
        rows += [module.token[0], *data.x]
        batch += [number] * (data.num_nodes + 1)
    assert torch.equal(out.x, torch.stack(rows))
    assert out.batch.tolist() == batch
    assert out.ptr.tolist() == [0, 6, 8, 12]
    assert out.num_graphs == 3
    for name in ("edge_index", "expander_edge_index"):  # an edge still joins the same nodes
        assert torch.equal(out.x[out[name]], before.x[before[name]])
    ends = out.edge_index.flatten()
    assert torch.equal(out.pe_EquivStableLapPE[ends], before.pe_EquivStableLapPE[before.edge_index.flatten()])
    assert not out.pe_EquivStableLapPE[out.ptr[:-1]].any()


def test_the_bias_of_every_pair_with_a_token_is_the_tokens() -> None:
    module, before = GraphToken(TOKEN_DIM, TOKEN_HEADS).double(), batched(TOKEN_GRAPHS)
    out = module(before.clone())
    bias, bias_before = dense(out.pair_index, out.pair_attr, 12), dense(before.pair_index, before.pair_attr, 9)
    start, old = 0, 0
    for size in TOKEN_SIZES:
        block = bias[start : start + size + 1, start : start + size + 1]
        assert torch.equal(block[1:, 1:], bias_before[old : old + size, old : old + size])
        assert torch.equal(block[0], module.bias[0, :, 0].expand(size + 1, TOKEN_HEADS))
        assert torch.equal(block[:, 0], module.bias[0, :, 0].expand(size + 1, TOKEN_HEADS))
        start, old = start + size + 1, old + size
    assert int((~bias[..., 0].isnan()).sum()) == sum((size + 1) ** 2 for size in TOKEN_SIZES)


def test_data_is_one_graph_and_its_pairs_may_have_no_bias() -> None:
    data = GraphToken(TOKEN_DIM, None)(TOKEN_GRAPHS[0].clone())
    assert data.batch.tolist() == [0] * 6
    assert data.ptr.tolist() == [0, 6]
