"""`GraphDataset`: graphs with their splits, as our loaders and GraphGym's own ``create_loader`` read them."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset
from torch_geometric.data import Data

from graphgps_kmip.errors import InputError


class Splits(NamedTuple):
    """Indices (int64) of the samples that train, validate and test."""

    train: Tensor
    val: Tensor
    test: Tensor


SPLITS = Splits._fields  # ("train", "val", "test")


@dataclass(frozen=True)
class Summary:
    """What one look at every graph tells; stored on disk for large data sets."""

    graphs: int
    dim_in: int  # columns of x
    dim_edge: int  # columns of edge_attr; 0 without edge features
    dim_out: int  # classes (2 for binary), label columns or targets
    mean_nodes: float
    max_nodes: int
    mean_edges: float  # directed edges
    directed: bool  # one of the first graphs has an edge without its reverse


class GraphDataset:
    """Graphs, and where whole graphs are divided, the indices of each part.

    Args:
        graphs: sequence of `Data`: a list, or a torch_geometric data set in memory or on disk.
        splits: which graphs train, validate and test (three index sequences). None where the nodes of one graph are
            divided: the graph then carries ``train_mask``, ``val_mask`` and ``test_mask``.
        summary: what is known of the graphs without looking at each; None: nothing yet.
        files: where each graph was read from, for error messages; None: not known.
    """

    def __init__(
        self,
        graphs: Sequence[Data],
        splits: Sequence[Sequence[int] | Tensor] | None = None,
        summary: Summary | None = None,
        files: Sequence[str] | None = None,
    ) -> None:
        self.graphs, self.summary, self.files = graphs, summary, files
        self.splits = None if splits is None else Splits(*(torch.as_tensor(part).long() for part in splits))

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int | Tensor | Sequence[int]) -> Data | Subset[Data]:
        if isinstance(index, int):
            return self.graphs[index]
        return Subset(self.graphs, torch.as_tensor(index).tolist())

    def place(self, number: int) -> str:
        """Return the name of one graph for errors: its number, and its file where that is known."""
        return name_graph(number, self.files)

    def with_graphs(self, graphs: Sequence[Data]) -> GraphDataset:
        """Return a data set of the same splits, summary and files, whose graphs carry something else."""
        return GraphDataset(graphs, self.splits, self.summary, self.files)

    def part(self, split: str) -> Subset[Data] | Sequence[Data]:
        """Return the graphs of "train", "val" or "test"; all of them where nodes are divided by masks."""
        return self.graphs if self.splits is None else self[getattr(self.splits, split)]

    @cached_property
    def data(self) -> Data:
        """Splits apart from the graphs, which GraphGym's ``create_loader`` reads and deletes."""
        data = copy.copy(self.graphs[0]) if self.splits is None else Data()
        for split, index in zip(SPLITS, self.splits or (), strict=False):
            data[f"{split}_graph_index"] = index
        return data

    @property
    def _data(self) -> Data:
        """The same, with ``x`` and ``y`` from which GraphGym counts dim_in columns, and dim_out columns or classes."""
        data = copy.copy(self.data)
        if self.summary is not None:
            data.x = torch.empty(1, self.summary.dim_in)
            data.y = torch.arange(self.summary.dim_out).unsqueeze(0)
        return data


def name_graph(number: int, files: Sequence[str] | None) -> str:
    """Return the name of one graph of the whole data set for errors; ``files`` as of `GraphDataset`."""
    return f"graph {number:,} ({files[number]})" if files else f"graph {number:,}"


def join_parts(parts: Sequence[Sequence[Data]]) -> GraphDataset:
    """Return one data set of the graphs that train, validate and test, which are not copied."""
    bounds = pairwise(accumulate(map(len, parts), initial=0))
    return GraphDataset(ConcatDataset(parts), [torch.arange(first, end) for first, end in bounds])


BYTES = 64 * 2**20  # of a tensor at a time: one that is mapped from disk need not fit into memory


def graph_facts(graph: Data) -> dict[str, Any]:
    """Return hashes of what a model learns from: ``data`` (edge_index, x, y), ``split`` (masks); and ``num_nodes``."""
    facts: dict[str, Any] = {"num_nodes": graph.num_nodes}
    for key, names in {"data": ["edge_index", "x", "y"], "split": [f"{split}_mask" for split in SPLITS]}.items():
        digest = hashlib.sha256()
        for name in names:
            digest.update(f"{name} ".encode())
            hash_attribute(digest, graph, name, "a graph that is compared with that of another run")
        facts[key] = digest.hexdigest()[:16]
    return facts


def hash_attribute(digest: Any, graph: Data, name: str, place: str) -> None:
    """Add shape, dtype and values of a dense tensor of a graph to a hash; `place` names the graph in the error."""
    value = graph.get(name)
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        raise InputError(f"{place} has no dense tensor {name}")
    digest.update(f"{tuple(value.shape)} {value.dtype}".encode())
    for part in value.detach().reshape(-1).split(max(1, BYTES // value.element_size())):
        digest.update(part.cpu().view(torch.uint8).numpy())
