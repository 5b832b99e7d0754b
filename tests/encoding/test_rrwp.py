"""Random walk probabilities of pairs of nodes: recorded values, brute force, odd graphs, one graph against many."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding import rrwp as rrwp_file
from graphgps_kmip.encoding.positional_encoding import AddEncoding
from graphgps_kmip.encoding.rrwp import RRWP, Walks, batched_rrwp, diagonal, rrwp, with_rrwp
from graphgps_kmip.errors import InputError
from tests.recorded import TOLERANCE, load

NO_EDGES = torch.empty(2, 0, dtype=torch.long)
EXACT = Walks(ksteps=5, precision="float64")
PPGT = replace(EXACT, channels="K+1")
RECORDS = {
    "F_encodings/rrwp_cycle6_k4": {"ksteps": 4},
    "F_encodings/rrwp_directed_k4": {"ksteps": 4},
    "F_encodings/rrwp_directed_k5_dual": {"ksteps": 5, "dual_direction": True},
    "F_encodings/rrwp_path5_k4": {"ksteps": 4},
    "F_encodings/rrwp_random12_k24": {"ksteps": 24},
    "F_encodings/rrwp_random12_k4_noid": {"ksteps": 4, "add_identity": False},
    "F_encodings/rrwp_random12_k4_sym": {"ksteps": 4, "sym_norm": True},
    "F_encodings/rrwp_self_loop_k4": {"ksteps": 4},
    "F_encodings/rrwp_star5_k4": {"ksteps": 4},
    "F_encodings/rrwp_triangle_isolated_k4": {"ksteps": 4},
    "F_encodings/rrwp_two_components_k4": {"ksteps": 4},
    "G_rrwp/rrwp_cycle6_k5": {"ksteps": 5},
    "G_rrwp/rrwp_directed_k5": {"ksteps": 5},
    "G_rrwp/rrwp_random12_k2": {"ksteps": 2},
    "G_rrwp/rrwp_random12_k3": {"ksteps": 3},
    "G_rrwp/rrwp_random12_k5": {"ksteps": 5},
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


def walked(edge_index: Tensor, num_nodes: int, walks: Walks) -> tuple[list[list[list[float]]], list[int]]:
    """Return value [i][j] of each channel and the degrees, by loops over edges and nodes."""
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
    walks = Walks(**{"channels": "K+1" if name.startswith("F") else "K", "precision": "float64"} | RECORDS[name])
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
    values, degrees = walked(edges, size, walks)
    found = batched_rrwp(edges, torch.tensor([0, size]), walks)
    expected = torch.tensor(values, dtype=torch.float64).view(size**2, walks.num_channels)
    torch.testing.assert_close(found[0], expected, rtol=1e-12, atol=1e-12)
    assert found[1].tolist() == degrees
    torch.testing.assert_close(rrwp(edges, size, walks), found[0], rtol=0, atol=0)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("order", [list(GRAPHS), list(GRAPHS)[::-1], ["no nodes"], []])
def test_graphs_of_a_batch_have_the_values_that_each_has_alone(order: list[str], settings: str) -> None:
    walks, graphs = SETTINGS[settings], [GRAPHS[name] for name in order] * 3
    alone = [batched_rrwp(edges, torch.tensor([0, size]), walks) for edges, size in graphs]
    ptr = torch.tensor([0, *(size for _, size in graphs)]).cumsum(0)
    edges = torch.cat([NO_EDGES, *(edges + start for (edges, _), start in zip(graphs, ptr.tolist(), strict=False))], 1)
    edges = edges[:, torch.randperm(edges.size(1), generator=torch.Generator().manual_seed(1))]
    values, degrees = batched_rrwp(edges, ptr, walks)
    expected = (
        [torch.cat([part, *parts]) for part, parts in zip(_nothing(walks), zip(*alone, strict=True), strict=True)]
        if alone
        else _nothing(walks)
    )
    torch.testing.assert_close(values, expected[0], rtol=1e-12, atol=1e-12)
    assert torch.equal(degrees, expected[1])


def _nothing(walks: Walks) -> list[Tensor]:
    return [torch.empty(0, walks.num_channels, dtype=walks.dtype), torch.empty(0, dtype=torch.long)]


def test_many_graphs_of_all_sizes_are_multiplied_in_groups_of_little_padding() -> None:
    sizes = torch.randint(0, 200, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    groups = list(rrwp_file._groups(sizes))
    assert sorted(number for group in groups for number in group) == [n for n, size in enumerate(sizes) if size]
    for group in groups:
        cells = len(group) * sizes[group[0]] ** 2
        assert len(group) == 1 or cells <= rrwp_file.CELLS
        assert cells <= 1.35 * sum(sizes[number] ** 2 for number in group) or sizes[group[0]] < 20
    assert len(groups) < 40


def test_renumbered_nodes_keep_their_values() -> None:
    edges, size = GRAPHS["directed, with loops and repeated edges"]
    order = torch.randperm(size)
    before, after = (rrwp(part, size, EXACT).view(size, size, -1) for part in (edges, order[edges]))
    torch.testing.assert_close(after[order][:, order], before, rtol=1e-12, atol=1e-12)


def test_rows_of_every_power_sum_to_one_and_powers_multiply() -> None:
    edges = both_ways(torch.stack([torch.arange(9), torch.arange(1, 10)]))
    values = rrwp(edges, 10, replace(EXACT, ksteps=7)).view(10, 10, 7)
    torch.testing.assert_close(values.sum(dim=1), torch.ones(10, 7, dtype=torch.float64))
    torch.testing.assert_close(values[..., 2] @ values[..., 3], values[..., 5])


def test_directed_graphs_are_made_undirected_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    rrwp_file._warn_of_directed_graphs.cache_clear()
    line = torch.tensor([[0, 1], [1, 2]])
    with caplog.at_level(logging.WARNING):
        assert torch.equal(rrwp(line, 3, PPGT), rrwp(both_ways(line), 3, PPGT))
        rrwp(line, 3, PPGT)
    assert [record.message for record in caplog.records if "made undirected" in record.message] != []
    assert len(caplog.records) == 1
    assert not torch.equal(rrwp(line, 3, EXACT), rrwp(both_ways(line), 3, EXACT))


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
    found = with_rrwp(batch, encoding)
    torch.testing.assert_close(found.rrwp, added.rrwp, rtol=1e-6, atol=1e-7)
    assert torch.equal(found.rrwp_degree, added.rrwp_degree)
    assert found.rrwp.dtype == added.rrwp.dtype == torch.float32
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
