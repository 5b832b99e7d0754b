"""Data as the config asks: training batches by a budget of nodes, their order, seeds of splits and expanders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.data import GraphDataset
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.data_loading import current_loaders, load_configured

SIZES = [3, 9, 1, 4, 4, 30, 2, 7]


@pytest.fixture(autouse=True)
def _loaded() -> None:
    load_config(cfg, None, ["train.batch_size", "2"])


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
def test_the_order_of_training_is_new_in_each_epoch_unless_shuffle_is_off(shuffle: bool) -> None:
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


FILE = Path(__file__).parents[2] / "configs" / "Heterophilous" / "minesweeper-exphormer.yaml"


def graph(*argv: str) -> Data:
    load_config(cfg, FILE, ["dataset.sample", "True", "dataset.split", "[0.6, 0.2, 0.2]", *argv])
    return load_configured().dataset.graphs[0]


RANDOM = ("dataset.split_mode", "random")


@pytest.mark.parametrize(
    ("name", "key"), [("train_mask", "dataset.split_seed"), ("expander_edge_index", "prep.exp_seed")]
)
def test_a_seed_of_its_own_takes_the_place_of_the_seed_of_the_run(name: str, key: str) -> None:
    def draw(seed: int, special: int = -1) -> torch.Tensor:
        return graph(*RANDOM, "seed", str(seed), key, str(special))[name]

    first, other = draw(0), draw(1)
    assert not torch.equal(first, other)
    assert torch.equal(draw(1, 0), first)
    assert torch.equal(draw(0, 1), other)


def test_shares_that_the_split_mode_does_not_read_are_said(caplog: pytest.LogCaptureFixture) -> None:
    graph("dataset.split_mode", "standard", "dataset.split", "[0.5, 0.25, 0.25]")
    assert caplog.text.count("dataset.split [0.5, 0.25, 0.25] is not read") == 1
    caplog.clear()
    graph("dataset.split_mode", "standard", "dataset.split", "[0.8, 0.1, 0.1]")  # GraphGym's default
    graph(*RANDOM, "dataset.split", "[0.5, 0.25, 0.25]")
    assert "dataset.split" not in caplog.text
