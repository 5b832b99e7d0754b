"""Builders of networks: they read ``cfg`` and hand plain arguments to pure modules. All are stacks of `GPSModel`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.act import activation, layer_activation
from graphgps_kmip.gym.branches import branches, edge_width, rows
from graphgps_kmip.gym.ends import layers_width, stack
from graphgps_kmip.gym.graphormer import graphormer
from graphgps_kmip.gym.mpnn import MPNN
from graphgps_kmip.gym.san import san_transformer
from graphgps_kmip.gym.stock import stock_gnn
from graphgps_kmip.gym.whole import big_bird, performer
from graphgps_kmip.model import GNNLayer, GPSLayer
from graphgps_kmip.registry import build_row, named

# Values of gnn.layer_type in public files -> our row. By our own names, layers are configured as in GPS layers.
CONVS = {"gatedgcnconv": "GatedGCN", "gineconv": "GINE", "gcnconv": "GCN", "gatconv": "GAT"}


def gps_model(dim_in: int, dim_out: int) -> nn.Module:  # noqa: ARG001 (GraphGym's signature; encoders read the share)
    """GraphGPS: gt.layers layers of gt.layer_type (branches joined by plus), an encoder before, a head after."""
    dim = layers_width()
    return stack(dim, dim_out, [_gps_layer(dim) for _ in range(cfg.gt.layers)], edge_width())


def multi_model(dim_in: int, dim_out: int) -> nn.Module:  # noqa: ARG001
    """Exphormer's network of any number of branches: message passing reads the edges of the branch before it."""
    dim = layers_width()
    return stack(dim, dim_out, [_gps_layer(dim, chain_edges=True) for _ in range(cfg.gt.layers)], edge_width())


def single_model(dim_in: int, dim_out: int) -> nn.Module:  # noqa: ARG001
    """Exphormer's network of one branch a layer, then the activation: without feed-forward networks."""
    if len(rows()) != 1:
        raise ConfigError(
            f"gt.layer_type: model.type SingleModel has one branch, got {cfg.gt.layer_type}: take MultiModel for more"
        )
    dim = layers_width()
    return stack(dim, dim_out, [_gps_layer(dim, ffn=False) for _ in range(cfg.gt.layers)], edge_width())


def custom_gnn(dim_in: int, dim_out: int) -> nn.Module:  # noqa: ARG001
    """Message passing alone: gnn.layers_mp layers of gnn.layer_type, with gnn.residual, no norm around them."""
    dim = cfg.gnn.dim_inner
    return stack(dim, dim_out, [_conv_layer(dim) for _ in range(cfg.gnn.layers_mp)])


# Of gt.layers layers of gt.n_heads heads.
HEADED = ("GPSModel", "MultiModel", "SingleModel", "SANTransformer", "Performer", "BigBird")
NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {
    "GPSModel": gps_model,
    "MultiModel": multi_model,
    "SingleModel": single_model,
    "SANTransformer": san_transformer,
    "Performer": performer,
    "BigBird": big_bird,
    "custom_gnn": custom_gnn,
    "gnn": stock_gnn,
    "Graphormer": graphormer,
}


def width_step() -> int:
    """Return what the width of the configured network must be a multiple of: its number of heads, or 1."""
    if cfg.model.type == "Graphormer":
        return cfg.graphormer.num_heads
    alone = cfg.model.type == "custom_gnn" and cfg.gnn.layer_type not in CONVS
    headed = cfg.model.type in HEADED or alone
    return cfg.gt.n_heads if headed else 1


def _gps_layer(dim: int, ffn: bool = True, chain_edges: bool = False) -> GPSLayer:
    act = layer_activation()
    local, attention = branches(dim, act)
    return GPSLayer(dim, local, attention, cfg.gt.dropout, _norm(), act, ffn, chain_edges)


def _norm() -> str:
    chosen = [name for name in ("batch", "layer", "graph") if cfg.gt[f"{name}_norm"]]
    if len(chosen) > 1:
        keys = " and ".join(f"gt.{name}_norm" for name in chosen)
        raise ConfigError(f"{keys} are both True: a layer has one norm, set all but one to False")
    return chosen[0] if chosen else "none"


def _conv_layer(dim: int) -> GNNLayer:
    name, gnn = cfg.gnn.layer_type, cfg.gnn
    row = look_up(named(MPNN) | {public: MPNN[ours] for public, ours in CONVS.items()}, name, "gnn.layer_type")
    given: dict[str, Any] = {
        "heads": cfg.gt.n_heads,
        "equivstable_pe": False,  # no public code has gates in these networks
        "residual": gnn.residual,
        "edge_residual": gnn.residual if gnn.edge_residual is None else gnn.edge_residual,
    }
    if name in CONVS:
        given |= {"heads": 1, "use_edge_attr": False, "inner": gnn.gine_inner}
    conv = build_row(row, cfg.gt, dim, gnn.dropout, layer_activation(), given=given)
    if conv.internal_residual:
        return GNNLayer(conv)
    if name == "gineconv" and gnn.gine_inner == "mlp_dropout":  # its dropout is inside, and nothing follows
        return GNNLayer(conv, residual=gnn.residual)
    act = layer_activation() if row.name == "GINE" else activation()
    return GNNLayer(conv, act, gnn.dropout, gnn.residual)
