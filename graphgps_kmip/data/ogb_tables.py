"""Open Graph Benchmark: its CSV tables as graphs, ogbg-ppa on disk, syntax trees of ogbg-code2.

ogb's own classes ask the network for newer releases, people for leave to download, and need 100 GB for ogbg-ppa.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset

from graphgps_kmip.data.dataset_record import RawFiles
from graphgps_kmip.data.file_errors import reading
from graphgps_kmip.data.point_clouds import Row, RowGraphs
from graphgps_kmip.errors import InputError

SPLIT = {"train": "train", "val": "valid", "test": "test"}  # ogb's names of the parts


def ogb_split(home: str, raw: RawFiles) -> dict[str, Tensor]:
    """Return the indices of the parts "train", "val" and "test" of the official split."""
    paths = (Path(home, raw.base, file) for file in raw.files if file.startswith("split/"))
    return {part: torch.from_numpy(_table(path)[:, 0]) for part, path in zip(SPLIT, paths, strict=True)}


class OGBGraphs(InMemoryDataset):
    """The graphs of a data set of the Open Graph Benchmark, from its tables.

    Attributes are named by `KEYS`; ``y`` is float32 if some labels are unknown (NaN), else int64, or a list of words.
    Each edge is followed by its reverse unless ``one_way``.
    """

    def __init__(
        self, home: str, raw: RawFiles, one_way: bool = False, prepare: Callable[[Data], Data] | None = None
    ) -> None:
        self.raw, self.one_way = raw, one_way
        super().__init__(str(Path(home, raw.base)), pre_transform=prepare)
        self.load(self.processed_paths[0])

    @property
    def raw_file_names(self) -> list[str]:
        """All files."""
        return [f"../{file}" for file in self.raw.files]

    processed_file_names = "geometric_data_processed.pt"  # as ogb names it

    def process(self) -> None:
        """Read the tables, and store the graphs."""
        names = [Path(file).name.removesuffix(".csv.gz") for file in self.raw.files if file.startswith("raw/")]
        graphs = table_graphs({name: _table(Path(self.raw_dir, f"{name}.csv.gz")) for name in names}, self.one_way)
        self.save(list(map(self.pre_transform, graphs) if self.pre_transform else graphs), *self.processed_paths)


def _table(path: Path) -> np.ndarray:
    import pandas as pd

    with reading(path):
        values = pd.read_csv(path, header=None).to_numpy()
    if values.dtype == object:
        return values
    values = values.astype(np.int64 if values.dtype.kind in "iu" else np.float32, copy=False)
    return np.require(values, requirements="W")


# Names of attributes; others are called as their tables.
KEYS = {"node-feat": "x", "node-label": "y", "edge-feat": "edge_attr", "edge-label": "edge_label"}


def table_graphs(tables: dict[str, np.ndarray], one_way: bool) -> Iterator[Data]:
    """Yield the graphs of ogb's tables, by name; each edge is followed by its reverse unless ``one_way``."""
    nodes, edges = (tables.pop(f"num-{what}-list")[:, 0] for what in ("node", "edge"))
    labels = tables.pop("graph-label", None)
    texts = labels is not None and labels.dtype == object
    targets = None if labels is None or texts else _labels(labels)  # once: the table is as long as the data set
    index = torch.from_numpy(tables.pop("edge").astype(np.int64)).T  # (2, E)
    tensors = {name: _labels(table) if "label" in name else torch.from_numpy(table) for name, table in tables.items()}
    edge_names = [name for name in tensors if name.startswith("edge")]
    for number, (node, edge) in enumerate(zip(nodes.cumsum(), edges.cumsum(), strict=True)):
        rows = slice(int(edge - edges[number]), int(edge))
        graph = Data(num_nodes=int(nodes[number]), edge_index=index[:, rows])
        if not one_way:
            graph.edge_index = torch.stack([index[:, rows], index[:, rows].flip(0)], dim=2).reshape(2, -1)
        for name, values in tensors.items():
            if name in edge_names:
                graph[KEYS.get(name, name)] = values[rows].repeat_interleave(1 if one_way else 2, dim=0)
            else:
                graph[KEYS.get(name, name)] = values[int(node - nodes[number]) : int(node)]
        if texts:
            graph.y = str(labels[number][0]).split(" ")
        elif targets is not None:
            graph.y = targets[number : number + 1]
        yield graph


