"""Open Graph Benchmark, links: which authors of ogbl-collab will work together?"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, Statistics
from graphgps_kmip.data.ogb_loading import ogb_files, ogb_source, open_ogb
from graphgps_kmip.errors import InputError

NAME = "ogbl-collab"
NEGATIVES_SEED = 0  # the same training negatives in every run
RAW = ogb_files(
    NAME,
    "collab",
    ("edge", "num-node-list", "num-edge-list", "node-feat", "edge_weight", "edge_year"),
    tuple(f"split/time/{part}.pt" for part in ("train", "valid", "test")),
)


def load(home: str) -> GraphDataset:
    """Return the graph three times, with the pairs that train, validate and test.

    All three share features and the edges of training. ``edge_label_index`` (2, L) holds the pairs, first those that
    work together, ``edge_label`` (L,) int64 is 1 for these. Negatives are ogb's; for training, which has none, as many
    pairs without an edge are drawn.
    """
    dataset = open_ogb("link", home, NAME, RAW)
    graph, split = dataset[0], dataset.get_edge_split()
    positives = {part: pairs["edge"].long().T for part, pairs in split.items()}
    drawn = random_negatives(positives["train"], graph.num_nodes, NEGATIVES_SEED)
    negatives = {"train": drawn, **{part: split[part]["edge_neg"].long().T for part in ("valid", "test")}}
    graphs = [_with_pairs(graph, positives[part], negatives[part]) for part in ("train", "valid", "test")]
    return GraphDataset(graphs, [[0], [1], [2]])


def random_negatives(edges: Tensor, num_nodes: int, seed: int) -> Tensor:
    """Draw as many pairs of different nodes as there are edges, none of them an edge in either direction.

    Args:
        edges: (2, L).
        num_nodes: number N of nodes.
        seed: of the draw.

    Returns:
        (2, L); a pair may come twice, as it rarely does in a large graph.

    Raises:
        ValueError: every pair of nodes is an edge.
    """
    generator = torch.Generator().manual_seed(seed)
    known = _pair_number(edges, num_nodes).unique()
    if len(known[known % (num_nodes + 1) != 0]) == num_nodes * (num_nodes - 1) // 2:
        raise InputError("every pair of nodes is an edge: there are no negatives to draw")
    found = edges[:, :0]
    while found.size(1) < edges.size(1):
        pairs = torch.randint(num_nodes, edges.shape, generator=generator)
        new = (pairs[0] != pairs[1]) & ~torch.isin(_pair_number(pairs, num_nodes), known)
        found = torch.cat([found, pairs[:, new]], dim=1)
    return found[:, : edges.size(1)]


def _pair_number(pairs: Tensor, num_nodes: int) -> Tensor:
    return pairs.amin(0) * num_nodes + pairs.amax(0)


def _with_pairs(graph: Data, positives: Tensor, negatives: Tensor) -> Data:
    labels = [torch.ones(positives.size(1), dtype=torch.long), torch.zeros(negatives.size(1), dtype=torch.long)]
    pairs = torch.cat([positives, negatives], dim=1)
    return Data(x=graph.x, edge_index=graph.edge_index, edge_label_index=pairs, edge_label=torch.cat(labels))


RECORDS = (
    DatasetRecord(
        format="OGB",
        name=NAME,
        title=NAME,
        load=load,
        task_type="link_prediction",
        loss="cross_entropy",
        level="link",
        metric="hits@50",
        split="official, by time: 1,179,052 / 60,084 / 46,329 pairs; 100,000 negatives to validate and to test",
        summary="collaborations between authors: which pairs will work together?",
        features=Features(128),
        # One graph, given three times. Of the 1,285,465 published edges those of training carry messages.
        statistics=Statistics(3, 235868, 1179052, edges_once=True, directed=False),
        source=ogb_source("link", "ODC-BY"),
        raw=RAW,
    ),
)
