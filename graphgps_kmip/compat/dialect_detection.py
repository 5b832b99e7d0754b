"""Whose file a public YAML file is: the dialect that its settings show, where it does not name one."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

# Dialect -> settings ("key value") that only its code has, or it and those above it; the first that fits counts.
MARKERS: dict[str, tuple[str, ...]] = {
    "": (  # ours
        "custom_modules *",
        "quirks *",
        "dataset.sample *",
        "dataset.cache_edges *",
        "train.precision *",
        "train.eval_test *",
        "train.max_nodes *",
        "optim.accumulation_mean *",
        "gnn.edge_residual *",
        "gnn.gine_inner *",
        "gnn.layer_act *",
        "gt.graph_norm *",
        *(f"gt.{group}.*" for group in ("kmip", "gatedgcn", "gine", "pna", "performer", "transformer", "exphormer")),
        *(f"posenc_GraphormerBias.{key} *" for key in ("edge_types", "unread_tables", "pad_paths", "move_edges")),
        "prep.exp_raw *",
        "prep.raw_reverse_edges *",
    ),
    "kmip": (  # of its files, all but those of point clouds have a budget
        "model.auto_satisfy_param_budget *",
        "model.param_budget *",
        "share.gradient_checkpointing *",
        "dataset.format PyG-CityNetwork",
    ),
    "kmip-thesis": (
        "gt.sparse.*",
        "gt.layer_type *SparseAttention*",
        "gt.vn_pooling *",
        "train.shuffle *",
        "dataset.debug *",
        "pretrained.seed *",
        "posenc_RWSEEdge.*",
        "dataset.edge_encoder_name *RWSEEdge",
        "dataset.format PyG-ShapeNet",
        "dataset.format PyG-S3DIS*",
        "dataset.format PyG-ModelNet*",
    ),
    "lrgb": (
        "gnn.head mlp_graph",
        "gnn.heads *",
        "gnn.attn_dropout *",
        "gnn.use_vn *",
        "gnn.vn_pooling *",
        "gnn.norm_type *",
        "train.eval_smoothing_metrics *",
        "dataset.node_encoder_name COCONode*",
        "dataset.edge_encoder_name COCOEdge",
    ),
    "spexphormer": (
        "model.type Exphormer",
        "model.type Spexphormer",
        "gt.layer_type ASE",
        "gt.layer_type Spexphormer",
        "gt.use_edge_feats *",
        "gt.FFN *",
        "gt.JK *",
        "train.mode custom_train",
        "train.mode custom_with_sampling",
        "train.save_attention_scores *",
        "train.temp_*",
        "train.spexphormer_sampler *",
        "train.*edge_s*",  # sample_new_edges, number_of_edge_sets, num_edge_samples, edge_sample_num_neighbors
        "train.*_edges *",
        "train.resampling_epochs *",
        "prep.replace_combined_exp_edges *",
        "prep.save_edges *",
        "prep.load_edges *",
        "prep.default_initial *",
        "prep.num_edge_sets *",
        "prep.edge_set_name *",
        "dataset.edge_encoder_name TypeDictEdge2",
        "dataset.format PyG-Heterophilous",
        "dataset.format SNAP",
    ),
    "exphormer": (
        "prep.*",
        "model.type MultiModel",
        "model.type SingleModel",
        "posenc_ER[NE].*",
        "gt.secondary_edges *",
    ),
}
# Parts of gt.layer_type in public files; any other name is ours, or one that a user has registered.
BRANCHES = frozenset(
    """None GENConv GINE GAT PNA CustomGatedGCN GCN GIN Transformer BiasedTransformer Performer BigBird SparseAttention
    ETransformer Exphormer SANLayer SAN2Layer ASE Spexphormer ExphormerInitial""".split()
)


def detect(settings: Iterable[tuple[str, Any, str]]) -> tuple[str, str]:
    """Return the dialect of a file and the setting that shows it, the first of `MARKERS`; else GraphGPS's.

    What one code copied from another counts as the other's: Exphormer's baselines are files of GraphGPS. Of the two
    k-MIP codes, the paper's is known by its parameter budgets; what only k-MIP code has is else of the thesis, and a
    warning says so, for the paper's point cloud files have no budget (`name_dialect`).

    Args:
        settings: (key, value, where it stands) of a file that does not name its dialect.

    Returns:
        A name, "" for our own meanings, and the reason in words.
    """
    texts = {f"{key} {value}".strip(): where for key, value, where in settings}
    for text, where in texts.items():
        key, _, value = text.partition(" ")
        if key == "gt.layer_type" and {part.partition("__")[0] for part in value.split("+")} - BRANCHES:
            return "", f"{text} ({where})"
    for dialect, patterns in MARKERS.items():
        for pattern in patterns:
            for text, where in texts.items():
                if fnmatchcase(text, pattern):
                    return dialect, f"{text} ({where})"
    return "graphgps", "nothing in it is of another code"


def name_dialect(settings: list[tuple[str, Any, str]]) -> list[tuple[str, Any, str]]:
    """Return the settings of a file with the dialect that it is found to be in before them, unless it names one."""
    if any(key == "dialect" for key, _, _ in settings):
        return settings
    dialect, why = detect(settings)
    logging.info("config: dialect %r, for %s; `dialect: NAME` overrides it", dialect or "ours", why)
    if dialect == "kmip-thesis":
        logging.warning(
            "config: read as a file of the k-MIP thesis' code; the paper's code means other mathematics by the same "
            "keys: set `dialect: kmip` if the file is the paper's, `dialect: kmip-thesis` if it is the thesis'"
        )
    return [("dialect", dialect, "the markers of the file"), *settings]
