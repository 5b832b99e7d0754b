"""Quirks: known faults of the public codes, corrected by default; ``quirks: [kmip_no_mask]`` switches one back on.

No component knows of them: each is a value of one of our settings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

Config = Any  # GraphGym's tree of settings, whose package `gym` alone imports

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
    "edge_norm_on_nodes": {"dataset.edge_norm_on_nodes": True},
}


def _branches(cfg: Config) -> set[str]:
    layered = cfg.model.type in ("GPSModel", "MultiModel", "SingleModel")
    return set(cfg.gt.layer_type.split("+")) if layered else set()


def _encodings(cfg: Config) -> set[str]:
    return set(cfg.dataset.node_encoder_name.split("+")) if cfg.dataset.node_encoder else set()


def _has_kmip(cfg: Config) -> bool:
    return bool({"kMIP", "SparseAttention"} & _branches(cfg))


def _has_performer(cfg: Config) -> bool:
    return cfg.model.type == "Performer" or "Performer" in _branches(cfg)


def _draws_expanders(cfg: Config) -> bool:
    return cfg.prep.exp


def _puts_tokens_in(cfg: Config) -> bool:
    local = {name.partition("__")[0] for name in _branches(cfg)} & {"GINE", "CustomGatedGCN", "GatedGCN", "GAT", "PNA"}
    return "GraphormerBias" in _encodings(cfg) and cfg.graphormer.use_graph_token and bool(local)


# Quirk -> whether the public code of a file meets the fault, by the settings of the file.
MET: dict[str, Callable[[Config], bool]] = {
    "kmip_no_mask": _has_kmip,
    "kmip_duplicate_key_0": _has_kmip,
    "performer_unmasked_keys": _has_performer,
    "performer_detached_stabiliser": lambda cfg: "Performer" in _branches(cfg),  # performer_pytorch's own is exact
    "bigbird_padded_blocks": lambda cfg: "BigBird" in _branches(cfg),
    "gine_row_1": lambda cfg: "GINE" in _branches(cfg) and "EquivStableLapPE" in _encodings(cfg),
    "graphormer_padded_paths": lambda cfg: (
        "GraphormerBias" in _encodings(cfg) and cfg.dataset.edge_encoder_num_types > 0
    ),
    "graphormer_token_shifts_edges": _puts_tokens_in,
    "exphormer_raw_expander": _draws_expanders,
    "edge_norm_on_nodes": lambda cfg: cfg.dataset.edge_encoder and cfg.dataset.edge_encoder_bn,
}


def quirks_met(cfg: Config) -> list[str]:
    """Return the quirks by which a loaded file of a public code would repeat what that code computes.

    Args:
        cfg: the whole config; one without a dialect is ours, and meets none.
    """
    return [name for name, met in MET.items() if met(cfg)] if cfg.dialect else []


def log_quirks(cfg: Config) -> None:
    """Log in one line the faults that the public code of this file has and that are corrected here."""
    corrected = [name for name in quirks_met(cfg) if name not in cfg.quirks]
    if corrected:
        logging.info(
            "config: faults of the code of dialect %s that concern this file are corrected; "
            "`quirks: [%s]` repeats them (docs/differences.md)",
            cfg.dialect,
            ", ".join(corrected),
        )
