"""Builder of SAN (Kreuzer et al. 2021) as GraphGPS has it: the network ``SANTransformer``."""

from __future__ import annotations

from torch import nn
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.attention.san import ALL_PAIRS, NO_PAIRS, SANAttention
from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.model.san_layer import SANLayer
from graphgps_kmip.networks.network_stack import layers_width, stack
from graphgps_kmip.registry import register

# gt.layer_type -> whether edges and other pairs are normalised apart, with a learned gamma.
LAYERS = {"SANLayer": False, "SAN2Layer": True}
EDGE_SET = ("_edge_index", "_edges")  # how public codes end the names of an edge set


@register("network", "SANTransformer")
def san_transformer(dim_in: int, dim_out: int) -> nn.Module:  # noqa: ARG001 (GraphGym's signature)
    """SAN: gt.layers layers of gt.layer_type, an encoder before, a head after."""
    dim = layers_width()
    return stack(dim, dim_out, [_layer(dim) for _ in range(cfg.gt.layers)])


def _layer(dim: int) -> SANLayer:
    gt = cfg.gt
    if gt.graph_norm:
        raise ConfigError(
            "gt.graph_norm: SAN's layers have none: set it False, and gt.batch_norm or gt.layer_norm True"
        )
    attention = SANAttention(
        dim,
        gt.n_heads,
        gt.dropout,
        gamma=gt.gamma,
        secondary_edges=_secondary_edges(),
        separate=look_up(LAYERS, gt.layer_type, "gt.layer_type"),
    )
    return SANLayer(
        dim, attention, gt.dropout, layer_norm=gt.layer_norm, batch_norm=gt.batch_norm, residual=gt.residual
    )


def _secondary_edges() -> str:
    """Return which pairs stand beside the edges: gt.full_graph is GraphGPS's switch, gt.secondary_edges Exphormer's."""
    if not cfg.gt.full_graph or cfg.gt.secondary_edges in (None, "", NO_PAIRS):
        return NO_PAIRS
    name = cfg.gt.secondary_edges
    for ending in EDGE_SET:
        name = name if name == ALL_PAIRS else name.removesuffix(ending)
    return name
