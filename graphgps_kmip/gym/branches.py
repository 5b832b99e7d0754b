"""The branches of a GPS layer: ``gt.layer_type`` joins names by plus, message passing and attention, any number."""

from __future__ import annotations

import logging
from collections.abc import Callable

from torch import nn
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.gym.attention import ATTENTION
from graphgps_kmip.gym.binding import options
from graphgps_kmip.gym.errors import ConfigError, look_up
from graphgps_kmip.gym.expander import EXPHORMER
from graphgps_kmip.gym.mpnn import MPNN
from graphgps_kmip.gym.table import Row, build_row, named

KEY = "gt.layer_type"
GPS = ("GPSModel", "MultiModel")  # the networks whose layers have branches


def rows() -> list[Row]:
    """Return the rows of the branches that the config names, those called None left out.

    Raises:
        ConfigError: an unknown name.
    """
    table = named(MPNN) | named(ATTENTION)
    return [look_up(table, name, KEY) for name in cfg.gt.layer_type.split("+") if name != "None"]


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
    return (
        [build_row(row, gt, dim, gt.dropout, act, given=given) for row in local],
        [build_row(row, gt, dim, gt.n_heads, gt[row.dropout], given=given) for row in chosen if row.name in ATTENTION],
    )


def warn_of_unread_settings() -> None:
    """Log settings that are switched on and that no branch of the layers reads."""
    if cfg.model.type not in GPS:
        return
    chosen = rows()
    if any(row.name == "Exphormer" for row in chosen) and cfg.prep.use_exp_edges and not cfg.prep.exp:
        logging.warning("Exphormer has no expander edges, prep.exp is False: set it True, or prep.use_exp_edges False")
    if cfg.posenc_EquivStableLapPE.enable and not any("equivstable_pe" in options(row.component) for row in chosen):
        logging.warning("posenc_EquivStableLapPE has no effect: no branch of %s %s reads it", KEY, cfg.gt.layer_type)
