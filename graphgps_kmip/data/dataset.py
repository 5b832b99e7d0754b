"""The graphs of one data set with their splits, as our loaders and GraphGym's own ``create_loader`` read them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.utils.data import Subset
from torch_geometric.data import Data

from graphgps_kmip.data.splits import Splits

SPLITS = Splits._fields  # ("train", "val", "test")


class GraphDataset:
    """Graphs, and where whole graphs are divided, the indices of each part.

    Args:
        graphs: sequence of `Data`: a list, or a torch_geometric data set in memory or on disk.
        splits: which graphs train, validate and test (three index sequences). None where the nodes of one graph are
            divided: the graph then carries ``train_mask``, ``val_mask`` and ``test_mask``.
    """

    def __init__(self, graphs: Sequence[Data], splits: Sequence[Sequence[int] | Tensor] | None = None) -> None:
        self.graphs = graphs
        self.splits = None if splits is None else Splits(*(torch.as_tensor(part).long() for part in splits))

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int | Tensor | Sequence[int]) -> Data | Subset:
        """Return one graph for an int, else the part of the data set with these indices."""
        if isinstance(index, int):
            return self.graphs[index]
        return Subset(self.graphs, torch.as_tensor(index).tolist())

    def part(self, split: str) -> Subset | Sequence[Data]:
        """Return the graphs of "train", "val" or "test"; all of them where nodes are divided by masks."""
        return self.graphs if self.splits is None else self[getattr(self.splits, split)]

    @cached_property
    def data(self) -> Data:
        """Features, labels, splits apart from the graphs: GraphGym's ``create_loader`` reads them and deletes some."""
        if self.splits is None and len(self.graphs) == 1:
            return copy.copy(self.graphs[0])
        labels = [torch.atleast_1d(torch.as_tensor(graph.y)) for graph in self.graphs]
        data = Data(x=self.graphs[0].x, y=torch.cat(labels))
        for split, index in zip(SPLITS, self.splits or (), strict=False):
            data[f"{split}_graph_index"] = index
        return data

    @property
    def _data(self) -> Data:  # GraphGym reads both names
        return self.data
