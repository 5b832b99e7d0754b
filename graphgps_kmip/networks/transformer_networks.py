"""Builders of the public whole transformers: an attention over the nodes in every layer, no message passing."""

from __future__ import annotations

from torch import nn
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.attention.head_arguments import dim_per_head
from graphgps_kmip.attention.performer import redraw_regularly
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config import settings_of
from graphgps_kmip.model import AttentionLayer, TransformerLayer
from graphgps_kmip.networks.network_stack import layers_width, stack
from graphgps_kmip.registry import build, entries, register


@register("network", "Performer")
def performer(dim_in: int, dim_out: int) -> nn.Module:  # noqa: ARG001 (GraphGym's signature; encoders read the share)
    """Performer alone: gt.layers pre-norm layers over the nodes, whose random features are drawn anew in training.

    As in GraphGPS, heads are gt.dim_hidden / gt.n_heads wide, whatever gt.performer.dim_head says, and queries, keys
    and values have biases. Its dropouts are always 0; here gt.attn_dropout is that of the attention's output, and
    gt.dropout that of the feed-forward network. gt.layer_norm and gt.batch_norm are not read. With
    gt.performer.mask_keys False, rows that pad smaller graphs go through all layers, as in GraphGPS.
    """
    dim, heads = layers_width(), cfg.gt.n_heads
    given = {"dim_head": dim_per_head(dim, heads), "use_bias": True, "mask_keys": True}  # padding is of the network
    spec, dropout = entries("attention")["Performer"], cfg.gt.attn_dropout
    layers = [
        TransformerLayer(dim, build(spec, dim, heads, dropout, settings=settings_of(spec), given=given), cfg.gt.dropout)
        for _ in range(cfg.gt.layers)
    ]
    network = stack(dim, dim_out, layers, pad_graphs=not cfg.gt.performer.mask_keys)
    redraw_regularly(network)
    return network


@register("network", "BigBird")
def big_bird(dim_in: int, dim_out: int) -> nn.Module:  # noqa: ARG001
    """BigBird alone: gt.layers of its layers over the nodes (gt.bigbird), each with norms and a feed-forward network.

    Positions are not encoded. As in GraphGPS, gt.layer_norm and gt.batch_norm are not read.

    Raises:
        ConfigError: a fault of the public GPS layer is asked for, of which this network has another form.
    """
    if cfg.gt.bigbird.pattern != "graph":
        raise ConfigError(
            f"gt.bigbird.pattern: {cfg.gt.bigbird.pattern} repeats a fault of GraphGPS layers, the public model.type "
            "BigBird draws other blocks: set it to graph, or drop the quirks bigbird_padded_blocks and "
            "bigbird_global_rng"
        )
    dim, spec = layers_width(), entries("attention")["BigBird"]
    attentions = [
        build(spec, dim, cfg.gt.n_heads, cfg.gt.dropout, settings=settings_of(spec)) for _ in range(cfg.gt.layers)
    ]
    return stack(dim, dim_out, [AttentionLayer(attention) for attention in attentions])
