"""SAN from a config: which layers a file gets, their parameters module by module, and steps of training."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.optim import create_optimizer

from graphgps_kmip.data import make_loaders
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.experiment import assemble
from graphgps_kmip.gym.network_building import build_network
from graphgps_kmip.gym.planned_runs import configured, planned_runs
from graphgps_kmip.gym.train_modes import current_task
from graphgps_kmip.registry import components
from tests.gym.networks import DATA, configure, graphs

SAN = DATA | {
    "model.type": "SANTransformer",
    "gt.layer_type": "SANLayer",
    "gt.layers": 2,
    "gnn.head": "san_graph",
    "gnn.layers_pre_mp": 0,
}
# A public file in its keys: ZINC with two encodings (GraphGPS's tests), at its own width.
PUBLIC = """
metric_best: mae
metric_agg: argmin
dataset:
  {format: PyG-ZINC, name: subset, task: graph, task_type: regression, transductive: False, node_encoder: True,
   node_encoder_name: TypeDictNode+LapPE, node_encoder_num_types: 28, node_encoder_bn: False, edge_encoder: True,
   edge_encoder_name: TypeDictEdge, edge_encoder_num_types: 4, edge_encoder_bn: False}
posenc_LapPE:
  {enable: True, eigen: {laplacian_norm: sym, eigvec_norm: L2, max_freqs: 10}, model: DeepSet, dim_pe: 8, layers: 3,
   raw_norm_type: none}
train: {mode: custom, batch_size: 32, eval_period: 1, ckpt_period: 100}
model: {type: SANTransformer, loss_fun: l1, edge_decoding: dot, graph_pooling: add}
gt:
  {layers: 3, n_heads: 8, dim_hidden: 56, full_graph: True, gamma: 1e-5, dropout: 0.0, layer_norm: False,
   batch_norm: True, residual: True}
gnn:
  {head: san_graph, layers_pre_mp: 0, layers_post_mp: 3, dim_inner: 56, batchnorm: True, act: relu, dropout: 0.0,
   agg: mean, normalize_adj: False}
optim:
  {optimizer: adam, weight_decay: 0.0, base_lr: 0.0007, max_epoch: 1000, scheduler: reduce_on_plateau,
   reduce_factor: 0.5, schedule_patience: 25, min_lr: 1e-6}
