"""Builders of networks: they read ``cfg`` and hand plain arguments to pure modules. All are stacks of `GPSModel`."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config import settings_of
from graphgps_kmip.model import GNNLayer, GPSLayer
from graphgps_kmip.networks.activations import activation, layer_activation
from graphgps_kmip.networks.branches import branch_rows, branches, edge_width
from graphgps_kmip.networks.network_stack import layers_width, stack
from graphgps_kmip.registry import build, named, register

# Values of gnn.layer_type in public files -> our row. By our own names, layers are configured as in GPS layers.
CONVS = {"gatedgcnconv": "GatedGCN", "gineconv": "GINE", "gcnconv": "GCN", "gatconv": "GAT"}


@register("network", "GPSModel")
def gps_model(dim_in: int, dim_out: int) -> nn.Module:  # noqa: ARG001 (GraphGym's signature; encoders read the share)
    """GraphGPS: gt.layers layers of gt.layer_type (branches joined by plus), an encoder before, a head after."""
    dim = layers_width()
    return stack(dim, dim_out, [_gps_layer(dim) for _ in range(cfg.gt.layers)], edge_width())


@register("network", "MultiModel")
def multi_model(dim_in: int, dim_out: int) -> nn.Module:  # noqa: ARG001
    """Exphormer's network of any number of branches: message passing reads the edges of the branch before it."""
    dim = layers_width()
    return stack(dim, dim_out, [_gps_layer(dim, chain_edges=True) for _ in range(cfg.gt.layers)], edge_width())


@register("network", "SingleModel")
def single_model(dim_in: int, dim_out: int) -> nn.Module:  # noqa: ARG001
    """Exphormer's network of one branch a layer, then the activation: without feed-forward networks."""
    if len(branch_rows()) != 1:
        raise ConfigError(
            f"gt.layer_type: model.type SingleModel has one branch, got {cfg.gt.layer_type}: take MultiModel for more"
        )
    dim = layers_width()
    return stack(dim, dim_out, [_gps_layer(dim, ffn=False) for _ in range(cfg.gt.layers)], edge_width())


@register("network", "custom_gnn")
def custom_gnn(dim_in: int, dim_out: int) -> nn.Module:  # noqa: ARG001
    """Message passing alone: gnn.layers_mp layers of gnn.layer_type, with gnn.residual, no norm around them."""
    dim = cfg.gnn.dim_inner
    return stack(dim, dim_out, [_conv_layer(dim) for _ in range(cfg.gnn.layers_mp)])


# Of gt.layers layers of gt.n_heads heads.
HEADED = ("GPSModel", "MultiModel", "SingleModel", "SANTransformer", "Performer", "BigBird")


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
    known = named("message_passing")
    spec = look_up(known | {public: known[ours] for public, ours in CONVS.items()}, name, "gnn.layer_type")
    given: dict[str, Any] = {
        "heads": cfg.gt.n_heads,
        "equivstable_pe": False,  # no public code has gates in these networks
        "residual": gnn.residual,
        "edge_residual": gnn.residual if gnn.edge_residual is None else gnn.edge_residual,
    }
    if name in CONVS:
        given |= {"heads": 1, "use_edge_attr": False, "inner": gnn.gine_inner}
    conv = build(spec, dim, gnn.dropout, layer_activation(), settings=settings_of(spec), given=given)
    if conv.internal_residual:
        return GNNLayer(conv)
    if name == "gineconv" and gnn.gine_inner == "mlp_dropout":  # its dropout is inside, and nothing follows
        return GNNLayer(conv, residual=gnn.residual)
    act = layer_activation() if spec.name == "GINE" else activation()
    return GNNLayer(conv, act, gnn.dropout, gnn.residual)
