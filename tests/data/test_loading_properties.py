"""Properties of loading for data sets of any shape: one-node, edgeless graphs, large batches, small node budgets.

Whatever the graphs, the batch size and the number of processes: every graph comes once, as it was, and is the only one
that its rows of a batch belong to.
"""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from graphgps_kmip.data import GraphDataset, GraphLoader
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
        for key in ("x", "edge_index", "edge_attr", "y", "degree"):
            torch.testing.assert_close(one[key], graphs[number][key], rtol=0, atol=0)


def degrees(graphs: list[Data]) -> list[dict[str, torch.Tensor]]:
    return [{"degree": torch.bincount(one.edge_index[1], minlength=one.num_nodes).float()} for one in graphs]


@given(GRAPHS, st.integers(1, 20), st.integers(0, 3), st.booleans(), st.integers(1, 3))
@QUICK
def test_every_graph_comes_once_and_as_it_was_with_its_encoding(
    graphs: list[Data], batch_size: int, epoch: int, shuffle: bool, world_size: int
) -> None:
    numbered(graphs)
    graphs = encoded(GraphDataset(graphs), [Encoding("Degrees", {}, degrees)], None, 1).graphs
    batches = list(with_node_budget(GraphLoader(graphs, 4, 3, shuffle), batch_size))
    assert all(batch.num_nodes <= batch_size or batch.num_graphs == 1 for batch in batches)
    check_complete(batches, graphs)
    batches = []
    for rank in range(world_size):
        loader = GraphLoader(graphs, batch_size, 3, shuffle, rank=rank, world_size=world_size)
        loader.set_epoch(epoch)
        own = list(loader)
        assert len(own) == len(loader) == -(-len(graphs) // batch_size)
        assert all("filler" in batch or batch.num_graphs <= batch_size for batch in own)
        batches += own
    check_complete(batches, graphs)
