"""Subgraphs around nodes (train.sampler node2subgraph): nodes of one graph classified as graphs, by their k-hop balls.

The sampling of the public code of PPGT (Ma et al. 2025) for ogbn-arxiv. There all subgraphs are drawn and stored before
training; here each is drawn when it is read, by its seed and node alone: the same in every epoch and every process.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data.dataset import SPLITS, GraphDataset
from graphgps_kmip.data.dataset_info import LEVELS, summarize
from graphgps_kmip.data.dataset_record import DatasetRecord
from graphgps_kmip.data.node_loader import NODE2SUBGRAPH
from graphgps_kmip.data.partition import InEdges, inside, part_of
from graphgps_kmip.errors import InputError


class NodeSubgraphs(Sequence[Data]):
    """The subgraph around each node of one graph: the nodes within some hops of it, and all edges among them.

    Hops go along the edges and against them, and are added whole while there is room; of the first without room for
    all of its nodes, as many as fit are drawn, all sets of them equally likely. Edges keep their directions.

    Args:
        graph (Data): One graph with ``y``; is not changed, and not copied.
        num_hops (int, optional): Hops around the node, at least 1 (`train.subgraph_hops`). (default: 2)
        max_nodes (int, optional): Nodes of a subgraph at most, with that in its centre (`train.subgraph_nodes`).
            (default: 250)
        seed (int, optional): Of the draws. (default: 0)

    Shapes:
        Subgraph i of n nodes, in increasing order: their rows of all attributes of nodes, ``edge_index`` (2, e) and
        those of edges; ``y`` (1,) or (1, columns), the label of node i; ``target_mask`` (n,), True at node i.

    Raises:
        InputError: num_hops or max_nodes below 1.

    Cost: of a subgraph, the edges of its nodes, and N numbers of working memory. Nothing is kept.
    """

    drawn_when_read = True  # there are many and they come from one graph: what is computed of them is not stored

    def __init__(self, graph: Data, num_hops: int = 2, max_nodes: int = 250, seed: int = 0) -> None:
        if num_hops < 1 or max_nodes < 1:
            raise InputError(f"train.subgraph_hops and train.subgraph_nodes: 1 or more, got {num_hops}, {max_nodes}")
        self.num_hops, self.max_nodes, self.seed, self.y = num_hops, max_nodes, seed, graph.y
        self.graph = copy.copy(graph)
        for key in {"y", *(f"{split}_mask" for split in SPLITS)} & set(graph.keys()):
            del self.graph[key]
        # the second by their sources: what it calls sources are targets
        self.edges = [InEdges(index, graph.num_nodes) for index in (graph.edge_index, graph.edge_index.flip(0))]

    def __len__(self) -> int:
        return self.graph.num_nodes

    def __getitem__(self, index: int) -> Data:
        node = range(len(self))[index]  # counts from the end, too
        nodes = self._ball(node)
        fewest = min(self.edges, key=lambda edges: int((edges.first[nodes + 1] - edges.first[nodes]).sum()))
        part = part_of(self.graph, nodes, inside(fewest, nodes, len(self)))
        part.y, part.target_mask = self.y[node : node + 1], nodes == node
        return part

    def _ball(self, node: int) -> Tensor:
        """Return the nodes of a subgraph, (n,), in increasing order."""
        found = newest = torch.tensor([node])
        for _ in range(self.num_hops):
            around = torch.cat([edges.source[edges.of(newest)[0]] for edges in self.edges]).unique()
            newest = around[~torch.isin(around, found)]
            room = self.max_nodes - len(found)
            if len(newest) > room:
                rng = np.random.default_rng((self.seed, node))
                newest = newest[torch.from_numpy(rng.choice(len(newest), room, replace=False))]
            found = torch.cat([found, newest])
            if len(newest) == 0 or len(found) == self.max_nodes:
                break
        return found.sort().values


def around_nodes(
    dataset: GraphDataset, record: DatasetRecord, num_hops: int = 2, max_nodes: int = 250, seed: int = 0
) -> GraphDataset:
    """Return the subgraphs around all nodes of a data set of one graph, divided as its nodes are.

    What is said of the data (`GraphDataset.summary`) is of the one graph.

    Args:
        dataset: one graph with the masks of its splits; is not changed.
        record: of the data set.
        num_hops: see `NodeSubgraphs`.
        max_nodes: likewise.
        seed: likewise.

    Raises:
        InputError: not the nodes of one graph have labels; or see `NodeSubgraphs`.
    """
    if record.level != "node":
        raise InputError(
            f"train.sampler: {NODE2SUBGRAPH} takes the subgraph around each node of one graph, and of {record.title} "
            f"{LEVELS[record.level]} have labels: set full_batch"
        )
    graph = dataset.graphs[0]
    splits = [graph[f"{split}_mask"].nonzero().squeeze(1) for split in SPLITS]
    summary = dataset.summary or summarize(dataset, record)
    return GraphDataset(NodeSubgraphs(graph, num_hops, max_nodes, seed), splits, summary)
