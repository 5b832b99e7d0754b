"""Properties of loading for data sets of any shape: one-node, edgeless graphs, large batches, small node budgets.

Whatever the graphs, the batch size and the number of processes: every graph comes once, as it was, and is the only one
that its rows of a batch belong to.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from graphgps_kmip.data import DataError, DatasetInfo, DatasetRecord, GraphDataset, GraphLoader, make_loaders
from graphgps_kmip.data.loaders import with_node_budget
from graphgps_kmip.data.precomputed_encodings import Encoding, encoded

QUICK = settings(max_examples=40, deadline=None)


@st.composite
def graph(draw: st.DrawFn) -> Data:
    """Draw a graph of 1 to 6 nodes: edgeless, with isolated nodes, self-loops and parallel edges among others."""
    nodes = draw(st.integers(1, 6))
    ends = st.integers(0, nodes - 1)
    edges = draw(st.lists(st.tuples(ends, ends), max_size=8))
    index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T.contiguous()
    features = draw(st.lists(st.floats(-5, 5, width=32), min_size=2 * nodes, max_size=2 * nodes))
    x = torch.tensor(features).reshape(nodes, 2)
    attributes = torch.arange(index.size(1), dtype=torch.float)[:, None]
    return Data(x=x, edge_index=index, edge_attr=attributes, y=torch.tensor([draw(st.integers(0, 2))]))


GRAPHS = st.lists(graph(), min_size=1, max_size=9)


def numbered(graphs: list[Data]) -> list[Data]:
    for number, one in enumerate(graphs):
        one.number = torch.tensor([number])
    return graphs


def unpacked(batches: list[Batch]) -> dict[int, Data]:
    """Return the graphs of batches by their numbers; fillers do not count."""
    found: dict[int, Data] = {}
    for batch in batches:
        if "filler" in batch:
            continue
        assert batch.edge_index.size(0) == 2
        assert batch.batch.tolist() == sorted(batch.batch.tolist())
        for one in batch.to_data_list():
            assert int(one.number) not in found, "a graph came twice"
            found[int(one.number)] = one
    return found


def check_complete(batches: list[Batch], graphs: list[Data]) -> None:
    found = unpacked(batches)
    assert sorted(found) == list(range(len(graphs)))
    for number, one in found.items():
        for key in ("x", "edge_index", "edge_attr", "y"):
            torch.testing.assert_close(one[key], graphs[number][key], rtol=0, atol=0)


@given(GRAPHS, st.integers(1, 20), st.integers(0, 3), st.booleans(), st.integers(1, 3))
@QUICK
def test_every_graph_comes_once_and_as_it_was(
    graphs: list[Data], batch_size: int, epoch: int, shuffle: bool, world_size: int
) -> None:
    numbered(graphs)
    batches = []
    for rank in range(world_size):
        loader = GraphLoader(graphs, batch_size, 3, shuffle, rank=rank, world_size=world_size)
        loader.set_epoch(epoch)
        own = list(loader)
        assert len(own) == len(loader) == -(-len(graphs) // batch_size)
        assert all("filler" in batch or batch.num_graphs <= batch_size for batch in own)
        batches += own
    check_complete(batches, graphs)


@given(GRAPHS, st.integers(1, 40), st.booleans())
@QUICK
def test_a_node_budget_bounds_every_batch_but_those_of_one_larger_graph(
    graphs: list[Data], max_nodes: int, shuffle: bool
) -> None:
    numbered(graphs)
    batches = list(with_node_budget(GraphLoader(graphs, 4, 3, shuffle), max_nodes))
    assert all(batch.num_nodes <= max_nodes or batch.num_graphs == 1 for batch in batches)
    check_complete(batches, graphs)


@given(st.lists(graph(), min_size=3, max_size=9), st.integers(1, 20))
@QUICK
def test_the_three_parts_hold_their_own_graphs_and_an_empty_one_is_refused(graphs: list[Data], batch_size: int) -> None:
    numbered(graphs)
    record = DatasetRecord("mine", list, "classification", title="Mine")
    first = len(graphs) - 2
    dataset = GraphDataset(graphs, (range(first), [first], [first + 1]))
    info = DatasetInfo.of(dataset, record)
    assert (info.sizes, info.dim_in, info.dim_edge) == ((first, 1, 1), 2, 1)
    assert info.max_nodes == max(one.num_nodes for one in graphs)
    loaders = make_loaders(dataset, "graph", batch_size, seed=0)
    parts = [sorted(unpacked(list(loader))) for loader in loaders]
    assert parts == [list(range(first)), [first], [first + 1]]
    for empty in range(3):
        splits = [[0], [1], [2]]
        splits[empty] = []
        with pytest.raises(DataError, match=f"Mine: the {('train', 'val', 'test')[empty]} split is empty"):
            DatasetInfo.of(GraphDataset(graphs, splits), record)


def degrees(graphs: list[Data]) -> list[dict[str, torch.Tensor]]:
    return [{"degree": torch.bincount(one.edge_index[1], minlength=one.num_nodes).float()} for one in graphs]


@given(GRAPHS, st.integers(1, 20))
@QUICK
def test_an_encoding_follows_its_nodes_into_the_batch(graphs: list[Data], batch_size: int) -> None:
    numbered(graphs)
    whole = encoded(GraphDataset(graphs), [Encoding("Degrees", {}, degrees)], None, 1)
    for batch in GraphLoader(whole.graphs, batch_size):
        counted = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes).float()
        torch.testing.assert_close(batch.degree, counted, rtol=0, atol=0)


@given(GRAPHS)
@settings(max_examples=5, deadline=None)
def test_processes_give_the_batches_that_the_main_process_gives(graphs: list[Data]) -> None:
    numbered(graphs)
    alone = list(GraphLoader(graphs, 2, 3, True))
    check_complete(list(GraphLoader(graphs, 2, 3, True, num_workers=1)), graphs)
    for one, other in zip(alone, GraphLoader(graphs, 2, 3, True, num_workers=1), strict=True):
        assert one.number.tolist() == other.number.tolist()
        torch.testing.assert_close(one.edge_index, other.edge_index, rtol=0, atol=0)
