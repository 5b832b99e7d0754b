"""Associative recall on rings: queries ask for the value of a key with the same code, wherever it is in the graph.

After the multi-query associative recall of Arora et al., Zoology: Measuring and Improving Recall in Efficient Language
Models, ICLR 2024 (arXiv 2312.04927), from sequences to graphs. Generated from a fixed seed; there are no files.
"""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import torch
from torch_geometric.data import Data

from graphgps_kmip.data.dataset import SPLITS, GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, Source, Statistics

VALUES = 4  # classes, balanced: a guess is right in 25 % of the queries
# Nodes of a graph -> signs of a code. There are 2^signs codes, at least 2 for each of the N / 2 keys of a graph.
CODE_LENGTHS = {32: 6, 64: 10, 128: 10, 256: 10, 512: 12, 1024: 12, 2048: 12, 4096: 12}
SIZES, SIZES_OF_LARGE, LARGE = (240, 60, 120), (160, 40, 80), 512  # graphs that train, validate and test
SAMPLE_SIZES = (18, 6, 6)


def load_recall(_root: str = "", *, nodes: int, sizes: tuple[int, int, int], seed: int = 0) -> GraphDataset:
    """Return rings of ``nodes`` nodes, those that train first; the same graphs and split in every run.

    Args:
        nodes: nodes N of each graph, half of them keys; a key of `CODE_LENGTHS`.
        sizes: number of graphs that train, validate and test.
        seed: of the graphs, which are drawn one after the other from a single generator.

    Shapes of a graph, see `draw_graph`: x (N, 1 + signs + 4), edge_index (2, 2 N), y (N,), three masks (N,).
    """
    graphs = _draw_graphs(nodes, sum(sizes), seed)
    return GraphDataset(graphs, torch.arange(len(graphs)).split(list(sizes)))


@cache  # further seeds of an experiment in one process need not draw them again
def _draw_graphs(nodes: int, graphs: int, seed: int) -> tuple[Data, ...]:
    rng = np.random.default_rng([seed, nodes])
    return tuple(draw_graph(rng, nodes, CODE_LENGTHS[nodes]) for _ in range(graphs))


def draw_graph(rng: np.random.Generator, nodes: int, signs: int) -> Data:
    """Draw a ring of N nodes in random order: N / 2 keys of distinct codes, N / 2 queries of the code of a random key.

    ``x`` is 1 for a key and 0 for a query, the code as ``signs`` numbers -1 or 1, and the value of a key as one-hot
    vector of 4 (0 for a query). ``y`` is the value of a node's key: its own for a key, and for a query that of the key
    with its code. ``train_mask``, ``val_mask`` and ``test_mask`` are the queries: the head ``node`` predicts these
    alone, whole graphs are divided into the three parts.
    """
    half = nodes // 2
    codes = rng.choice(2**signs, half, replace=False)
    values = rng.integers(VALUES, size=half)
    asked = rng.integers(half, size=nodes - half)  # the key of each query
    owner = np.concatenate([np.arange(half), asked])  # node -> its key
    is_key = np.arange(nodes) < half
    order = rng.permutation(nodes)
    owner, is_key = owner[order], is_key[order]
    code = 2 * (codes[owner, None] >> np.arange(signs) & 1) - 1
    shown = (values[owner, None] == np.arange(VALUES)) & is_key[:, None]
    x = torch.from_numpy(np.concatenate([is_key[:, None], code, shown], axis=1)).float()
    node = torch.arange(nodes)
    following = (node + 1) % nodes
    edges = torch.stack([torch.cat([node, following]), torch.cat([following, node])])
    queries = torch.from_numpy(~is_key)
    masks = {f"{split}_mask": queries for split in SPLITS}
    return Data(x=x, edge_index=edges, y=torch.from_numpy(values[owner]), **masks)


def _record(nodes: int, signs: int) -> DatasetRecord:
    sizes = SIZES if nodes < LARGE else SIZES_OF_LARGE
    return DatasetRecord(
        format="LongRange",
        name=f"recall-{nodes}",
        load=partial(load_recall, nodes=nodes, sizes=sizes),
        task_type="classification",
        level="inductive_node",
        title=f"recall-{nodes}",
        metric="accuracy",
        loss="cross_entropy",
        split=f"{' / '.join(map(str, sizes))} graphs, the same in every run; gnn.head node scores the queries alone",
        summary=f"associative recall on rings of {nodes:,} nodes: queries ask for the values of keys; no download",
        features=Features(node=1 + signs + VALUES, classes=VALUES),
        statistics=Statistics(sum(sizes), float(nodes), 2.0 * nodes, directed=False, sizes=sizes),
        source=Source(
            "ours, after Arora et al., Zoology: Measuring and Improving Recall in Efficient Language Models, ICLR 2024",
            "MIT, as this package",
        ),
        sample=lambda record, seed: load_recall(nodes=nodes, sizes=SAMPLE_SIZES, seed=seed + 1),  # noqa: ARG005
    )


RECORDS = tuple(_record(nodes, signs) for nodes, signs in CODE_LENGTHS.items())
