"""Loaders as the config asks: training batches by a budget of nodes, in a new order or not; evaluation as ever."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from lightning_fabric import Fabric
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.data import GraphDataset
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.data_loading import current_loaders

SIZES = [3, 9, 1, 4, 4, 30, 2, 7]


@pytest.fixture(autouse=True)
def _loaded() -> Iterator[None]:
    load_config(cfg, None, ["train.batch_size", "2"])
    yield
    cfg.defrost()


def dataset() -> GraphDataset:
    graphs = [Data(torch.zeros(size, 1), torch.empty(2, 0).long()) for size in SIZES]
    return GraphDataset(graphs, [torch.arange(6).numpy(), torch.tensor([6]).numpy(), torch.tensor([7]).numpy()])


@pytest.mark.parametrize("budget", [0, 12])
def test_training_batches_follow_the_budget_and_evaluation_does_not(budget: int) -> None:
    cfg.train.max_nodes = budget
    train, *evaluation = current_loaders(dataset(), "graph", Fabric(accelerator="cpu", devices=1))
    batches = list(train)
    assert sum(batch.num_graphs for batch in batches) == 6
    if budget:
        assert all(batch.num_nodes <= budget or batch.num_graphs == 1 for batch in batches)
        assert len(batches) > 3
    else:
        assert [batch.num_graphs for batch in batches] == [2, 2, 2]
    assert [len(loader) for loader in evaluation] == [1, 1]


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_order_of_training_is_new_in_each_epoch_unless_told_otherwise(shuffle: bool) -> None:
    cfg.train.shuffle = shuffle
    train = current_loaders(dataset(), "graph", Fabric(accelerator="cpu", devices=1))[0]
    orders = []
    for epoch in range(4):
        train.set_epoch(epoch)
        orders.append([size for batch in train for size in batch.ptr.diff().tolist()])
    assert (orders == [SIZES[:6]] * 4) != shuffle
    assert all(sorted(order) == sorted(SIZES[:6]) for order in orders)


def test_one_graph_has_no_batches_of_graphs() -> None:
    cfg.train.max_nodes = 12
    graph = dataset().graphs[0]
    for split in ("train", "val", "test"):
        graph[f"{split}_mask"] = torch.ones(3, dtype=torch.bool)
    with pytest.raises(ConfigError, match="train.max_nodes: 12 fills batches of whole graphs, and here is one graph"):
        current_loaders(GraphDataset([graph]), "node", Fabric(accelerator="cpu", devices=1))
