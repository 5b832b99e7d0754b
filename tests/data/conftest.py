"""Small data sets that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch_geometric.data import Data

from graphgps_kmip.data import GraphDataset


def ring(number: int) -> Data:
    """Return a directed ring of 3 + number % 4 nodes that carries its number as feature and its parity as label."""
    nodes = torch.arange(3 + number % 4)
    edge_index = torch.stack([nodes, nodes.roll(-1)])
    return Data(x=torch.full((len(nodes), 2), float(number)), edge_index=edge_index, y=torch.tensor([number % 2]))


@pytest.fixture
def rings() -> Callable[[int], GraphDataset]:
    """Build a data set of ``num`` rings: the last two validate and test, one each; the others train."""

    def build(num: int) -> GraphDataset:
        return GraphDataset([ring(i) for i in range(num)], (range(num - 2), [num - 2], [num - 1]))

    return build


@pytest.fixture
def divided() -> Data:
    """Return one graph of ten nodes that are divided by masks; the last node is in no part and has no label."""
    index = torch.arange(10)
    data = Data(x=torch.randn(10, 3), edge_index=torch.stack([index, index.roll(1)]), y=index % 3)
    data.y[9] = -1
    for split, part in (("train", index < 6), ("val", (index >= 6) & (index < 8)), ("test", index == 8)):
        data[f"{split}_mask"] = part
    return data
