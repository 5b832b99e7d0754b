"""Network GECO (Sancak et al.): blocks of propagation and gated global convolutions alone, for large graphs."""

from __future__ import annotations

from torch import nn

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.model.geco_layer import GECOBlock
from graphgps_kmip.networks.network_plan import NetworkPlan
from graphgps_kmip.networks.network_stack import layers_width, stack
from graphgps_kmip.registry import entries, register

MIXERS = ("GECO", "Hyena")


@register("network", "GECO")
def geco(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """GECO alone: gt.layers post-norm blocks of gt.layer_type GECO (gt.geco), or of Hyena (gt.hyena), an ablation.

    gt.dropout is that of the blocks; gt.n_heads, gt.layer_norm and gt.batch_norm are not read.

    Raises:
        ConfigError: gt.layer_type is neither.
    """
    gt, dim = plan.settings.gt, layers_width(plan.settings)
    if gt.layer_type not in MIXERS:
        raise ConfigError(
            f"gt.layer_type: model.type GECO stacks {' or '.join(MIXERS)}, not {gt.layer_type}: set one of them, or "
            "model.type GPSModel for message passing beside it"
        )
    spec = entries("attention")[gt.layer_type]
    blocks = [
        GECOBlock(dim, plan.build(spec, dim, gt.n_heads, gt.dropout), gt.dropout, plan.activation())
        for _ in range(gt.layers)
    ]
    return stack(plan, dim, dim_out, blocks)
