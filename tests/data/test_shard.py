"""The shares of one graph: together they are the graph, and each knows what it must be told."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data

from graphgps_kmip.data.partition import shard_of
from tests.data.large import mesh, tangle


def sources(shards: list[Data]) -> list[torch.Tensor]:
    """Return which node each row of the sources of each share is, having sent what is to be sent."""
    count = len(shards)
    sent = [shard.x[shard.halo_rows].split(shard.halo_send.tolist()) for shard in shards]
    return [torch.cat([shards[rank].x, *(sent[other][rank] for other in range(count))]) for rank in range(count)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("graph", [mesh(), tangle()], ids=["mesh", "tangle"])
def test_the_shares_hold_every_node_and_edge_once(graph: Data, world_size: int) -> None:
    shards = [shard_of(graph, rank, world_size) for rank in range(world_size)]
    nodes = torch.cat([shard.x for shard in shards])[:, 0].long()
    edges = torch.cat([shard.edge_attr for shard in shards])[:, 0].long()
    assert sorted(nodes.tolist()) == list(range(graph.num_nodes))
    assert sorted(edges.tolist()) == list(range(graph.num_edges))
    for shard, rows in zip(shards, sources(shards), strict=True):
        assert int(shard.halo_receive.sum()) == len(rows) - shard.num_nodes
        start, end = shard.edge_index
        found = torch.stack([rows[start, 0], shard.x[end, 0]]).long()
        torch.testing.assert_close(found, graph.edge_index[:, shard.edge_attr[:, 0].long()])
        torch.testing.assert_close(shard.y, shard.x[:, 0].long() % 3)


def test_a_share_is_told_each_node_once_and_none_of_its_own() -> None:
    shards = [shard_of(tangle(), rank, 3) for rank in range(3)]
    for rows in sources(shards):
        assert len(rows.unique()) == len(rows)


def test_what_goes_out_of_one_share_comes_into_another() -> None:
    shards = [shard_of(tangle(), rank, 3) for rank in range(3)]
    sent, received = (torch.stack([shard[key] for shard in shards]) for key in ("halo_send", "halo_receive"))
    torch.testing.assert_close(sent, received.T)


def test_further_pairs_of_nodes_are_refused() -> None:
    graph = mesh()
    graph.expander_edge_index = torch.zeros(2, 1, dtype=torch.long)
    with pytest.raises(ValueError, match=r"gt\.kmip\.shard: expander_edge_index cannot be sharded"):
        shard_of(graph, 0, 2)
