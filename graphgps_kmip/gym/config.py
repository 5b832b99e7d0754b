"""The config keys that we add to GraphGym's, with their defaults; component groups come from their signatures."""

from __future__ import annotations

from typing import Any

from yacs.config import CfgNode

from graphgps_kmip.gym.attention import ATTENTION
from graphgps_kmip.gym.binding import group
from graphgps_kmip.gym.compat_keys import UNREAD
from graphgps_kmip.gym.expander import EXPHORMER
from graphgps_kmip.gym.mpnn import MPNN
from graphgps_kmip.gym.posenc import POSENC, posenc_group

# key -> default. Names as in GraphGPS where it has them; a comment marks what is ours or differs.
DEFAULTS: dict[str, Any] = {
    "name_tag": "",  # appended to the results folder
    "run_multiple_splits": [],  # run ids = these split indices, the seed stays
    "custom_modules": [],  # ours: Python files or modules imported before the config is checked
    "dialect": "",  # ours: which public code's meaning of keys and defaults a file has
    "quirks": [],  # ours: faults of public codes to switch back on
    "dataset.name": "none",  # what a format with a single data set calls it; GraphGym says Cora
    "dataset.split_mode": "standard",
    "dataset.split_index": 0,
    "dataset.split_dir": "",  # where drawn splits are kept; "" is dataset.dir/splits
    "dataset.cache_edges": False,  # ours: keep the k-NN graphs of point clouds on disk, instead of building them anew
    "dataset.sample": False,  # ours: a small synthetic stand-in instead of the data
    "dataset.normalize_features": False,  # ours: where the nodes of one graph are classified: their features sum to 1
    "dataset.slic_compactness": 30,  # 10 in GraphGPS; 30 is what was published as LRGB
    "dataset.node_encoder_num_types": 0,
    "dataset.edge_encoder_num_types": 0,
    "dataset.edge_norm_on_nodes": False,  # ours: dataset.edge_encoder_bn normalises the node features once more
    "dataset.infer_link_label": "None",  # of the head infer_links: edge
    "train.mode": "custom",
    "train.train_parts": 192,  # parts of a graph, for train.sampler cluster and random_node
    "train.shuffle": True,  # a new order of the training graphs each epoch
    "train.max_nodes": 0,  # ours: nodes of a training batch, instead of train.batch_size graphs; 0: off
    "train.eval_test": "every",  # ours: every evaluation, or "best": only at a new best
    "train.ckpt_best": False,
    "train.precision": "32-true",  # ours: or bf16-mixed, 64-true
    "optim.batch_accumulation": 1,
    "optim.accumulation_mean": True,  # ours: a step's gradient is the mean over its batches, not the sum
    "optim.clip_grad_norm": False,
    "optim.clip_grad_norm_value": 1.0,
    "optim.weight_decay_layers": "all",  # ours: or "first", as in the recipe of GCN
    "optim.reduce_factor": 0.1,
    "optim.schedule_patience": 10,
    "optim.min_lr": 0.0,
    "optim.num_warmup_epochs": 50,
    "share.dim_er": 0,  # width of posenc_ERN where er_dim says none: entered when the data is loaded
    "share.gradient_checkpointing": False,  # ours: compute layers again in the backward pass instead of keeping them
    "model.auto_satisfy_param_budget": False,
    "model.param_budget": 500_000,
    "gnn.residual": False,
    "gnn.edge_residual": None,  # ours: of GatedGCN; None is gnn.residual
    "gnn.gine_inner": "mlp",  # ours: what GINE computes inside, see gt.gine.inner
    "gnn.layer_act": "",  # ours: activation inside the layers; "" is gnn.act
    "gnn.l2norm": False,  # rows of input layers and of hidden layers of heads get length 1; GraphGym says True
    "gt.layer_type": "GatedGCN+kMIP",
    "gt.layers": 3,
    "gt.n_heads": 8,
    "gt.dim_hidden": 64,
    "gt.dropout": 0.0,
    "gt.attn_dropout": 0.0,
    "gt.sparse_attn_dropout": None,  # ours: of k-MIP and Exphormer attention; None is gt.attn_dropout
    "gt.batch_norm": True,
    "gt.layer_norm": False,  # statistics over all nodes and channels of a graph
    "gt.graph_norm": False,  # ours: GraphNorm
    "gt.full_graph": True,  # SAN: pairs without an edge take part
    "gt.gamma": 1e-5,  # SAN: with this weight
    "gt.secondary_edges": "full_graph",  # SAN: which pairs; none, or another edge set of the batch
    "gt.residual": True,  # SAN
    "graphormer.num_layers": 6,
    "graphormer.embed_dim": 80,
    "graphormer.num_heads": 4,  # of model.type Graphormer; GPSModel has gt.n_heads, also for GraphormerBias
    "graphormer.dropout": 0.0,
    "graphormer.attention_dropout": 0.0,
    "graphormer.mlp_dropout": 0.0,
    "graphormer.input_dropout": 0.0,  # of GraphormerBias, whatever the network
    "graphormer.use_graph_token": True,  # wherever GraphormerBias is a part of the node encoder
    "prep.exp": False,
    "prep.exp_algorithm": "Random-d",
    "prep.exp_deg": 5,  # permutations or cycles: each node has twice as many neighbours
    "prep.exp_max_num_iters": 100,
    "prep.exp_raw": False,  # ours: keep loops and repeated edges, as the public code does
    "prep.use_exp_edges": True,
    "prep.add_reverse_edges": False,  # where the nodes of one graph are classified; True in Exphormer's code
    "prep.raw_reverse_edges": False,  # ours: also where they are there already, as in Exphormer's code
    "prep.add_self_loops": False,  # likewise of one graph
    "prep.add_edge_index": True,
    "prep.num_virt_node": 0,
    "pretrained.dir": "",  # the results folder of an earlier run, above its seeds
    "pretrained.reset_prediction_head": True,
    "pretrained.freeze_main": False,  # train the head alone
    "pretrained.seed": -1,  # of the earlier run; -1: that of this one, as in GraphGPS
    "wandb.use": False,
    "wandb.entity": "",
    "wandb.project": "graphgps_kmip",
    "wandb.name": "",
}


def set_defaults(cfg: CfgNode) -> None:
    """Add our keys to GraphGym's config; groups that other packages made keep their keys."""
    _enter(cfg, DEFAULTS)
    for row in POSENC.values():
        cfg[row.group] = posenc_group(row)
    for row in (*ATTENTION.values(), *MPNN.values()):
        cfg.gt[row.group] = group(row.component, without=("heads", "equivstable_pe", *EXPHORMER))
    _enter(cfg, UNREAD)  # last, for some stand in the groups of components


def _enter(cfg: CfgNode, defaults: dict[str, Any]) -> None:
    for key, value in defaults.items():
        *parents, leaf = key.split(".")
        node = cfg
        for parent in parents:
            node = node.setdefault(parent, CfgNode())
        if not isinstance(node.get(leaf), CfgNode):  # a user's component may have the name of an unread key
            node[leaf] = value
