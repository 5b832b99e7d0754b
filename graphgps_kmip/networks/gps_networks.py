"""GPS networks: GPSModel, MultiModel, SingleModel and message passing alone (custom_gnn), all stacks of `GPSModel`."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from torch import nn

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.model import GNNLayer, GPSLayer
from graphgps_kmip.model.layer_recipe import LayerRecipe
from graphgps_kmip.networks.branches import branch_rows, branches, edge_width, refuse_graphgym_layer
from graphgps_kmip.networks.network_plan import NetworkPlan
from graphgps_kmip.networks.network_stack import layers_width, stack
from graphgps_kmip.registry import named, register

# Values of gnn.layer_type in public files -> our row. By our own names, layers are configured as in GPS layers.
CONVS = {"gatedgcnconv": "GatedGCN", "gineconv": "GINE", "gcnconv": "GCN", "gatconv": "GAT"}


@register("network", "GPSModel")
def gps_model(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """GraphGPS: gt.layers layers of gt.layer_type (branches joined by plus), an encoder before, a head after."""
    return _gps_stack(plan, dim_out, recipe_of(plan.settings))


@register("network", "MultiModel")
def multi_model(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """Exphormer's network of any number of branches: message passing reads the edges of the branch before it."""
    return _gps_stack(plan, dim_out, recipe_of(plan.settings), chain_edges=True)


@register("network", "SingleModel")
def single_model(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """Exphormer's network of one branch a layer, then the activation: without feed-forward networks."""
    if len(branch_rows(plan)) != 1:
        raise ConfigError(
            f"gt.layer_type: model.type SingleModel has one branch, got {plan.settings.gt.layer_type}: take MultiModel "
            "for more"
        )
    return _gps_stack(plan, dim_out, replace(recipe_of(plan.settings), ffn=False))


@register("network", "custom_gnn")
def custom_gnn(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """Message passing alone: gnn.layers_mp layers of gnn.layer_type, with gnn.residual, no norm around them."""
    dim = plan.settings.gnn.dim_inner
    return stack(plan, dim, dim_out, [_conv_layer(plan, dim) for _ in range(plan.settings.gnn.layers_mp)])


# Of gt.layers layers of gt.n_heads heads.
HEADED = "GPSModel MultiModel SingleModel SANTransformer GritTransformer Performer BigBird PPGT Spexphormer".split()
HEADED += ["Polynormer"]


def width_step(settings: Any) -> int:
    """Return what the width of the configured network must be a multiple of: its number of heads, or 1."""
    if settings.model.type == "Graphormer":
        return settings.graphormer.num_heads
    alone = settings.model.type == "custom_gnn" and settings.gnn.layer_type not in CONVS
    headed = settings.model.type in HEADED or alone
    return settings.gt.n_heads if headed else 1


def recipe_of(settings: Any) -> LayerRecipe:
    """Return what stands around the branches, by the group ``recipe``."""
    return LayerRecipe(**{one.name: settings.recipe[one.name] for one in fields(LayerRecipe)})


def _gps_stack(plan: NetworkPlan, dim_out: int, recipe: LayerRecipe, *, chain_edges: bool = False) -> nn.Module:
    dim, gt = layers_width(plan.settings), plan.settings.gt
    layers = [
        GPSLayer(dim, *branches(plan, dim), gt.dropout, norm_of(gt), plan.layer_activation(), recipe, chain_edges)
        for _ in range(gt.layers)
    ]
    return stack(plan, dim, dim_out, layers, edge_width(plan), recipe=recipe)


def norm_of(gt: Any) -> str:
    """Return the norm of the layers, a key of `NORMS`, by gt.batch_norm, gt.layer_norm and gt.graph_norm.

    Raises:
        ConfigError: several of them are True.
    """
    chosen = [name for name in ("batch", "layer", "graph") if gt[f"{name}_norm"]]
    if len(chosen) > 1:
        keys = " and ".join(f"gt.{name}_norm" for name in chosen)
        raise ConfigError(f"{keys} are both True: a layer has one norm, set all but one to False")
    return chosen[0] if chosen else "none"


def _conv_layer(plan: NetworkPlan, dim: int) -> GNNLayer:
    gnn, gt = plan.settings.gnn, plan.settings.gt
    name = gnn.layer_type
    known = named("message_passing")
    if name not in CONVS:
        refuse_graphgym_layer(plan, name, "gnn.layer_type")
    spec = look_up(known | {public: known[ours] for public, ours in CONVS.items()}, name, "gnn.layer_type")
    given: dict[str, Any] = {
        "heads": gt.n_heads,
        "equivstable_pe": False,  # no public code has gates in these networks
        "residual": gnn.residual,
        "edge_residual": gnn.residual if gnn.edge_residual is None else gnn.edge_residual,
    }
    if name in CONVS:
        given |= {"heads": 1, "use_edge_attr": False, "inner": gnn.gine_inner}
    conv = plan.build(spec, dim, gnn.dropout, plan.layer_activation(), **given)
    if conv.internal_residual:
        return GNNLayer(conv)
    if name == "gineconv" and gnn.gine_inner == "mlp_dropout":  # its dropout is inside, and nothing follows
        return GNNLayer(conv, residual=gnn.residual)
    act = plan.layer_activation() if spec.name == "GINE" else plan.activation()
    return GNNLayer(conv, act, gnn.dropout, gnn.residual)
