"""Networks in the registries, configs without a file, and graphs, for the tests of networks."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.data import Batch, Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.gym.config_loading import load_config

# What the networks of `graphs` have in common.
DATA = {
    "model.type": "custom_gnn",
    "dataset.node_encoder": True,
    "dataset.node_encoder_name": "LinearNode",
    "dataset.node_encoder_bn": False,
    "dataset.edge_encoder": True,
    "dataset.edge_encoder_name": "LinearEdge",
    "dataset.edge_encoder_bn": False,
    "dataset.edge_dim": 2,
    "share.dim_in": 5,
    "gnn.dim_inner": 8,
    "gt.dim_hidden": 8,
    "graphormer.embed_dim": 8,
    "gt.n_heads": 2,
    "gt.layer_type": "GatedGCN+kMIP",
    "gnn.layers_mp": 2,
    "gnn.layers_post_mp": 2,
    "gnn.layer_type": "gcnconv",
    "gnn.head": "graph",
}


def configure(settings: dict[str, Any]) -> None:
    load_config(cfg, None, [])
    for key, value in settings.items():
        *groups, leaf = key.split(".")
        node = cfg
        for group in groups:
            node = node[group]
        assert leaf in node, key
        node[leaf] = value


def graphs() -> Batch:
    rows = [(n, torch.randn(n, 5), torch.randint(n, (2, n - 1)), torch.randn(n - 1, 2)) for n in (5, 1, 3)]
    return Batch.from_data_list([Data(x=x, edge_index=edges, edge_attr=attr, y=n) for n, x, edges, attr in rows])
