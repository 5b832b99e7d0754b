"""train.sampler node2subgraph: from the config to trained models, the same in any number of processes; mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.loader import create_loader

import main
from graphgps_kmip.data.node_loader import NodeSubgraphs
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.data_loading import current_sampling, load_configured

YAML = """
dataset: {format: OGB, name: ogbn-arxiv, task: graph, task_type: classification, node_encoder: True,
  node_encoder_name: LinearNode, edge_encoder: False}
posenc_RRWP: {enable: True, ksteps: 2, channels: K+1}
train: {sampler: node2subgraph, subgraph_hops: 2, subgraph_nodes: 5, batch_size: 32, enable_ckpt: False}
model: {type: PPGT, loss_fun: cross_entropy, graph_pooling: cls_token}
gt: {layers: 1, n_heads: 2, dim_hidden: 8}
gnn: {head: linear_graph, dim_inner: 8, layers_post_mp: 1}
ppgt: {node_features: rrwp+target+class_token, class_layers: 1, class_token: order, num_bases: 1, stem_hidden: [8],
  stem_blocks: 1, mask_rate: 0.5}
optim: {max_epoch: 1, optimizer: adamW, base_lr: 0.01}
metric_best: accuracy
"""
SAMPLE = "dataset.sample True num_threads 1 accelerator cpu".split()


pytestmark = pytest.mark.usefixtures("small_samples")


@pytest.fixture(autouse=True)
def _written(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(YAML)


def run(tmp_path: Path, *argv: str) -> int:
    return main.run(["--cfg", str(tmp_path / "run.yaml"), "out_dir", str(tmp_path / "out"), *SAMPLE, *argv])


def stats(folder: Path) -> list[dict[str, float]]:
    (folders,) = folder.glob("*/run/0")
    lines = [json.loads((folders / split / "stats.json").read_text()) for split in ("train", "val", "test")]
    return [{key: value for key, value in line.items() if "time" not in key} for line in lines]


def test_nodes_of_a_sample_are_trained_on_and_worker_processes_change_nothing(tmp_path: Path) -> None:
    folders = []
    for workers in ("0", "2"):
        assert run(tmp_path, "out_dir", str(tmp_path / workers / "out"), "num_workers", workers) == 0
        folders.append(stats(tmp_path / workers))
    assert folders[0] == folders[1]
    assert all(line["loss"] > 0 for line in folders[0])


def load(tmp_path: Path, *argv: str) -> None:
    load_config(cfg, tmp_path / "run.yaml", [*SAMPLE, *argv])


def test_settings_reach_the_subgraphs_whose_random_walks_are_not_stored(tmp_path: Path) -> None:
    load(tmp_path, "train.subgraph_nodes", "7", "train.subgraph_hops", "3", "seed", "5")
    loaded = load_configured()
    parts = loaded.dataset.graphs
    assert isinstance(parts, NodeSubgraphs)
    assert (parts.num_hops, parts.max_nodes, parts.seed) == (3, 7, 5)
    assert loaded.facts["share.rrwp_in_batch"] == 1
    assert max(part.num_nodes for part in parts) == 7
    assert current_sampling().sampler == "full_batch"
    load(tmp_path)
    assert (cfg.train.subgraph_hops, cfg.train.subgraph_nodes) == (2, 5)
    load_config(cfg, None, [])
    assert (cfg.train.subgraph_hops, cfg.train.subgraph_nodes) == (2, 250)


def test_encodings_that_are_stored_are_those_of_each_subgraph(tmp_path: Path) -> None:
    load(tmp_path, "posenc_RRWP.where", "cache")
    part = load_configured().dataset.graphs[11]
    assert part.rrwp.shape == (part.num_nodes**2, 3)
    degree = torch.zeros(part.num_nodes).index_add(0, part.edge_index[1], torch.ones(part.num_edges))
    assert bool((part.rrwp_degree >= degree).all())
    assert int(part.target_mask.sum()) == 1


def test_the_stock_create_loader_gives_batches_of_subgraphs(tmp_path: Path) -> None:
    load(tmp_path, "dataset.task", "node")
    train, val, _ = create_loader()
    assert cfg.dataset.task == "graph"
    batch = next(iter(train))
    assert batch.num_graphs == 32
    assert int(batch.target_mask.sum()) == 32
    assert len(val) > 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("train.subgraph_hops", "0"), "train.subgraph_hops: expected"),
        (("train.subgraph_nodes", "0"), "train.subgraph_nodes: expected"),
        (("train.sampler", "cluster", "val.sampler", "node2subgraph"), "node2subgraph makes graphs of the nodes of al"),
        (("val.sampler", "cluster"), "train.sampler node2subgraph and val.sampler cluster: "),
        (("gnn.head", "node"), "a label for the subgraph around each node (train.sampler node2subgraph): set gnn.head"),
        (("dataset.format", "PyG-ZINC", "dataset.name", "subset"), "train.sampler: node2subgraph takes the subgraph "),
        (
            ("dataset.format", "PyG-GNNBenchmarkDataset", "dataset.name", "PATTERN"),
            "and of PATTERN the nodes of each graph have labels: set full_batch",
        ),
    ],
)
def test_mistakes_are_one_line(
    argv: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, *argv) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(errors) == 1
    assert message in errors[0]
