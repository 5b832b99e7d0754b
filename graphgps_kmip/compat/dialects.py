"""Dialects and quirks: what the same keys meant in the public codes that made the printed numbers.

A dialect is a set of values for our own settings, and of keys that mean another of ours; ``dialect: kmip`` in a YAML
file chooses one, and whatever the file sets itself wins. A quirk is a fault of a public code that ours corrects;
``quirks: [kmip_no_mask]`` switches it back on for a faithful run. No component knows of either.
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Hashable
from typing import Any

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.compat.quirks import QUIRKS
from graphgps_kmip.errors import ConfigError

DEFAULT_WIDTH = 64  # gt.dim_hidden of the k-MIP codes, as of GraphGPS
NONE = ("none", "None", "null")

# What GraphGym's older layers do everywhere: rows of length 1 behind input layers and hidden layers of heads; and a
# default that most public files of whole-model baselines rely on.
GRAPHGYM = {"gnn.l2norm": True, "gt.layer_type": "SANLayer"}
SUM = {"optim.accumulation_mean": False}  # the gradients of accumulated batches are added up
RELU = {"gnn.layer_act": "relu"}  # in GPS layers, whatever gnn.act says
KEPT_WEIGHTS = {"gt.sparse_attn_dropout": 0.0}  # gt.attn_dropout reaches neither k-MIP nor Exphormer attention
REVERSE = {"prep.add_reverse_edges": True}  # of graphs whose nodes are classified
KEPT_HEAD = {"pretrained.reset_prediction_head": False, "pretrained.seed": 0}
NARROW_PNA = {"gt.pna.edge_dim": 16}
GRAPH_NORM = {("gt.layer_norm", True): ("gt.graph_norm", True)}
# Only LRGB's code scales the edge features of its superpixels, and with it the paper's k-MIP code those of nodes.
RAW_EDGES = {("dataset.edge_encoder_name", "VOCEdge"): ("dataset.edge_encoder_name", "LinearEdge")}
RAW_VOC = RAW_EDGES | {
    ("dataset.node_encoder_name", name): ("dataset.node_encoder_name", "LinearNode") for name in ("VOCNode", "COCONode")
}
# Matrices for edges on paths that have no types: nothing reads them, but the printed counts and checkpoints hold them.
GRAPHORMER = {"posenc_GraphormerBias.unread_tables": True}
# name -> our settings, as far as they are not our defaults.
DIALECTS: dict[str, dict[str, Any]] = {
    "graphgps": GRAPHGYM | SUM | GRAPHORMER,
    "exphormer": GRAPHGYM | SUM | RELU | NARROW_PNA | REVERSE | GRAPHORMER | KEPT_WEIGHTS,
    "spexphormer": GRAPHGYM
    | SUM
    | RELU
    | REVERSE
    | KEPT_WEIGHTS
    | {"prep.exp": True, "prep.exp_algorithm": "Hamiltonian", "gt.layer_type": "ExphormerInitial"},
    "lrgb": GRAPHGYM
    | SUM
    | {"gt.gine.inner": "norm_linear", "gnn.gine_inner": "mlp_dropout", "gnn.edge_residual": True},
    "kmip": GRAPHGYM
    | RELU
    | NARROW_PNA
    | {"gt.gatedgcn.residual": False, "gt.gine.inner": "norm_linear", "gnn.edge_residual": True}
    | {"gt.kmip.head_agg": "Linear"}
    | KEPT_WEIGHTS
    | KEPT_HEAD,
    "kmip-thesis": GRAPHGYM | RELU | NARROW_PNA | {"gt.kmip.head_agg": "Linear"} | KEPT_WEIGHTS | KEPT_HEAD,
}
# Where the networks of one code differ: (dialect, model.type), or (dialect, model.type, gnn.layer_type), -> further
# settings. The k-MIP code's MultiModel is Exphormer's, whose GatedGCN keeps its residual. In custom_gnn, gnn.act
# reaches neither GraphGPS's layers nor LRGB's GatedGCN.
OF_NETWORKS: dict[tuple[str, ...], dict[str, Any]] = {
    ("kmip", "MultiModel"): {"gt.gatedgcn.residual": True},
    ("kmip", "SingleModel"): {"gt.gatedgcn.residual": True},
    ("graphgps", "custom_gnn"): RELU,
    ("lrgb", "custom_gnn", "gatedgcnconv"): RELU,
}
# dialect, or (dialect, model.type) -> (key, value) -> what it means in ours.
MEANINGS: dict[str | tuple[str, str], dict[tuple[str, Any], tuple[str, Any]]] = {
    "graphgps": RAW_VOC,
    "exphormer": RAW_VOC | GRAPH_NORM,
    "spexphormer": GRAPH_NORM,
    "kmip": RAW_EDGES,
    "kmip-thesis": RAW_VOC | GRAPH_NORM,
    ("kmip", "MultiModel"): GRAPH_NORM,
    ("kmip", "SingleModel"): GRAPH_NORM,
}
# The k-MIP codes' heads are as wide as the network where a file does not give their width.
HEAD_WIDTHS = {
    "gt.kmip.dim_kq": ("gt.sparse.kq_dim", "gt.kmip.dim_kq"),
    "gt.kmip.dim_val": ("gt.sparse.val_dim", "gt.kmip.dim_val"),
}
WIDE_HEADS = ("kmip", "kmip-thesis")

Setting = tuple[str, Any, str]  # key, value, where it stands


def in_dialect(settings: list[Setting]) -> list[Setting]:
    """Return the settings with those of their dialect and quirks before them, and keys as the dialect means them.

    Args:
        settings: of files and command line, in order; the last ``dialect`` and ``quirks`` among them count.

    Raises:
        ConfigError: an unknown dialect or quirk.
    """
    named = {key: value for key, value, _ in settings}
    dialect, quirks = named.get("dialect") or "", named.get("quirks") or []
    if not isinstance(quirks, list):
        raise ConfigError(f"quirks: expected a list of names, got {reprlib.repr(quirks)}: write quirks: [name]")
    network = (dialect, str(named.get("model.type")))
    values = dict(look_up(DIALECTS, dialect, "dialect")) if dialect else {}
    for special in (network, (*network, str(named.get("gnn.layer_type")))):
        values |= OF_NETWORKS.get(special, {})
    for quirk in quirks:
        values |= look_up(QUIRKS, quirk, "quirks")
    meanings = MEANINGS.get(dialect, {}) | MEANINGS.get(network, {})
    before = [(key, value, f"dialect {dialect}") for key, value in values.items()]
    behind = _wide_heads(named, dialect)
    return before + [_meant(setting, meanings, dialect) for setting in settings] + behind


def _wide_heads(named: dict[str, Any], dialect: str) -> list[Setting]:
    """Return the widths of k-MIP's heads that the settings leave open, as the dialect fills them in."""
    parts = str(named.get("gt.layer_type", "")).split("+")
    if dialect not in WIDE_HEADS or "SparseAttention" not in parts:  # by our name, kMIP, None has our meaning
        return []
    width, found = named.get("gt.dim_hidden", DEFAULT_WIDTH), []
    for ours, keys in HEAD_WIDTHS.items():
        given = [named[key] for key in keys if named.get(key) not in (None, *NONE)]
        if not given:
            logging.info("config: %s is the whole width, %s, in the dialect %s", ours, width, dialect)
            found.append((ours, width, f"dialect {dialect}"))
    return found


def _meant(setting: Setting, meanings: dict[tuple[str, Any], tuple[str, Any]], dialect: str) -> Setting:
    key, value, origin = setting
    if not isinstance(value, Hashable):  # a list, or a set, which is refused where the type is known
        return setting
    first, plus, rest = value.partition("+") if isinstance(value, str) else (value, "", "")  # VOCNode+LapPE
    if (key, first) not in meanings:
        return setting
    ours, meant = meanings[key, first]
    meant = f"{meant}+{rest}" if plus else meant
    logging.info("config: %s %s means %s %s in the dialect %s", key, value, ours, meant, dialect)
    return (ours, meant, origin)
