"""Builder of the network ``GPSModel``: reads ``cfg``, hands plain arguments to pure modules."""

from __future__ import annotations

from torch import nn
from torch_geometric.graphgym import register
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.gym.branches import branches
from graphgps_kmip.gym.encoder import edge_encoder, node_encoder
from graphgps_kmip.gym.errors import ConfigError, look_up
from graphgps_kmip.gym.head import HEADS
from graphgps_kmip.model import FeatureEncoder, GPSLayer, GPSModel, input_layers


def gps_model(dim_in: int, dim_out: int) -> nn.Module:  # noqa: ARG001 (GraphGym's signature; encoders read the share)
    """GraphGPS: gt.layers layers of gt.layer_type (branches joined by plus), an encoder before, a head after."""
    dim = cfg.gnn.dim_inner
    if cfg.gt.dim_hidden != dim:
        raise ConfigError(
            f"gt.dim_hidden ({cfg.gt.dim_hidden}) and gnn.dim_inner ({dim}) must be equal: encoder, layers and head "
            "share one width"
        )
    if cfg.gt.layers < 1:
        raise ConfigError(f"gt.layers: expected 1 or more, got {cfg.gt.layers}")
    act = look_up(register.act_dict, cfg.gnn.act, "gnn.act")
    head = look_up(register.head_dict | HEADS, cfg.gnn.head, "gnn.head")  # ours before GraphGym's of the same name
    return GPSModel(
        encoder=_encoder(dim),
        pre_mp=input_layers(dim, cfg.gnn.layers_pre_mp, cfg.gnn.batchnorm, cfg.gnn.dropout, act),
        layers=[_layer(dim, act) for _ in range(cfg.gt.layers)],
        head=head(dim, dim_out),
        recompute=cfg.share.gradient_checkpointing,
    )


def _encoder(dim: int) -> FeatureEncoder:
    node = edge = None
    if cfg.dataset.node_encoder:
        node = node_encoder(cfg.dataset.node_encoder_name, dim)
    elif cfg.share.dim_in != dim:
        raise ConfigError(
            f"dataset.node_encoder is False, so gnn.dim_inner ({dim}) must be the data's width {cfg.share.dim_in}: "
            "set dataset.node_encoder True and dataset.node_encoder_name LinearNode"
        )
    if cfg.dataset.edge_encoder:
        edge = edge_encoder(cfg.dataset.edge_encoder_name, dim)
    return FeatureEncoder(dim, node, edge, cfg.dataset.node_encoder_bn, cfg.dataset.edge_encoder_bn)


def _layer(dim: int, act: type[nn.Module]) -> GPSLayer:
    local, attention = branches(dim, act)
    return GPSLayer(dim, local, attention, cfg.gt.dropout, _norm(), act)


def _norm() -> str:
    chosen = [name for name in ("batch", "layer", "graph") if cfg.gt[f"{name}_norm"]]
    if len(chosen) > 1:
        keys = " and ".join(f"gt.{name}_norm" for name in chosen)
        raise ConfigError(f"{keys} are both True: a layer has one norm, set all but one to False")
    return chosen[0] if chosen else "none"
