"""What stands before and after the layers of every network: encoder, input layers, prediction head; and the stack."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch_geometric.graphgym import register as graphgym
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.posenc_build import in_node_encoder
from graphgps_kmip.model import FeatureEncoder, GPSModel, input_layers
from graphgps_kmip.networks.activations import activation
from graphgps_kmip.networks.encoder_builders import edge_encoder, node_encoder
from graphgps_kmip.registry import components


def layers_width() -> int:
    """Return the width of a network of gt.layers layers.

    Raises:
        ConfigError: its parts would have different widths, or there are no layers.
    """
    dim, layers = cfg.gnn.dim_inner, cfg.gt.layers
    if cfg.gt.dim_hidden != dim:
        raise ConfigError(
            f"gt.dim_hidden ({cfg.gt.dim_hidden}) and gnn.dim_inner ({dim}) must be equal: encoder, layers and head "
            "share one width"
        )
    if layers < 1:
        raise ConfigError(f"gt.layers: expected 1 or more, got {layers}")
    return dim


def stack(
    dim: int, dim_out: int, layers: Sequence[nn.Module], dim_edge: int | None = None, *, pad_graphs: bool = False
) -> GPSModel:
    """Return the network of these layers.

    Args:
        dim: width C.
        dim_out: outputs of the head.
        layers: first layer first.
        dim_edge: width of the encoded edge features, C if None.
        pad_graphs: see `GPSModel`.
    """
    return GPSModel(
        encoder=encoder(dim, dim_edge),
        pre_mp=input_part(dim),
        layers=layers,
        head=prediction_head(dim, dim_out),
        recompute=cfg.share.gradient_checkpointing,
        pad_graphs=pad_graphs,
    )


def encoder(dim: int, dim_edge: int | None = None) -> FeatureEncoder:
    """Return the encoder of nodes, to width ``dim``, and of edges, to ``dim_edge`` or the same."""
    dim_edge = dim_edge or dim
    node = node_encoder(cfg.dataset.node_encoder_name, dim) if cfg.dataset.node_encoder else None
    edge = edge_encoder(cfg.dataset.edge_encoder_name, dim_edge) if cfg.dataset.edge_encoder else None
    given, norms = cfg.dataset, (cfg.dataset.node_encoder_bn, cfg.dataset.edge_encoder_bn)
    return FeatureEncoder(dim, node, edge, *norms, dim_edge, given.edge_norm_on_nodes)


def input_part(dim: int) -> nn.Sequential | None:
    """Return gnn.layers_pre_mp layers between encoder and stack, or None.

    Raises:
        ConfigError: nothing brings the data to the width of the layers.
    """
    gnn, raw = cfg.gnn, None if cfg.dataset.node_encoder else cfg.share.dim_in
    if gnn.layers_pre_mp < 1 and raw not in (None, dim):
        raise ConfigError(
            f"dataset.node_encoder is False, so gnn.dim_inner ({dim}) must be the data's width {raw}: set "
            "dataset.node_encoder True and dataset.node_encoder_name LinearNode, or gnn.layers_pre_mp 1"
        )
    return input_layers(dim, gnn.layers_pre_mp, gnn.batchnorm, gnn.dropout, activation(), gnn.l2norm, raw)


def prediction_head(dim: int, dim_out: int) -> nn.Module:
    """Return the head gnn.head; ours come before GraphGym's of the same name.

    Raises:
        ConfigError: it is unknown, or does not fit to graph tokens, or to the lack of them.
    """
    head = look_up(graphgym.head_dict | components("head"), cfg.gnn.head, "gnn.head")(dim, dim_out)
    has_token = cfg.graphormer.use_graph_token and in_node_encoder("GraphormerBias")
    level = getattr(head, "level", "")  # "": of another package
    if has_token and level not in ("graph", ""):
        raise ConfigError(
            f"graphormer.use_graph_token: gnn.head {cfg.gnn.head} would predict the tokens of graphs, too: set it False"
        )
    if cfg.model.graph_pooling == "graph_token" and level == "graph" and not has_token:
        raise ConfigError(
            "model.graph_pooling graph_token: the graphs have no token: set graphormer.use_graph_token True, with "
            "GraphormerBias as the last part of dataset.node_encoder_name, or take another pooling"
        )
    return head
