"""Networks from GraphGym's config: `build_network`, `build_model`, and the width search of ``model.param_budget``."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.gym.graphgym_registries import of_others
from graphgps_kmip.networks.branches import GPS, branch_rows
from graphgps_kmip.networks.gps_networks import HEADED, width_step
from graphgps_kmip.networks.network_plan import NetworkPlan
from graphgps_kmip.registry import Spec, named

NARROWEST, WIDEST = 32, 512  # of the public k-MIP code's search


class NetworkModule(nn.Module):
    """A network under the name ``model``, with which GraphGym begins the names of parameters in checkpoints.

    Args:
        network (nn.Module): The network.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.model = network

    def forward(self, batch: Any) -> Any:
        """Return the network's output."""
        return self.model(batch)


def current_plan(dim_in: int | None = None, edge_dim: int | None = None) -> NetworkPlan:
    """Return what the builders of networks read, from the config.

    Args:
        dim_in (int, optional): Columns of the node features. (default: ``cfg.share.dim_in``)
        edge_dim (int, optional): Columns of the edge features. (default: ``cfg.dataset.edge_dim``)
    """
    dim_in = cfg.share.dim_in if dim_in is None else dim_in
    return NetworkPlan(cfg, dim_in, cfg.dataset.edge_dim if edge_dim is None else edge_dim, of_others())


def build_network(name: str, dim_in: int, dim_out: int, edge_dim: int | None = None) -> nn.Module:
    """Return a new network by its name, ``model.type``.

    Args:
        name (str): Its name.
        dim_in (int): Columns of the node features.
        dim_out (int): Columns of the prediction.
        edge_dim (int, optional): Columns of the edge features. (default: ``cfg.dataset.edge_dim``)

    Raises:
        ConfigError: no such network, or the config does not fit it.
    """
    entry = look_up(named("network") | of_others()["network"], name, "model.type")
    if not isinstance(entry, Spec):
        return entry(dim_in=dim_in, dim_out=dim_out)
    return current_plan(dim_in, edge_dim).build(entry, dim_in, dim_out)


def build_model(dim_in: int, dim_out: int, edge_dim: int | None = None) -> NetworkModule:
    """Return the model of the config, as `build_network`; two classes have one logit, as in GraphGym."""
    if cfg.dataset.task_type == "classification" and dim_out == 2:
        dim_out = 1
    return NetworkModule(build_network(cfg.model.type, dim_in, dim_out, edge_dim))


def enter_width(dim_in: int, dim_out: int, edge_dim: int | None = None) -> None:
    """Enter into ``cfg`` the largest width in 32..512 within the budget, found by bisection, if the config asks so.

    A width is rounded up to a multiple of what `width_step` says before its parameters are counted; that of the values
    of k-MIP follows it, ``gt.kmip.dim_val`` = width / gt.n_heads, ``dim_kq`` stays (the public k-MIP code, which does
    so for its GPSModel and custom_gnn; here for every network). If even the narrowest is too large, it is taken, and
    the log warns. To be called when the data is loaded and ``cfg`` still open.

    Args:
        dim_in (int): Columns of the node features.
        dim_out (int): Columns of the prediction.
        edge_dim (int, optional): Columns of the edge features. (default: ``cfg.dataset.edge_dim``)

    Cost: 9 networks without memory for their weights; no random number is drawn.
    """
    if not cfg.model.auto_satisfy_param_budget:
        return
    budget, best, low, high = cfg.model.param_budget, NARROWEST, NARROWEST, WIDEST
    while low <= high:
        middle = (low + high) // 2
        _set_width(middle)
        if count_parameters(dim_in, dim_out, edge_dim) <= budget:
            best, low = middle, middle + 1
        else:
            high = middle - 1
    _set_width(best)
    count = count_parameters(dim_in, dim_out, edge_dim)
    if count > budget:
        logging.warning("model.param_budget %s is below the narrowest network: it has %s", f"{budget:,}", f"{count:,}")
    logging.info("model.param_budget %s: width %d, %s parameters", f"{budget:,}", cfg.gnn.dim_inner, f"{count:,}")


def count_parameters(dim_in: int, dim_out: int, edge_dim: int | None = None) -> int:
    """Return the number of parameters of the configured network, which is built without memory for them."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return sum(parameter.numel() for parameter in build_model(dim_in, dim_out, edge_dim).parameters())


def _set_width(width: int) -> None:
    step = width_step(cfg)
    width = -(-width // step) * step
    cfg.gnn.dim_inner = width
    if cfg.model.type == "Graphormer":
        cfg.graphormer.embed_dim = width
    if cfg.model.type in HEADED:
        cfg.gt.dim_hidden = width
        if cfg.model.type in GPS and any(one.name == "kMIP" for one in branch_rows(current_plan())):
            cfg.gt.kmip.dim_val = width // cfg.gt.n_heads
