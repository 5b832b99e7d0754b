"""Random walk probabilities of pairs of nodes, dense and sparse: records, brute force, one graph against many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip import create_model
from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention.simplified_l2 import SimplifiedL2Attention
from graphgps_kmip.encoding import rrwp as rrwp_file
from graphgps_kmip.encoding.positional_encoding import AddEncoding
from graphgps_kmip.encoding.rrwp import RRWP, batched_rrwp, diagonal, rrwp, with_rrwp
from graphgps_kmip.errors import ConfigError, InputError
from graphgps_kmip.ops.context import all_pairs, rows_in_list
from tests.recorded import TOLERANCE, load

NO_EDGES = torch.empty(2, 0, dtype=torch.long)
EXACT = RRWP(ksteps=5, precision="float64")
PPGT = replace(EXACT, channels="K+1")
PLAIN = ("cycle6", "directed", "path5", "self_loop", "star5", "triangle_isolated", "two_components")
RECORDS: dict[str, dict[str, Any]] = {f"F_encodings/rrwp_{name}_k4": {"ksteps": 4} for name in PLAIN} | {
    "F_encodings/rrwp_directed_k5_dual": {"ksteps": 5, "dual_direction": True},
    "F_encodings/rrwp_random12_k24": {"ksteps": 24},
    "F_encodings/rrwp_random12_k4_noid": {"ksteps": 4, "add_identity": False},
    "F_encodings/rrwp_random12_k4_sym": {"ksteps": 4, "sym_norm": True},
    "G_rrwp/rrwp_cycle6_k5": {"ksteps": 5},
    "G_rrwp/rrwp_directed_k5": {"ksteps": 5},
    **{f"G_rrwp/rrwp_random12_k{steps}": {"ksteps": steps} for steps in (2, 3, 5)},
}


def random_edges(num_nodes: int, num_edges: int, seed: int = 0) -> Tensor:
    """Directed; repeated edges and self loops are among them."""
    return torch.randint(num_nodes, (2, num_edges), generator=torch.Generator().manual_seed(seed))


def both_ways(edges: Tensor) -> Tensor:
    return torch.cat([edges, edges.flip(0)], dim=1)


GRAPHS = {
    "undirected": (both_ways(random_edges(12, 14)), 12),
    "directed, with loops and repeated edges": (random_edges(9, 40), 9),
    "undirected, with repeated edges": (both_ways(random_edges(5, 12)), 5),
    "many components": (both_ways(random_edges(20, 6)), 20),
    "one node": (NO_EDGES, 1),
    "a loop alone": (torch.zeros(2, 1, dtype=torch.long), 1),
    "no edges": (NO_EDGES, 4),
    "no nodes": (NO_EDGES, 0),
}
SETTINGS = {
    "GRIT": EXACT,
    "PPGT": PPGT,
    "symmetric": replace(EXACT, sym_norm=True),
    "both directions": replace(PPGT, dual_direction=True),
    "both directions, symmetric": replace(EXACT, dual_direction=True, sym_norm=True),
    "without identity": replace(EXACT, add_identity=False),
    "near pairs": replace(PPGT, k_hop=1),
    "itself alone": replace(PPGT, k_hop=0),
    "identity alone": replace(EXACT, ksteps=1),
}


def walk_by_loops(edge_index: Tensor, num_nodes: int, walks: RRWP) -> tuple[list[list[list[float]]], list[int]]:
    counts = [[0.0] * num_nodes for _ in range(num_nodes)]
    for source, target in edge_index.T.tolist():
        counts[source][target] += 1
    nodes = range(num_nodes)
    symmetric = all(counts[i][j] == counts[j][i] for i in nodes for j in nodes)
    if walks.channels == "K+1" and not walks.dual_direction and not symmetric:
        counts = [[float(counts[i][j] + counts[j][i] > 0) for j in nodes] for i in nodes]
    degrees = [int(sum(row)) for row in counts]
    values = [[[float(i == j)] if walks.add_identity else [] for j in nodes] for i in nodes]
    powers = walks.ksteps if walks.channels == "K+1" else walks.ksteps - walks.add_identity
    for matrix in [counts, [list(column) for column in zip(*counts, strict=True)]][: 1 + walks.dual_direction]:
        rows = [sum(row) for row in matrix]
        for i in nodes:
            for start in nodes:  # a walker is at node `start` after no step
                values[i][start] += [0.0] * powers
            here = [float(i == j) for j in nodes]
            for step in range(powers):
                after = [0.0] * num_nodes
                for j in nodes:
                    for to in nodes:
                        if matrix[j][to]:
                            norm = (rows[j] * rows[to]) ** 0.5 if walks.sym_norm else rows[j]
                            after[to] += here[j] * matrix[j][to] / norm if norm else 0.0
                here = after
                for j in nodes:
                    values[i][j][len(values[i][j]) - powers + step] = here[j]
    if walks.k_hop >= 0:
        for row in values:
            for j in nodes:
                if sum(row[j][: walks.k_hop + 1]) == 0:
                    row[j] = [0.0] * len(row[j])
    return values, degrees


@pytest.mark.parametrize("name", RECORDS)
def test_values_are_those_of_the_public_codes(name: str) -> None:
    record = load(name)
    degree, key = record["eval/out/deg"], "rrwp_attr" if name.startswith("F") else "rrwp_val"
    walks = RRWP(**{"channels": "K+1" if name.startswith("F") else "K", "precision": "float64"} | RECORDS[name])
    size = len(degree)
    expected = torch.zeros(size, size, walks.num_channels, dtype=torch.float64)
    # row 0 of the recorded index is the column j (key), row 1 the row i (query); pairs of zeros are left out
    column, row = record["eval/out/rrwp_index"]
    expected[row, column] = record[f"eval/out/{key}"]
    ptr = torch.tensor([0, size])
    values, degrees = batched_rrwp(record["in/edge_index"], ptr, walks)
    torch.testing.assert_close(values, expected.flatten(0, 1), rtol=TOLERANCE, atol=TOLERANCE)
    torch.testing.assert_close(diagonal(values, ptr), record["eval/out/rrwp"], rtol=TOLERANCE, atol=TOLERANCE)
    assert torch.equal(degrees, degree)
    assert values.any()


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", GRAPHS)
def test_values_are_probabilities_of_walks_step_by_step(name: str, settings: str) -> None:
    (edges, size), walks = GRAPHS[name], SETTINGS[settings]
    values, degrees = walk_by_loops(edges, size, walks)
    actual = batched_rrwp(edges, torch.tensor([0, size]), walks)
    expected = torch.tensor(values, dtype=torch.float64).view(size**2, walks.num_channels)
    torch.testing.assert_close(actual[0], expected, rtol=1e-12, atol=1e-12)
    assert actual[1].tolist() == degrees
    torch.testing.assert_close(rrwp(edges, size, walks), actual[0], rtol=0, atol=0)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("order", [list(GRAPHS), list(GRAPHS)[::-1], ["no nodes"], []])
def test_graphs_of_a_batch_have_the_values_that_each_has_alone(order: list[str], settings: str) -> None:
    walks, graphs = SETTINGS[settings], [GRAPHS[name] for name in order] * 3
    alone = [batched_rrwp(edges, torch.tensor([0, size]), walks) for edges, size in graphs]
    ptr = torch.tensor([0, *(size for _, size in graphs)]).cumsum(0)
    edges = torch.cat([NO_EDGES, *(edges + start for (edges, _), start in zip(graphs, ptr.tolist(), strict=False))], 1)
    edges = edges[:, torch.randperm(edges.size(1), generator=torch.Generator().manual_seed(1))]
    values, degrees = batched_rrwp(edges, ptr, walks)
    expected = torch.cat([torch.empty(0, walks.num_channels, dtype=walks.dtype), *(part for part, _ in alone)])
    torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(degrees, torch.cat([torch.empty(0, dtype=torch.long), *(part for _, part in alone)]))


def test_edges_out_of_their_graph_and_graphs_that_are_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="edge_index names node 3, but there are 3 nodes"):
        rrwp(torch.tensor([[0], [3]]), 3)
    with pytest.raises(InputError, match="names node -1"):
        rrwp(torch.tensor([[0], [-1]]), 3)
    with pytest.raises(InputError, match="an edge joins two graphs of the batch"):
        batched_rrwp(torch.tensor([[0], [2]]), torch.tensor([0, 2, 4]), EXACT)
    monkeypatch.setattr(rrwp_file, "GRAPH_BYTES", 4 * 4 * 5 * 8)
    assert len(rrwp(NO_EDGES, 4, EXACT)) == 16
    with pytest.raises(InputError, match=r"5 channels of all pairs of a graph of 5 nodes .*lower posenc_RRWP\.ksteps"):
        rrwp(NO_EDGES, 5, EXACT)


def batch_of(names: list[str]) -> Batch:
    graphs = [Data(x=torch.ones(size, 3), edge_index=edges, num_nodes=size) for edges, size in map(GRAPHS.get, names)]
    return Batch.from_data_list(graphs)


def test_a_transform_adds_the_values_that_a_batch_computes_by_itself() -> None:
    options: dict[str, Any] = {"ksteps": 6, "channels": "K+1", "where": "batch"}
    encoding = RRWP(**options)
    batch = batch_of(["undirected", "one node", "no edges", "directed, with loops and repeated edges"])
    added = Batch.from_data_list([AddEncoding("RRWP", **options)(graph) for graph in batch.to_data_list()])
    actual = with_rrwp(batch, encoding)
    torch.testing.assert_close(actual.rrwp, added.rrwp, rtol=1e-6, atol=1e-7)
    assert torch.equal(actual.rrwp_degree, added.rrwp_degree)
    assert actual.rrwp.dtype == added.rrwp.dtype == torch.float32
    assert with_rrwp(added, encoding).rrwp is added.rrwp


def test_values_that_are_missing_or_of_other_graphs_are_refused() -> None:
    batch = batch_of(["undirected", "one node"])
    with pytest.raises(InputError, match="RRWP needs rrwp and rrwp_degree.*set posenc_RRWP.enable True"):
        with_rrwp(batch, RRWP())
    with_rrwp(batch, RRWP(ksteps=4, where="batch"))
    with pytest.raises(InputError, match=r"rrwp must be \(145, 5\) for these graphs, got \(145, 4\)"):
        with_rrwp(batch, RRWP(ksteps=5))


def test_a_data_set_too_large_to_store_is_computed_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [Data(num_nodes=size) for size in (3, 4)]
    encoding = RRWP(ksteps=2)
    assert encoding.facts(graphs) == {"rrwp_in_batch": 0}
    monkeypatch.setattr(rrwp_file, "CACHE_BYTES", 25 * 2 * 4)
    assert encoding.facts(graphs) == {"rrwp_in_batch": 0}
    assert RRWP(ksteps=2, precision="float64").facts(graphs) == {"rrwp_in_batch": 1}
    assert RRWP(ksteps=3).facts(graphs) == {"rrwp_in_batch": 1}
    assert RRWP(ksteps=3, where="cache").facts(graphs) == {}
    assert [RRWP(where=where, in_batch=1).computed_in_batch for where in ("auto", "cache", "batch")] == [1, 0, 1]
    assert not RRWP(where="auto").computed_in_batch


NEAR = RRWP(ksteps=5, precision="float64", k_hop=2)
NEAR_SETTINGS = {
    "GRIT": NEAR,
    "PPGT": replace(NEAR, channels="K+1"),
    "PPGT, itself alone": replace(NEAR, channels="K+1", k_hop=0),
    "more hops than channels": replace(NEAR, k_hop=9),
    "symmetric": replace(NEAR, sym_norm=True, k_hop=1),
    "both directions": replace(NEAR, channels="K+1", dual_direction=True),
    "both directions, seen backwards": replace(NEAR, dual_direction=True, k_hop=6),
    "without identity": replace(NEAR, add_identity=False, k_hop=1),
}
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def batch_of_all() -> tuple[Tensor, Tensor]:
    ptr = torch.tensor([0, *(size for _, size in GRAPHS.values())]).cumsum(0)
    return torch.cat([edges + start for (edges, _), start in zip(GRAPHS.values(), ptr, strict=False)], dim=1), ptr


@pytest.mark.parametrize("settings", NEAR_SETTINGS)
def test_near_pairs_have_the_values_of_the_dense_form_and_all_others_are_zero_there(settings: str) -> None:
    walks, (edges, ptr) = NEAR_SETTINGS[settings], batch_of_all()
    dense, degrees = batched_rrwp(edges, ptr, walks)
    values, index, actual = rrwp_file.sparse_rrwp(edges, ptr, replace(walks, sparse=True))
    near = dense[:, : walks.k_hop + 1].sum(1) > 0
    assert torch.equal(index, all_pairs(ptr)[:, near])
    torch.testing.assert_close(values, dense[near], rtol=1e-12, atol=1e-12)
    assert torch.equal(actual, degrees)
    assert not dense[~near].any()
    torch.testing.assert_close(diagonal(values, ptr, index), diagonal(dense, ptr), rtol=1e-12, atol=1e-12)


def test_a_graph_too_large_for_all_pairs_is_computed_and_a_list_that_is_too_large_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, ptr = both_ways(torch.stack([torch.arange(199), torch.arange(1, 200)])), torch.tensor([0, 200])
    walks = replace(NEAR, sparse=True)
    monkeypatch.setattr(rrwp_file, "GRAPH_BYTES", 200 * 5 * walks.pair_bytes)
    with pytest.raises(InputError, match="a graph of 200 nodes take"):
        batched_rrwp(path, ptr, replace(walks, sparse=False))
    assert rrwp_file.sparse_rrwp(path, ptr, walks)[1].size(1) == 200 * 5 - 6
    with pytest.raises(InputError, match=r"within 3 hops of a graph of 200 nodes .* lower posenc_RRWP\.k_hop"):
        rrwp_file.sparse_rrwp(path, ptr, replace(walks, k_hop=3))


def graph(nodes: int) -> Data:
    torch.manual_seed(nodes)
    edges = both_ways(torch.randint(nodes, (2, nodes)))
    attr = torch.randn(edges.size(1), 4, dtype=torch.float64)
    x = torch.randn(nodes, 3, dtype=torch.float64)
    return Data(x=x, pos=x[:, :2].clone(), edge_index=edges, edge_attr=attr, y=torch.zeros(nodes, dtype=torch.long))


def model_of(network: str, sparse: bool, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    channels, k_hop = settings.pop("channels", "K+1"), settings.pop("k_hop", 2)
    steps = {"where": "batch", "ksteps": 4, "precision": "float64", "channels": channels, "k_hop": k_hop}
    keys = {f"posenc_RRWP.{key}": value for key, value in (steps | {"sparse": sparse}).items()}
    keys |= {"gnn.head": "linear_node"} | {key.replace("__", "."): value for key, value in settings.items()}
    return create_model("", 3, 2, network=network, edge_dim=4, num_layers=2, dim=8, num_heads=2, settings=keys).double()


def outcome(model: nn.Module, batch: Batch) -> list[Tensor]:
    prediction = model(batch)[0]
    return [prediction, *torch.autograd.grad(prediction.square().sum(), list(model.parameters()), allow_unused=True)]


PPGT_NETWORK = {
    "gt__sl2__window": 1,
    "ppgt__stem_hidden": [8],
    "ppgt__pair_features": "location+inverse_order+inverse_degree",
    "ppgt__node_features": "rrwp+log_degree+log_order+location",
}


@pytest.mark.parametrize("options", [{}, {"k_hop": 3}, {"k_hop": 3, "gt__sl2__window": 2}, {"gt__sl2__urpe": False}])
def test_ppgt_over_near_pairs_equals_ppgt_with_a_window_over_all(options: dict[str, Any]) -> None:
    dense, sparse = (model_of("PPGT", is_sparse, **PPGT_NETWORK | options) for is_sparse in (False, True))
    batch = Batch.from_data_list([graph(9), graph(1), graph(14)])
    keys = batch.keys()
    expected = outcome(dense, batch.clone())
    for actual, reference in zip(outcome(sparse, batch), expected, strict=True):
        assert (actual is None) == (reference is None)
        if actual is not None:
            torch.testing.assert_close(actual, reference, **CLOSE)
    assert set(batch.keys()) <= {*keys, "rrwp", "rrwp_index", "rrwp_degree"}
    wider = model_of("PPGT", False, **PPGT_NETWORK | options | {"gt__sl2__window": -1})
    everything = wider(Batch.from_data_list([graph(9), graph(1), graph(14)]))[0]
    assert (everything - expected[0]).abs().max() > 1e-6, "the window leaves pairs out"


def test_grit_reads_near_pairs_alone_with_the_features_of_the_dense_form() -> None:
    dense, sparse = (
        model_of("GritTransformer", is_sparse, channels="K", dataset__node_encoder_name="LinearNode+RRWP").eval()
        for is_sparse in (False, True)
    )
    batch = Batch.from_data_list([graph(9), graph(1), graph(14)])
    encoded = [model.encoder(batch.clone()) for model in (dense, sparse)]
    near = encoded[1].pair_index
    row = rows_in_list(all_pairs(batch.ptr), *near, batch.num_nodes)
    torch.testing.assert_close(encoded[1].pair_attr, encoded[0].pair_attr[row], **CLOSE)
    torch.testing.assert_close(encoded[1].x, encoded[0].x, **CLOSE)
    assert near.size(1) < len(encoded[0].pair_attr) / 2


def test_lists_are_precomputed_joined_in_batches_and_not_taken_for_dense_ones() -> None:
    options = {"ksteps": 4, "k_hop": 1, "precision": "float64", "channels": "K+1"}
    graphs = [AddEncoding("RRWP", sparse=True, **options)(graph(size)) for size in (9, 14)]
    batch, encoding = Batch.from_data_list(graphs), RRWP(sparse=True, **options)
    assert torch.equal(batch.rrwp_index, torch.cat([graphs[0].rrwp_index, graphs[1].rrwp_index + 9], dim=1))
    assert with_rrwp(batch, encoding) is batch
    assert "sparse" not in RRWP(**options).settings(), "values on disk keep their key"
    assert encoding.settings()["sparse"]
    with pytest.raises(InputError, match=r"check posenc_RRWP\.ksteps, channels and sparse"):
        with_rrwp(batch, RRWP(**options))
    with pytest.raises(InputError, match="rrwp_degree and rrwp_index, but"):
        with_rrwp(Batch.from_data_list([AddEncoding("RRWP", **options)(graph(9))]), encoding)


def test_settings_that_need_other_pairs_are_one_clear_line() -> None:
    with pytest.raises(ConfigError, match="set k_hop to 0 or more"):
        RRWP(sparse=True)
    for window in (-1, 2):
        with pytest.raises(ConfigError, match="set the window between 1 and k_hop - 1"):
            model_of("PPGT", True, **PPGT_NETWORK | {"gt__sl2__window": window})
    with pytest.raises(ConfigError, match="subgraph_encoder makes features of all pairs"):
        model_of("PPGT", True, **PPGT_NETWORK, ppgt__subgraph_encoder="I2GIN")
    encoding = RRWP(ksteps=4, k_hop=2, sparse=True, where="batch", precision="float64")
    batch = with_rrwp(Batch.from_data_list([graph(9)]), encoding)
    batch.pair_attr = torch.randn(3, 8).double()
    attention = SimplifiedL2Attention(8, 2, window=1).double()
    with pytest.raises(InputError, match="pair_index has others"):
        attention(torch.randn(9, 8).double(), GraphContext.from_data(batch))
    directed = graph(9)
    directed.edge_index, directed.edge_attr = torch.tensor([[0], [1]]), directed.edge_attr[:1]
    model = model_of("PPGT", True, **PPGT_NETWORK, channels="K")
    with pytest.raises(InputError, match=r"not among the pairs of rrwp_index"):
        model(Batch.from_data_list([directed]))