def _labels(table: np.ndarray) -> Tensor:
    is_whole = np.array_equal(table, np.floor(table))  # not where NaN stands for an unknown label
    return torch.from_numpy(table).long() if is_whole else torch.from_numpy(table)


SCHEMA = {
    "edge_index": {"dtype": torch.int32, "size": (2, -1)},
    "edge_attr": {"dtype": torch.float32, "size": (-1, 7)},
    "num_nodes": {"dtype": torch.int64, "size": (1,)},
    "y": {"dtype": torch.int64, "size": (1,)},
}
BLOCK = 1_000  # graphs whose edges are read at once: 2 million


def association_graphs(folder: Path, length: int) -> RowGraphs:
    """Return the graphs of ogbg-ppa, each edge in both directions; ``x`` (N, 1) int64 is 0, the only kind of node."""
    path = folder / "processed" / "graphs.db"
    return RowGraphs(path, SCHEMA, partial(_rows, folder / "raw"), range(length), _association_graph)


def _association_graph(row: Row) -> Data:
    edges = row["edge_index"].long()
    return Data(
        x=torch.zeros(int(row["num_nodes"]), 1, dtype=torch.long),
        edge_index=torch.stack([edges, edges.flip(0)], dim=2).reshape(2, -1),  # an edge, then its reverse
        edge_attr=row["edge_attr"].repeat_interleave(2, dim=0),
        y=row["y"].clone(),
    )


def _rows(raw: Path) -> Iterator[Row]:
    names = ("num-node-list", "num-edge-list", "graph-label")
    nodes, edges, labels = (_table(raw / f"{name}.csv.gz")[:, 0].tolist() for name in names)
    tables = (_pieces(raw / "edge.csv.gz", edges, "int32"), _pieces(raw / "edge-feat.csv.gz", edges, "float32"))
    for ends, features, num_nodes, label in zip(*tables, nodes, labels, strict=True):
        yield {
            "edge_index": torch.from_numpy(ends.T.copy()),
            "edge_attr": torch.from_numpy(features),
            "num_nodes": torch.tensor([num_nodes]),
            "y": torch.tensor([label]),
        }


def _pieces(path: Path, counts: list[int], dtype: str) -> Iterator[np.ndarray]:
    import pandas as pd

    with reading(path):
        table = pd.read_csv(path, header=None, dtype=dtype, iterator=True)
    with table:
        for start in range(0, len(counts), BLOCK):
            ends = np.cumsum(counts[start : start + BLOCK])
            with reading(path):
                try:
                    rows = table.get_chunk(int(ends[-1])).to_numpy()
                except StopIteration:  # the end of the table, also where the last graphs have no edges
                    rows = np.empty(0)
                if len(rows) < ends[-1]:
                    raise InputError("it has fewer rows than num-edge-list.csv.gz says")
            yield from np.split(rows, ends[:-1])


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
        vocabulary: at most `WORDS` sub-tokens, numbered in this order.
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self.numbers = {word: number for number, word in enumerate(vocabulary)}

    @classmethod
    def of(cls, dataset: InMemoryDataset, train: Tensor) -> SyntaxTrees:
        """Return the transform with the vocabulary stored with the processed data, made where there is none yet."""
        path = Path(dataset.processed_dir, "vocabulary.json")
        if not path.exists():
            names = dataset._data.y
            path.write_text(json.dumps(vocabulary(names[index] for index in train.tolist())) + "\n")
        return cls(json.loads(path.read_text()))

    def __call__(self, graph: Data) -> Data:
        """Return the tree as described above."""
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
    """Return the most frequent sub-tokens, `WORDS` at most."""
    return [word for word, _ in Counter(chain.from_iterable(names)).most_common(WORDS)]


def _edges(graph: Data) -> tuple[Tensor, Tensor]:
    tokens = graph.node_is_attributed.flatten().nonzero().flatten()
    tokens = tokens[graph.node_dfs_order.flatten()[tokens].argsort()]
    tree, following = graph.edge_index, torch.stack([tokens[:-1], tokens[1:]])
    parts = [(tree, (0, 0)), (tree.flip(0), (0, 1)), (following, (1, 0)), (following.flip(0), (1, 1))]
    kinds = [torch.tensor([kind]).expand(edges.size(1), 2) for edges, kind in parts]
    return torch.cat([edges for edges, _ in parts], dim=1), torch.cat(kinds)
