"""Dialects and quirks: what the same keys meant in the public codes that made the printed numbers.

A dialect is a set of values for our own settings, and of keys that mean another of ours; ``dialect: kmip`` in a YAML
file chooses one, and whatever the file sets itself wins. A quirk is a fault of a public code that ours corrects;
``quirks: [kmip_no_mask]`` switches it back on for a faithful run. No component knows of either.
"""

from __future__ import annotations

import logging
from typing import Any

from graphgps_kmip.gym.errors import look_up

# What GraphGym's older layers do everywhere: rows of length 1 behind input layers and hidden layers of heads; and a
# default that most public files of whole-model baselines rely on.
GRAPHGYM = {"gnn.l2norm": True, "gt.layer_type": "SANLayer"}
SUM = {"optim.accumulation_mean": False}  # the gradients of accumulated batches are added up
RELU = {"gnn.layer_act": "relu"}  # in GPS layers, whatever gnn.act says
REVERSE = {"prep.add_reverse_edges": True}  # of graphs whose nodes are classified
KEPT_HEAD = {"pretrained.reset_prediction_head": False, "pretrained.seed": 0}
NARROW_PNA = {"gt.pna.edge_dim": 16}
GRAPH_NORM = {("gt.layer_norm", True): ("gt.graph_norm", True)}
# Only LRGB's code scales the edge features of its superpixels.
RAW_VOC = {("dataset.edge_encoder_name", "VOCEdge"): ("dataset.edge_encoder_name", "LinearEdge")}
# Matrices for edges on paths that have no types: nothing reads them, but the printed counts and checkpoints hold them.
GRAPHORMER = {"posenc_GraphormerBias.unread_tables": True}
# name -> our settings, as far as they are not our defaults.
DIALECTS: dict[str, dict[str, Any]] = {
    "graphgps": GRAPHGYM | SUM | GRAPHORMER,
    "exphormer": GRAPHGYM | SUM | RELU | NARROW_PNA | REVERSE | GRAPHORMER,
    "spexphormer": GRAPHGYM
    | SUM
    | RELU
    | REVERSE
    | {"prep.exp": True, "prep.exp_algorithm": "Hamiltonian", "gt.layer_type": "ExphormerInitial"},
    "lrgb": GRAPHGYM
    | SUM
    | {"gt.gine.inner": "norm_linear", "gnn.gine_inner": "mlp_dropout", "gnn.edge_residual": True},
    "kmip": GRAPHGYM
    | RELU
    | NARROW_PNA
    | {"gt.gatedgcn.residual": False, "gt.gine.inner": "norm_linear", "gnn.edge_residual": True}
    | {"gt.kmip.head_agg": "Linear"}
    | KEPT_HEAD,
    "kmip-thesis": GRAPHGYM | RELU | NARROW_PNA | {"gt.kmip.head_agg": "Linear"} | KEPT_HEAD,
}
# Where the networks of one code differ: (dialect, model.type) -> further settings. The k-MIP code's MultiModel is
# Exphormer's, whose GatedGCN keeps its residual.
OF_NETWORKS: dict[tuple[str, str], dict[str, Any]] = {
    ("kmip", network): {"gt.gatedgcn.residual": True} for network in ("MultiModel", "SingleModel")
}
# dialect, or (dialect, model.type) -> (key, value) -> what it means in ours.
MEANINGS: dict[str | tuple[str, str], dict[tuple[str, Any], tuple[str, Any]]] = {
    "graphgps": RAW_VOC,
    "exphormer": RAW_VOC | GRAPH_NORM,
    "spexphormer": GRAPH_NORM,
    "kmip": RAW_VOC,
    "kmip-thesis": RAW_VOC | GRAPH_NORM,
    ("kmip", "MultiModel"): GRAPH_NORM,
    ("kmip", "SingleModel"): GRAPH_NORM,
}
QUIRKS: dict[str, dict[str, Any]] = {
    "kmip_no_mask": {"gt.kmip.pad_keys": True},
    "kmip_duplicate_key_0": {"gt.kmip.repeat_first_key": True},
    "performer_unmasked_keys": {"gt.performer.mask_keys": False},
    "performer_detached_stabiliser": {"gt.performer.detach_stabiliser": True},
    "bigbird_padded_blocks": {"gt.bigbird.pattern": "public"},
    "bigbird_global_rng": {"gt.bigbird.pattern": "public_global_rng"},
    "gine_row_1": {"gt.gine.broadcast_row_1": True},
    "graphormer_padded_paths": {"posenc_GraphormerBias.pad_paths": True},
    "graphormer_token_shifts_edges": {"posenc_GraphormerBias.move_edges": False},
    "exphormer_raw_expander": {"prep.exp_raw": True},
    "exphormer_double_edges": {"prep.raw_reverse_edges": True},
}

Setting = tuple[str, Any, str]  # key, value, where it stands


def in_dialect(settings: list[Setting]) -> list[Setting]:
    """Return the settings with those of their dialect and quirks before them, and keys as the dialect means them.

    Args:
        settings: of files and command line, in order; the last ``dialect`` and ``quirks`` among them count.

    Raises:
        ConfigError: an unknown dialect or quirk.
    """
    named = {key: value for key, value, _ in settings if key in ("dialect", "quirks", "model.type")}
    dialect, quirks = named.get("dialect") or "", named.get("quirks") or []
    special = (dialect, named.get("model.type"))
    values = look_up(DIALECTS, dialect, "dialect") | OF_NETWORKS.get(special, {}) if dialect else {}
    for quirk in quirks:
        values |= look_up(QUIRKS, quirk, "quirks")
    meanings = MEANINGS.get(dialect, {}) | MEANINGS.get(special, {})
    before = [(key, value, f"dialect {dialect}") for key, value in values.items()]
    return before + [_meant(setting, meanings, dialect) for setting in settings]


def _meant(setting: Setting, meanings: dict[tuple[str, Any], tuple[str, Any]], dialect: str) -> Setting:
    key, value, origin = setting
    if isinstance(value, (list, dict)) or (key, value) not in meanings:
        return setting
    ours = meanings[key, value]
    logging.info("config: %s %s means %s %s in the dialect %s", key, value, *ours, dialect)
    return (*ours, origin)
