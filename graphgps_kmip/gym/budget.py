"""``model.auto_satisfy_param_budget``: the largest width whose network stays within ``model.param_budget``."""

from __future__ import annotations

import logging

import torch
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.model_builder import create_model

from graphgps_kmip.networks.branches import GPS, branch_rows
from graphgps_kmip.networks.gps_networks import HEADED, width_step

NARROWEST, WIDEST = 32, 512  # of the public k-MIP code's search


def enter_width() -> None:
    """Enter into ``cfg`` the largest width in 32..512 within the budget, found by bisection, if the config asks so.

    A width is rounded up to a multiple of what `width_step` says before its parameters are counted; that of the values
    of k-MIP follows it, ``gt.kmip.dim_val`` = width / gt.n_heads, ``dim_kq`` stays (the public k-MIP code, which does
    so for its GPSModel and custom_gnn; here for every network). If even the narrowest is too large, it is taken, and
    the log warns. To be called when the data is loaded and ``cfg`` still open.

    Cost: 9 networks without memory for their weights; no random number is drawn.
    """
    if not cfg.model.auto_satisfy_param_budget:
        return
    budget, best, low, high = cfg.model.param_budget, NARROWEST, NARROWEST, WIDEST
    while low <= high:
        middle = (low + high) // 2
        _set_width(middle)
        if count_parameters() <= budget:
            best, low = middle, middle + 1
        else:
            high = middle - 1
    _set_width(best)
    count = count_parameters()
    if count > budget:
        logging.warning("model.param_budget %s is below the narrowest network: it has %s", f"{budget:,}", f"{count:,}")
    logging.info("model.param_budget %s: width %d, %s parameters", f"{budget:,}", cfg.gnn.dim_inner, f"{count:,}")


def count_parameters() -> int:
    """Return the number of parameters of the configured network, which is built without memory for them."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return sum(parameter.numel() for parameter in create_model(to_device=False).parameters())


def _set_width(width: int) -> None:
    step = width_step()
    width = -(-width // step) * step
    cfg.gnn.dim_inner = width
    if cfg.model.type == "Graphormer":
        cfg.graphormer.embed_dim = width
    if cfg.model.type in HEADED:
        cfg.gt.dim_hidden = width
        if cfg.model.type in GPS and any(one.name == "kMIP" for one in branch_rows()):
            cfg.gt.kmip.dim_val = width // cfg.gt.n_heads
