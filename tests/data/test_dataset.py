"""GraphDataset: parts, and GraphGym's own create_loader on top of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch_geometric.graphgym import loader as graphgym_loader
from torch_geometric.graphgym import register
from torch_geometric.graphgym.config import set_cfg
from yacs.config import CfgNode

from graphgps_kmip.data import GraphDataset
from graphgps_kmip.data.dataset import Summary


def numbers(graphs: object) -> list[int]:
    return [int(graph.x[0, 0]) for graph in graphs]


def test_parts_are_the_graphs_of_the_splits(rings: Callable[[int], GraphDataset]) -> None:
    dataset = rings(7)
    assert len(dataset) == 7
    assert [numbers(dataset.part(split)) for split in ("train", "val", "test")] == [[0, 1, 2, 3, 4], [5], [6]]
    assert numbers([dataset[3]]) == [3]
    assert numbers(dataset[torch.tensor([4, 1])]) == [4, 1]


@pytest.mark.filterwarnings("ignore:.pin_memory.:UserWarning")  # GraphGym pins without a GPU, too
def test_the_stock_create_loader_divides_graphs(
    monkeypatch: pytest.MonkeyPatch, rings: Callable[[int], GraphDataset]
) -> None:
    unseen = rings(7)
    seven = Summary(7, dim_in=2, dim_edge=0, dim_out=3, mean_nodes=3, max_nodes=3, mean_edges=6, directed=False)
    dataset = GraphDataset(unseen.graphs, unseen.splits, seven)
    cfg = CfgNode()
    set_cfg(cfg)
    cfg.dataset.format, cfg.dataset.task, cfg.dataset.task_type = "Mine", "graph", "classification"
    cfg.train.sampler, cfg.train.batch_size = "full_batch", 2
    monkeypatch.setattr(graphgym_loader, "cfg", cfg)
    monkeypatch.setattr(register, "loader_dict", {"mine": lambda format, name, dir: dataset})  # noqa: ARG005
    loaders = graphgym_loader.create_loader()
    seen = [sorted(int(x) for batch in loader for x in batch.x[batch.ptr[:-1], 0]) for loader in loaders]
    assert seen == [[0, 1, 2, 3, 4], [5], [6]]
    assert (cfg.share.dim_in, cfg.share.dim_out, cfg.share.num_splits) == (2, 3, 3), "a class without a graph counts"
    assert len(dataset.part("train")) == 5, "what the stock function deletes is not the data set's own split"
