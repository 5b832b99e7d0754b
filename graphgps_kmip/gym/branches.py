"""The branches of a GPS layer: ``gt.layer_type`` joins names by plus, message passing and attention, any number."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.attention import ExphormerAttention
from graphgps_kmip.attention.exphormer import ExpanderMessages
from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.attention import ATTENTION
from graphgps_kmip.gym.expander import EXPHORMER
from graphgps_kmip.gym.mpnn import MPNN
from graphgps_kmip.registry import Row, build_row, dropout_of, named
from graphgps_kmip.signatures import options

KEY = "gt.layer_type"
ALONG_EXPANDER = "__exp"  # behind the name of a message passing layer: it reads the edges of Exphormer attention
GPS = ("GPSModel", "MultiModel", "SingleModel")  # the networks whose layers have branches


def rows() -> list[Row]:
    """Return the rows of the branches that the config names, those called None left out.

    Raises:
        ConfigError: an unknown name, or one with an ending that is not `ALONG_EXPANDER` of a message passing layer.
    """
    return [_row(name) for name in cfg.gt.layer_type.split("+") if name != "None"]


def _row(name: str) -> Row:
    name, mark, edges = name.partition("__")
    row = look_up(named(MPNN) | named(ATTENTION), name, KEY)
    if not mark:
        return row
    if mark + edges != ALONG_EXPANDER or row.name not in MPNN:
        raise ConfigError(
            f"{KEY}: {name}{mark}{edges}: the only ending is {ALONG_EXPANDER}, behind a message passing layer "
            f"({', '.join(named(MPNN))}): leave it out"
        )
    return replace(row, name=row.name + mark + edges)


def edge_width() -> int | None:
    """Return the width of the edge features that a branch asks for by its option ``edge_dim``, None for that of nodes.

    Raises:
        ConfigError: two branches ask for different ones.
    """
    asked = {row.name: cfg.gt[row.group].edge_dim for row in rows() if "edge_dim" in options(row.component)}
    if asked and len(asked) < sum(row.name in MPNN for row in rows()):  # the others read edges as wide as nodes
        asked["the others"] = None
    if len(set(asked.values())) > 1:
        raise ConfigError(f"{KEY} {cfg.gt.layer_type}: its branches read edges of different widths, {asked}")
    return next(iter(asked.values()), None)


def branches(dim: int, act: Callable[[], nn.Module]) -> tuple[list[nn.Module], list[nn.Module]]:
    """Return new modules for one layer: message passing, attention.

    Args:
        dim: width C.
        act: builds the activation.
    """
    chosen, gt = rows(), cfg.gt
    local = [row for row in chosen if row.name in MPNN]
    given = {"heads": gt.n_heads, "equivstable_pe": cfg.posenc_EquivStableLapPE.enable}
    given |= {name: cfg.prep[name] for name in EXPHORMER}
    attention = [
        build_row(row, gt, dim, gt.n_heads, dropout_of(row, gt), given=given) for row in chosen if row.name in ATTENTION
    ]
    attention += [_along_expander(row, dim, act, given) for row in chosen if row.name.endswith(ALONG_EXPANDER)]
    starts = [one.initial_state for one in attention if isinstance(one, (ExphormerAttention, ExpanderMessages))]
    for start in starts[1:]:
        start.expander = starts[0].expander  # one vector in a model, as in the public code
    return [build_row(row, gt, dim, gt.dropout, act, given=given) for row in local], attention


def _along_expander(row: Row, dim: int, act: Callable[[], nn.Module], given: dict[str, Any]) -> nn.Module:
    """Return a message passing module on the edges of Exphormer; dropout and residual are those around attentions."""
    conv = build_row(row, cfg.gt, dim, 0.0, act, given=given | {"residual": False})
    edges = {name: cfg.prep[name] for name in ("add_edge_index", "use_exp_edges")}
    return ExpanderMessages(conv, dim, cfg.gt.dropout, **edges)


def warn_of_unread_settings() -> None:
    """Log settings that are switched on and that no branch of the layers reads."""
    if cfg.model.type not in GPS:
        return
    chosen = rows()
    reading = [row.name for row in chosen if row.name == "Exphormer" or row.name.endswith(ALONG_EXPANDER)]
    if reading and cfg.prep.use_exp_edges and not cfg.prep.exp:
        logging.warning(
            "%s has no expander edges, prep.exp is False: set it True, or prep.use_exp_edges False", reading[0]
        )
    if cfg.posenc_EquivStableLapPE.enable and not any("equivstable_pe" in options(row.component) for row in chosen):
        logging.warning("posenc_EquivStableLapPE has no effect: no branch of %s %s reads it", KEY, cfg.gt.layer_type)
