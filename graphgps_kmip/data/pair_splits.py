"""Splits of pairs of nodes: edges that are hidden and predicted (link prediction), or labelled edges of one graph."""

from __future__ import annotations

import copy
import logging
import random
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import RandomLinkSplit
from torch_geometric.utils import is_undirected

from graphgps_kmip.data.dataset import SPLITS, GraphDataset, Splits
from graphgps_kmip.data.splits import random_split
from graphgps_kmip.errors import DataError, InputError


def divide_links(
    dataset: GraphDataset,
    fractions: Sequence[float],
    seed: int = 0,
    negatives: float = 1.0,
    supervision: float = 0.0,
) -> GraphDataset:
    """Return each graph three times, with the pairs that train, validate and test, by torch_geometric's split.

    ``edge_index`` holds the edges that carry messages: those of training, in the test those of validation, too. An edge
    and its reverse stay together. ``edge_label_index`` (2, L) holds edges that are predicted and pairs without an edge,
    ``edge_label`` (L,) is 1 and 0. Self loops and repeated edges are removed first: a copy would tell the label.

    Args:
        dataset: graphs without a split.
        fractions: shares of the edges that train, validate and test.
        seed: of the draws.
        negatives: pairs without an edge for each edge that is predicted (`dataset.edge_negative_sampling_ratio`).
        supervision: share of the training edges that are predicted and carry no messages; 0: all do both (1 -
            `dataset.edge_message_ratio` with `dataset.edge_train_mode` disjoint).
    """
    if dataset.splits is not None:
        raise DataError(
            "dataset.task link_pred divides the edges of each graph: put the graphs into one folder, without a split"
        )
    parts: dict[str, list[Data]] = {split: [] for split in SPLITS}
    dense, state = 0, random.getstate()  # torch_geometric draws by both generators; those of the run must not move
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed), random.seed(seed)
        for number in range(len(dataset)):
            graph = _without_copies(dataset.graphs[number])
            both_ways = is_undirected(graph.edge_index, num_nodes=graph.num_nodes)
            divide = RandomLinkSplit(
                num_val=float(fractions[1]),
                num_test=float(fractions[2]),
                is_undirected=both_ways,
                neg_sampling_ratio=negatives,
                disjoint_train_ratio=supervision,
            )
            try:
                with warnings.catch_warnings(record=True, action="always") as caught:
                    divided = divide(graph)
            except ValueError as error:
                random.setstate(state)
                raise DataError(f"{dataset.place(number)}: {graph.num_edges} edges are too few to divide") from error
            dense += bool(caught)
            for split, part in zip(SPLITS, divided, strict=True):
                pairs = part.edge_label_index
                if both_ways:  # edges come with the smaller node first, pairs without an edge do not
                    pairs = torch.where(torch.rand(pairs.size(1)) < 0.5, pairs, pairs.flip(0))
                part.edge_label_index, part.edge_label = pairs, part.edge_label.long()
                parts[split].append(part)
    random.setstate(state)
    if dense:
        text = "dataset.edge_negative_sampling_ratio %g: %d of %d graphs have fewer pairs without an edge"
        logging.warning(text, negatives, dense, len(dataset))
    for split, graphs in parts.items():
        if not any(bool(graph.edge_label.any()) for graph in graphs):
            raise InputError(f"dataset.split: the {split} split of {len(graphs)} graphs has no edges: give it more")
    return _stack(list(parts.values()), dataset.files)


def divide_labels(
    dataset: GraphDataset, fractions: Sequence[float], seed: int = 0, split: Splits | None = None
) -> GraphDataset:
    """Return the one graph three times, with the labelled pairs that train, validate and test; ``split`` or a draw.

    All edges carry messages in all three.
    """
    graph, parts = dataset.graphs[0], []
    for rows in split or random_split(graph.edge_label_index.size(1), fractions, seed):
        part = copy.copy(graph)
        part.edge_label_index, part.edge_label = graph.edge_label_index[:, rows], graph.edge_label[rows]
        parts.append([part])
    return _stack(parts, dataset.files)


def _without_copies(graph: Data) -> Data:
    """Return a graph with each edge once, its first copy, without self loops and labels of pairs."""
    graph = copy.copy(graph)
    source, target = graph.edge_index
    number, first = (source * graph.num_nodes + target).unique(return_inverse=True)
    kept = torch.full((len(number),), len(source)).scatter_reduce_(0, first, torch.arange(len(source)), "amin")
    kept = kept[source[kept] != target[kept]].sort().values
    graph.edge_index = graph.edge_index[:, kept]
    if isinstance(graph.edge_attr, Tensor):
        graph.edge_attr = graph.edge_attr[kept]
    for key in ("edge_label", "edge_label_index"):
        if key in graph:
            del graph[key]
    return graph


def _stack(parts: Sequence[Sequence[Data]], files: Sequence[str] | None) -> GraphDataset:
    count = len(parts[0])
    numbers = torch.arange(3 * count).split(count)
    return GraphDataset([graph for part in parts for graph in part], numbers, files=files and [*files] * 3)