"""


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("head", ["san_graph", "inductive_node"])
@pytest.mark.parametrize("layer_type", ["SANLayer", "SAN2Layer"])
@pytest.mark.parametrize("full_graph", [True, False])
def test_every_form_has_the_parameters_of_the_public_code(head: str, layer_type: str, full_graph: bool) -> None:
    configure(SAN | {"gt.layer_type": layer_type, "gt.full_graph": full_graph, "gnn.head": head, "gt.layers": 3})
    network, dim = build_network("SANTransformer", 5, 3), cfg.gnn.dim_inner
    square, names = dim * dim, ["query", "key", "edge", "value"]
    names += ["fake_query", "fake_key", "fake_edge"] if full_graph else []
    for layer in network.layers:
        (attention,) = layer.attention
        assert {name: count(getattr(attention, name)) for name in names} == dict.fromkeys(names, square)
        assert count(attention.out) == square + dim
        assert isinstance(attention.gamma, nn.Parameter) == (layer_type == "SAN2Layer")
        assert (count(layer.attention_norm), count(layer.ffn_norm)) == (2 * dim, 2 * dim)
        assert count(layer.ffn) == 4 * square + 3 * dim
    once = dim if full_graph else 0  # the feature of pairs without an edge
    of_layer = (len(names) + 5) * square + 8 * dim + (layer_type == "SAN2Layer")
    assert count(network) == count(network.encoder) + 3 * of_layer + once + count(network.head)
    if head == "san_graph":
        assert count(network.head) == (8 * 4 + 4) + (4 * 2 + 2) + (2 * 3 + 3)


def test_the_keys_of_the_config_reach_the_layers() -> None:
    given = {"gt.gamma": 0.25, "gt.dropout": 0.2, "gt.layer_norm": True, "gt.batch_norm": False, "gt.residual": False}
    configure(SAN | given | {"model.graph_pooling": "max"})
    network = build_network("SANTransformer", 5, 3)
    assert network.head.pool is components("pooling")["max"]
    layer = network.layers[1]
    (attention,) = layer.attention
    assert (attention.gamma, attention.dropout.p, attention.secondary_edges) == (0.25, 0.2, "full_graph")
    assert [module.p for module in layer.ffn if isinstance(module, nn.Dropout)] == [0.2]
    assert [type(norm) for norm in layer.attention_norm] == [nn.LayerNorm]
    assert not layer.residual


@pytest.mark.parametrize(
    ("settings", "pairs"),
    [
        ({}, "full_graph"),
        ({"gt.full_graph": False}, "none"),
        ({"gt.secondary_edges": "none"}, "none"),
        ({"gt.secondary_edges": "expander_edges"}, "expander"),
        ({"gt.secondary_edges": "expander_edge_index"}, "expander"),
    ],
)
def test_both_public_keys_say_which_pairs_stand_beside_the_edges(settings: dict[str, Any], pairs: str) -> None:
    configure(SAN | settings)
    assert build_network("SANTransformer", 5, 3).layers[0].attention[0].secondary_edges == pairs


@pytest.mark.parametrize("layer_type", ["SANLayer", "SAN2Layer"])
def test_the_network_predicts_each_graph_as_if_it_were_alone(layer_type: str) -> None:
    configure(SAN | {"gt.layer_type": layer_type, "gt.gamma": 0.3})
    model, batch = build_network("SANTransformer", 5, 3).double().eval(), graphs()
    batch.x, batch.edge_attr = batch.x.double(), batch.edge_attr.double()
    pred, true = model(batch.clone())
    assert true.tolist() == [5, 1, 3]
    for i, graph in enumerate(batch.to_data_list()):
        torch.testing.assert_close(model(Batch.from_data_list([graph]))[0][0], pred[i])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gt.layer_type": "SAN3Layer"}, "gt.layer_type: unknown name 'SAN3Layer'. Did you mean .*SAN2Layer"),
        ({"gt.dim_hidden": 16}, r"gt.dim_hidden \(16\) and gnn.dim_inner \(8\) must be equal"),
        ({"gt.layers": 0}, "gt.layers: expected 1 or more"),
        ({"gt.graph_norm": True}, "gt.graph_norm: .* set it False"),
    ],
)
def test_what_cannot_be_built_is_refused_by_key(settings: dict[str, Any], message: str) -> None:
    configure(SAN | settings)
    with pytest.raises(ConfigError, match=message):
        build_network("SANTransformer", 5, 3)


def test_a_public_file_takes_two_steps_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "zinc-SAN.yaml"
    file.write_text(PUBLIC)
    assert "layer_type" not in yaml.safe_load(PUBLIC)["gt"]  # most public files rely on the default of their code
    load_config(cfg, file, ["dataset.sample", "True", "num_threads", "1", "train.batch_size", "8"])
    with configured(planned_runs(1)[0]):
        parts = assemble()
        network = parts.model.model
        of_layer = 12 * 56**2 + 8 * 56
        of_head = (56 * 28 + 28) + (28 * 14 + 14) + (14 + 1)
        assert count(network) == count(network.encoder) + 3 * of_layer + 56 + of_head
        optimizer = create_optimizer(parts.model.parameters(), cfg.optim)
        loader = make_loaders(parts.dataset, parts.info.level, cfg.train.batch_size, seed=0)[0]
        before = [parameter.detach().clone() for parameter in parts.model.parameters()]
        for batch in itertools.islice(loader, 2):
            batch.split = "train"
            total, weight = current_task(parts.info.dim_out).loss(*parts.model(batch))
            optimizer.zero_grad()
            (total / weight).backward()
            optimizer.step()
        assert all(not torch.equal(*pair) for pair in zip(before, parts.model.parameters(), strict=True))
