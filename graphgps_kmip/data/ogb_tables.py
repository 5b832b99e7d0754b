"""The graphs of ogbg-ppa, on disk: ogb's own processing would need a hundred gigabytes of memory for them.

The syntax trees of ogbg-code2 as models take them: edges both ways and between tokens, names as numbers.

How ogb counts the features of atoms and bonds: the number of values of each integer column.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data.row_store import Row, RowFile
from graphgps_kmip.errors import InputError

if TYPE_CHECKING:
    from pandas.io.parsers import TextFileReader
    from torch_geometric.data import InMemoryDataset

SCHEMA = {
    "edge_index": {"dtype": torch.int32, "size": (2, -1)},
    "edge_attr": {"dtype": torch.float32, "size": (-1, 7)},
    "num_nodes": {"dtype": torch.int64, "size": (1,)},
    "y": {"dtype": torch.int64, "size": (1,)},
}
BLOCK = 1_000  # graphs whose edges are read at once: 2 million


class AssociationGraphs:
    """Graphs read from disk when they are asked for; each edge is kept once there, and given in both directions.

    Args:
        dataset: of ogb's class, processed by `store`.
        length: number of graphs.
    """

    def __init__(self, dataset: InMemoryDataset, length: int) -> None:
        self.rows, self.length = _row_file(dataset), length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Data:
        """Return one graph; it has no node features: ``x`` (N, 1) int64 is 0, the one kind of node."""
        row = self.rows[range(self.length)[index]]
        edges = row["edge_index"].long()
        return Data(
            x=torch.zeros(int(row["num_nodes"]), 1, dtype=torch.long),
            edge_index=torch.stack([edges, edges.flip(0)], dim=2).reshape(2, -1),  # an edge, then its reverse
            edge_attr=row["edge_attr"].repeat_interleave(2, dim=0),
            y=row["y"].clone(),
        )


def store(dataset: InMemoryDataset) -> None:
    """Write the graphs of the raw tables to disk, a block at a time; takes the place of ogb's ``process``."""
    _row_file(dataset).write(_rows(Path(dataset.raw_dir)))
    torch.save((Data(), {}), dataset.processed_paths[0])  # ogb's class reads this file, whatever is in it


def _row_file(dataset: InMemoryDataset) -> RowFile:
    return RowFile(Path(dataset.processed_dir, "graphs.db"), SCHEMA)


def _rows(raw: Path) -> Iterator[Row]:
    import pandas as pd

    names = ("num-node-list", "num-edge-list", "graph-label")
    nodes, edges, labels = (pd.read_csv(raw / f"{name}.csv.gz", header=None)[0].tolist() for name in names)
    tables = (_pieces(raw / "edge.csv.gz", edges, "int32"), _pieces(raw / "edge-feat.csv.gz", edges, "float32"))
    for ends, features, num_nodes, label in zip(*tables, nodes, labels, strict=True):
        yield {
            "edge_index": torch.from_numpy(ends.T.copy()),
            "edge_attr": torch.from_numpy(features),
            "num_nodes": torch.tensor([num_nodes]),
            "y": torch.tensor([label]),
        }


def _pieces(path: Path, counts: list[int], dtype: str) -> Iterator[np.ndarray]:
    """Yield the rows of a table that belong to each graph."""
    import pandas as pd

    with pd.read_csv(path, header=None, dtype=dtype, iterator=True) as table:
        for start in range(0, len(counts), BLOCK):
            ends = np.cumsum(counts[start : start + BLOCK])
            rows = _next(table, int(ends[-1]))
            if len(rows) < ends[-1]:
                raise InputError(f"{path.name} has fewer rows than num-edge-list.csv.gz says")
            yield from np.split(rows, ends[:-1])


def _next(table: TextFileReader, count: int) -> np.ndarray:
    try:
        return table.get_chunk(count).to_numpy()
    except StopIteration:  # the end of the table, also where the last graphs have no edges
        return np.empty(0)


if TYPE_CHECKING:
    from torch_geometric.data import InMemoryDataset

NODE_TYPES, NODE_ATTRIBUTES = 98, 10_030
LENGTH = 5  # sub-tokens of a name that are predicted
WORDS = 5_000  # the most frequent sub-tokens of the training graphs; two numbers follow theirs
UNKNOWN, END = WORDS, WORDS + 1
CLASSES = WORDS + 2


class SyntaxTrees:
    """Turns a tree of ogb's class into one that models take; applied whenever a graph is asked for.

    ``y`` becomes (1, 5) int64: numbers of the sub-tokens, `UNKNOWN` for those outside the vocabulary, `END` after the
    last one. Edges become those of the tree, their reverses, those from each token to the next, and their reverses;
    ``edge_attr`` (E, 2) int64 says (1: between tokens, 1: a reverse).

    Args:
        words: the vocabulary, at most `WORDS`, numbered in this order.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.numbers = {word: number for number, word in enumerate(words)}

    @classmethod
    def prepared(cls, dataset: InMemoryDataset, train: Tensor) -> SyntaxTrees:
        """Return the transform with the vocabulary kept beside the processed data, made where there is none yet."""
        path = Path(dataset.processed_dir, "vocabulary.json")
        if not path.exists():
            names = dataset._data.y
            path.write_text(json.dumps(vocabulary(names[index] for index in train.tolist())) + "\n")
        return cls(json.loads(path.read_text()))

    def __call__(self, graph: Data) -> Data:
        """Return the tree with its edges and its name as described above."""
        numbers = [self.numbers.get(word, UNKNOWN) for word in graph.y[:LENGTH]]
        edge_index, edge_attr = _edges(graph)
        return Data(
            x=graph.x,
            edge_index=edge_index,
            edge_attr=edge_attr,
            y=torch.tensor([numbers + [END] * (LENGTH - len(numbers))]),
            node_depth=graph.node_depth,
        )


def vocabulary(names: Iterable[Sequence[str]]) -> list[str]:
    """Return the most frequent sub-tokens, `WORDS` at most; of equally frequent ones the first seen comes first."""
    return [word for word, _ in Counter(chain.from_iterable(names)).most_common(WORDS)]


def _edges(graph: Data) -> tuple[Tensor, Tensor]:
    tokens = graph.node_is_attributed.flatten().nonzero().flatten()
    tokens = tokens[graph.node_dfs_order.flatten()[tokens].argsort()]
    tree, following = graph.edge_index, torch.stack([tokens[:-1], tokens[1:]])
    parts = [(tree, (0, 0)), (tree.flip(0), (0, 1)), (following, (1, 0)), (following.flip(0), (1, 1))]
    kinds = [torch.tensor([kind]).expand(edges.size(1), 2) for edges, kind in parts]
    return torch.cat([edges for edges, _ in parts], dim=1), torch.cat(kinds)
