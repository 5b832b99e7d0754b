"""BREC: 400 pairs of non-isomorphic graphs that a model should tell apart, in graph6 strings (Wang and Zhang 2024).

The file ``brec_v3.npy`` has 64 strings for each pair, G and H in turn, in 32 orders of their nodes; then those of the
reliability test of each pair: 64 orders of one of its graphs. ``x`` is a column of zeros.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.data.dataset import GraphDataset, Summary
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics
from graphgps_kmip.data.file_errors import DamagedFile, reading
from graphgps_kmip.errors import InputError

NUM_PAIRS = 400
ORDERS = 32  # relabelings of each graph of a pair
BLOCK = 2 * ORDERS  # graphs of a pair, and again of its reliability test
OUTPUTS = 16  # numbers that a model gives for a graph; the benchmark compares vectors of this width
FILE = "raw/brec_v3.npy"
# Pairs by kind of graph, in the order of the file. The benchmark's tables join some of them: `CATEGORIES`.
PARTS: dict[str, range] = {
    "basic": range(60),
    "simple_regular": range(60, 110),
    "strongly_regular": range(110, 160),
    "extension": range(160, 260),
    "cfi": range(260, 360),
    "4_vertex": range(360, 380),
    "distance_regular": range(380, 400),
}
REGULAR = ("simple_regular", "strongly_regular", "4_vertex", "distance_regular")
CATEGORIES: dict[str, tuple[int, ...]] = {
    "basic": tuple(PARTS["basic"]),
    "regular": tuple(pair for part in REGULAR for pair in PARTS[part]),
    "extension": tuple(PARTS["extension"]),
    "cfi": tuple(PARTS["cfi"]),
}


def decode_graph6(text: bytes) -> tuple[np.ndarray, int]:
    """Return edges (2, E), both ways and by source, and number N of nodes of a graph in graph6 (B. McKay's format).

    A byte minus 63 is a number of 6 bits. First N: one byte up to 62; else ``~`` and three bytes up to 258,047. Then
    the upper triangle of the adjacency matrix, column by column, from the highest bit of each byte on.

    Raises:
        InputError: a byte that graph6 does not have, or more or fewer bytes than N nodes need.
    """
    values = np.frombuffer(text, np.uint8) - 63  # below 63 it wraps around to a large number
    if not len(values) or int(values.max()) > 63:
        raise InputError(f"{text[:20]!r} is no graph6 string: its bytes must be from 63 ('?') to 126 ('~')")
    long = values[0] == 63
    if long and (len(values) < 4 or values[1] == 63):
        raise InputError(f"{text[:20]!r} is no graph6 string of at most 258,047 nodes")
    size = int(values[1]) << 12 | int(values[2]) << 6 | int(values[3]) if long else int(values[0])
    body, bits = values[4 if long else 1 :], size * (size - 1) // 2
    if len(body) != -(-bits // 6):
        raise InputError(f"{text[:20]!r}: a graph of {size} nodes needs {-(-bits // 6)} bytes, got {len(body)}")
    upper = np.unpackbits(body[:, None], axis=1)[:, 2:].reshape(-1)[:bits]
    column, row = np.tril_indices(size, -1)  # (0, 1), (0, 2), (1, 2), (0, 3), ...: column by column
    adjacency = np.zeros((size, size), bool)
    adjacency[row, column] = adjacency[column, row] = upper
    return np.stack(np.nonzero(adjacency)), size


class BRECGraphs(Sequence[Data]):
    """Graphs of some pairs: 64 of each pair, and after those of all pairs 64 of the reliability test of each.

    ``texts`` are graph6 strings in the order of the file, ``pairs`` the number of each pair; None: 0, 1, ... ``x`` is
    zeros (N, 1), int64; ``y`` zeros (1, `OUTPUTS`), not read.
    """

    def __init__(self, texts: Sequence[bytes], pairs: Sequence[int] | None = None) -> None:
        self.texts = texts
        self.pairs = tuple(range(len(texts) // (2 * BLOCK)) if pairs is None else pairs)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Data:
        edges, size = decode_graph6(self.texts[index])
        x, edge_index = torch.zeros(size, 1, dtype=torch.long), torch.from_numpy(edges.astype(np.int64))
        return Data(x=x, edge_index=edge_index, y=torch.zeros(1, OUTPUTS))

    def select(self, pairs: Sequence[int]) -> BRECGraphs:
        """Return the graphs of some of the pairs only."""
        place = {pair: number for number, pair in enumerate(self.pairs)}
        starts = [BLOCK * (place[pair] + half * len(self.pairs)) for half in (0, 1) for pair in pairs]
        return BRECGraphs([text for start in starts for text in self.texts[start : start + BLOCK]], pairs)


def select_pairs(dataset: GraphDataset, text: str) -> GraphDataset:
    """Return the data set with the graphs of those pairs only that `parse_pairs` finds in a text."""
    graphs = dataset.graphs
    if not isinstance(graphs, BRECGraphs):
        raise InputError("dataset.format: train.mode brec needs the pairs of BREC: set dataset.format BREC")
    pairs = parse_pairs(text, graphs.pairs)
    return dataset if pairs == graphs.pairs else _dataset(graphs.select(pairs))


def pair_graphs(graphs: Sequence[Data], place: int) -> tuple[list[Data], list[Data]]:
    """Return the 64 graphs of the pair at a place, G and H in turn, and the 64 of its reliability test."""
    first, last = place * BLOCK, len(graphs) // 2 + place * BLOCK
    return tuple([graphs[start + number] for number in range(BLOCK)] for start in (first, last))


def parse_pairs(text: str, present: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of the pairs that a text names, in increasing order.

    Args:
        text: names of `CATEGORIES` or `PARTS`, pairs, or ranges: ``basic+cfi``, ``0-9+110``; "" or ``all``: all.
        present: pairs of the data.
    """
    if text in ("", "all"):
        return tuple(present)
    named: dict[str, Sequence[int]] = {**PARTS, **CATEGORIES}
    pairs: set[int] = set()
    for name in text.split("+"):
        if name in named:
            pairs |= set(named[name]) & set(present)
        elif numbers := re.fullmatch(r"(\d+)(?:-(\d+))?", name):
            first, last = int(numbers[1]), int(numbers[2] or numbers[1])
            if last < first:
                raise InputError(f"brec.pairs: {name} ends before it begins: write {last}-{first}")
            end = min(last, max(present) + 1)  # the first pair that is not there is enough for an error
            pairs |= set(range(first, end + 1)) or {first}
        else:
            raise InputError(f"brec.pairs: expected names, pairs or 0-9, got {name!r}.{suggest(name, named)}")
    data = f"{len(present)} pairs from {min(present)} to {max(present)}"
    if wrong := sorted(pairs - set(present)):
        raise InputError(f"brec.pairs: there is no pair {wrong[0]}: the data has {data}")
    if not pairs:
        raise InputError(f"brec.pairs: {text} names no pair of this data, which has {data}")
    return tuple(sorted(pairs))


def load(home: str) -> GraphDataset:
    """Return all graphs; the split is nominal: training has the pairs, validation and test the reliability graphs."""
    path = Path(home, FILE)
    with reading(path):
        array = np.load(path, allow_pickle=False)
        if array.dtype.kind not in "SU":
            raise InputError(f"expected an array of strings, got {array.dtype}")
        texts = (np.char.encode(array, "ascii") if array.dtype.kind == "U" else array).reshape(-1).tolist()
    if len(texts) != 2 * BLOCK * NUM_PAIRS:
        raise DamagedFile(path, f"{2 * BLOCK * NUM_PAIRS:,} graph6 strings are expected, it holds {len(texts):,}")
    return _dataset(BRECGraphs(texts))


def _dataset(graphs: BRECGraphs) -> GraphDataset:
    texts, half = graphs.texts, len(graphs) // 2
    # All orders of a graph have the sizes of the first two of its block.
    seen = [decode_graph6(text) for start in range(0, len(texts), BLOCK) for text in texts[start : start + 2]]
    nodes, edges = [size for _, size in seen], [pairs.shape[1] for pairs, _ in seen]
    mean_nodes, mean_edges = (sum(counts) / len(seen) for counts in (nodes, edges))
    summary = Summary(len(texts), 1, 0, OUTPUTS, mean_nodes, max(nodes), mean_edges, directed=False)
    splits = (range(half), range(half, len(graphs), 2), range(half + 1, len(graphs), 2))
    return GraphDataset(graphs, splits, summary)


def _sample(record: DatasetRecord, seed: int) -> GraphDataset:  # noqa: ARG001 (it is called by these names)
    """Return two made-up pairs in the form of the benchmark: cycles, and circulants of degree 4."""
    rng = np.random.default_rng(seed)
    two_squares = np.kron(np.eye(2, dtype=bool), _circulant(4, [1]))
    pairs = [(_circulant(8, [1]), two_squares), (_circulant(9, [1, 2]), _circulant(9, [1, 3]))]
    blocks = [*pairs, *((pair[seed % 2],) * 2 for pair in pairs)]
    texts = [encode_graph6(_reorder(graph, rng)) for pair in blocks for _ in range(ORDERS) for graph in pair]
    return _dataset(BRECGraphs(texts))


def encode_graph6(adjacency: np.ndarray) -> bytes:
    """Return the graph6 string of a symmetric 0/1 matrix (N, N) without loops, N at most 258,047."""
    size = len(adjacency)
    head = [size] if size < 63 else [63, size >> 12, size >> 6 & 63, size & 63]
    column, row = np.tril_indices(size, -1)
    bits = adjacency[row, column].astype(np.uint8)
    bits = np.pad(bits, (0, -len(bits) % 6)).reshape(-1, 6)
    return bytes(63 + value for value in (*head, *(bits @ (32, 16, 8, 4, 2, 1)).tolist()))


def _circulant(size: int, steps: Sequence[int]) -> np.ndarray:
    distance = np.subtract.outer(np.arange(size), np.arange(size)) % size
    return np.isin(distance, [*steps, *(size - step for step in steps)])


def _reorder(adjacency: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    order = rng.permutation(len(adjacency))
    return adjacency[order][:, order]


RECORDS = (
    DatasetRecord(
        format="BREC",
        name="brec",
        title="BREC",
        load=load,
        task_type="regression",
        metric="mae",
        loss="l1",
        split="none: train.mode brec trains and tests a model of its own on each pair",
        summary="400 pairs of graphs that 1-WL leaves equal, in 32 orders of their nodes, and reliability tests",
        features=Features(node=(1,), classes=OUTPUTS),
        statistics=Statistics(51_200, 34.76, 143.44, edges_once=True),  # counted in the published file
        source=Source(
            citation="Wang and Zhang, An Empirical Study of Realized GNN Expressiveness, ICML 2024",
            licence="MIT",
            page="github.com/GraphPKU/BREC",
        ),
        raw=RawFiles("BREC", (FILE,), archives=(f"{FILE}.xz",)),
        sample=_sample,
    ),
)
