"""Builder of the network Graphormer, from the keys ``graphormer.*``."""

from __future__ import annotations

from torch import nn
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.attention.full import BiasedFullAttention, FullAttention
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.posenc_build import in_node_encoder
from graphgps_kmip.model.graphormer_layer import GraphormerLayer
from graphgps_kmip.networks.network_stack import stack
from graphgps_kmip.registry import register


@register("network", "Graphormer")
def graphormer(dim_in: int, dim_out: int) -> nn.Module:  # noqa: ARG001 (GraphGym's signature; encoders read the share)
    """Graphormer (Ying et al. 2021): graphormer.num_layers layers of attention, biased by GraphormerBias, and an MLP.

    Without posenc_GraphormerBias in the node encoder, or with its degrees only, the attention has no bias.

    Raises:
        ConfigError: graphormer.embed_dim is not gnn.dim_inner, or there is no layer.
    """
    node, dim = cfg.graphormer, cfg.graphormer.embed_dim
    if dim != cfg.gnn.dim_inner:
        raise ConfigError(
            f"graphormer.embed_dim ({dim}) and gnn.dim_inner ({cfg.gnn.dim_inner}) must be equal: encoder, layers and "
            "head share one width"
        )
    if node.num_layers < 1:
        raise ConfigError(f"graphormer.num_layers: expected 1 or more, got {node.num_layers}")
    biased = in_node_encoder("GraphormerBias") and not cfg.posenc_GraphormerBias.node_degrees_only
    attention = BiasedFullAttention if biased else FullAttention
    layers = [
        GraphormerLayer(dim, attention(dim, node.num_heads, node.attention_dropout), node.dropout, node.mlp_dropout)
        for _ in range(node.num_layers)
    ]
    return stack(dim, dim_out, layers)
