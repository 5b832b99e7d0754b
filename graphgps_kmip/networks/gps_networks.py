"""GPS networks: branches of ``gt.layer_type``, joined by plus; GPSModel, MultiModel, SingleModel; custom_gnn."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import nn

from graphgps_kmip.attention import ExphormerAttention
from graphgps_kmip.attention.exphormer import ExpanderMessages
from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.model import GNNLayer, GPSLayer
from graphgps_kmip.model.layer_recipe import LayerRecipe
from graphgps_kmip.networks.network_settings import NetworkPlan
from graphgps_kmip.networks.network_stack import layers_width, stack
from graphgps_kmip.registry import Spec, lookup, named, register

KEY = "gt.layer_type"
ALONG_EXPANDER = "__exp"  # ends the name of a branch along the edges of Exphormer attention
EXPHORMER = ("num_virt_node", "add_edge_index", "use_exp_edges")  # options of the attention in the group prep
GPS = ("GPSModel", "MultiModel", "SingleModel")  # the networks whose layers have branches


@dataclass(frozen=True)
class Branch:
    """One branch of a layer: an attention or a message passing layer."""

    spec: Spec
    along_expander: bool = False  # a message passing layer that reads the edges of Exphormer attention

    @property
    def name(self) -> str:
        """Its part of ``gt.layer_type``, by its own name."""
        return self.spec.name + (ALONG_EXPANDER if self.along_expander else "")

    @property
    def is_local(self) -> bool:
        """Whether it is message passing along the edges of the graph."""
        return self.spec.kind == "message_passing" and not self.along_expander


def branch_rows(plan: NetworkPlan) -> list[Branch]:
    """Return the branches that the config names, those called None left out."""
    rows = []
    for part in plan.settings.gt.layer_type.split("+"):
        if part == "None":
            continue
        name, mark, edges = part.partition("__")
        refuse_graphgym_layer(plan, name, KEY)
        spec = lookup(("attention", "message_passing"), name)
        if mark and (mark + edges != ALONG_EXPANDER or spec.kind != "message_passing"):
            raise ConfigError(
                f"{KEY}: {part}: the only ending is {ALONG_EXPANDER}, after a message passing layer "
                f"({', '.join(named('message_passing'))}): leave it out"
            )
        rows.append(Branch(spec, along_expander=bool(mark)))
    return rows


def refuse_graphgym_layer(plan: NetworkPlan, name: str, key: str) -> None:
    """Raise a ConfigError for a layer of GraphGym's ``register_layer``, which is called in another way."""
    if name in plan.others.get("layer", {}) and name not in named("attention", "message_passing"):
        raise ConfigError(
            f"{key}: {name} is a layer of GraphGym's register_layer, for model.type gnn: take that network, or "
            f"register('message_passing', {name!r}, ...) (docs/extending.md)"
        )


def edge_width(plan: NetworkPlan) -> int | None:
    """Return the width of edge features that a branch asks for by its option ``edge_dim``, None for that of nodes."""
    rows = branch_rows(plan)
    widths = {row.name: plan.group(row.spec)["edge_dim"] for row in rows if "edge_dim" in row.spec.options}
    if widths and len(widths) < sum(row.is_local for row in rows):  # the others read edges as wide as nodes
        widths["the others"] = None
    if len(set(widths.values())) > 1:
        raise ConfigError(f"{KEY} {plan.settings.gt.layer_type}: its branches read edges of different widths, {widths}")
    return next(iter(widths.values()), None)


def branches(plan: NetworkPlan, dim: int) -> tuple[list[nn.Module], list[nn.Module]]:
    """Return new modules of width ``dim`` for one layer: message passing, attention."""
    rows, settings = branch_rows(plan), plan.settings
    attentions = [build_branch(plan, row.spec, dim) for row in rows if row.spec.kind == "attention"]
    edges = {name: settings.prep[name] for name in ("add_edge_index", "use_exp_edges")}
    for row in rows:
        if row.along_expander:  # dropout and residual are those around attentions
            conv = build_branch(plan, row.spec, dim, 0.0, residual=False)
            attentions.append(ExpanderMessages(conv, dim, settings.gt.dropout, **edges))
    starts = [a.initial_state for a in attentions if isinstance(a, (ExphormerAttention, ExpanderMessages))]
    for start in starts[1:]:
        start.expander = starts[0].expander  # one vector in a model, as in the public code
    return [build_branch(plan, row.spec, dim) for row in rows if row.is_local], attentions


def build_branch(plan: NetworkPlan, spec: Spec, dim: int, dropout: float | None = None, **changes: Any) -> nn.Module:
    """Return a new attention or message passing layer of width ``dim``; `dropout` and `changes` replace settings."""
    settings, gt = plan.settings, plan.settings.gt
    options = {"heads": gt.n_heads, "equivstable_pe": settings.posenc_EquivStableLapPE.enable}
    options |= {name: settings.prep[name] for name in EXPHORMER} | changes
    if spec.kind == "attention":
        return plan.build(spec, dim, gt.n_heads, read_dropout(plan, spec), **options)
    return plan.build(spec, dim, gt.dropout if dropout is None else dropout, plan.layer_activation(), **options)


def read_dropout(plan: NetworkPlan, spec: Spec) -> float:
    """Return the dropout of an attention; None in its key means that of ``gt.attn_dropout``."""
    dropout = plan.settings.gt[spec.traits.dropout]
    return plan.settings.gt.attn_dropout if dropout is None else dropout


def refuse_unread_recipe(plan: NetworkPlan) -> None:
    """Raise a ConfigError for settings of the group ``recipe`` where there are no GPS layers, which alone read it."""
    recipe, kind = plan.settings.recipe, plan.settings.model.type
    for field in fields(LayerRecipe):
        if kind not in GPS and recipe[field.name] != field.default:
            raise ConfigError(
                f"recipe.{field.name}: model.type {kind} does not read it: leave it out, or take {' or '.join(GPS)}"
            )


def warn_of_unread_settings(plan: NetworkPlan) -> None:
    """Log settings that are switched on and that no branch of the layers reads."""
    settings = plan.settings
    if settings.model.type not in GPS:
        return
    rows = branch_rows(plan)
    reading = [row.name for row in rows if row.spec.name == "Exphormer" or row.along_expander]
    if reading and settings.prep.use_exp_edges and not settings.prep.exp:
        logging.warning(
            "%s has no expander edges, prep.exp is False: set it True, or prep.use_exp_edges False", reading[0]
        )
    if settings.posenc_EquivStableLapPE.enable and not any("equivstable_pe" in row.spec.options for row in rows):
        logging.warning(
            "posenc_EquivStableLapPE has no effect: no branch of %s %s reads it", KEY, settings.gt.layer_type
        )


@register("network", "GPSModel")
def gps_model(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """GraphGPS: gt.layers layers of gt.layer_type (branches joined by plus), an encoder before, a head after."""
    return _stack_gps_layers(plan, dim_out, read_recipe(plan.settings))


@register("network", "MultiModel")
def multi_model(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """Exphormer's network of any number of branches: message passing reads the edges of the branch before it."""
    return _stack_gps_layers(plan, dim_out, read_recipe(plan.settings), chain_edges=True)


@register("network", "SingleModel")
def single_model(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """Exphormer's network of one branch a layer, then the activation: without feed-forward networks."""
    if len(branch_rows(plan)) != 1:
        raise ConfigError(
            f"gt.layer_type: model.type SingleModel has one branch, got {plan.settings.gt.layer_type}: take MultiModel "
            "for more"
        )
    return _stack_gps_layers(plan, dim_out, replace(read_recipe(plan.settings), ffn=False))


def read_recipe(settings: Any) -> LayerRecipe:
    """Return what is around the branches, by the group ``recipe``."""
    return LayerRecipe(**{field.name: settings.recipe[field.name] for field in fields(LayerRecipe)})


def _stack_gps_layers(plan: NetworkPlan, dim_out: int, recipe: LayerRecipe, *, chain_edges: bool = False) -> nn.Module:
    dim, gt = layers_width(plan.settings), plan.settings.gt
    layers = [
        GPSLayer(dim, *branches(plan, dim), gt.dropout, read_norm(gt), plan.layer_activation(), recipe, chain_edges)
        for _ in range(gt.layers)
    ]
    return stack(plan, dim, dim_out, layers, edge_width(plan), recipe=recipe)


def read_norm(gt: Any) -> str:
    """Return the norm of the layers, a key of `NORMS`, by gt.batch_norm, gt.layer_norm and gt.graph_norm."""
    norms = [name for name in ("batch", "layer", "graph") if gt[f"{name}_norm"]]
    if len(norms) > 1:
        keys = " and ".join(f"gt.{name}_norm" for name in norms)
        raise ConfigError(f"{keys} are both True: a layer has one norm, set all but one to False")
    return norms[0] if norms else "none"


# Values of gnn.layer_type in public files -> registry entry. By our names, layers are configured as in GPS layers.
CONVS = {"gatedgcnconv": "GatedGCN", "gineconv": "GINE", "gcnconv": "GCN", "gatconv": "GAT"}


@register("network", "custom_gnn")
def custom_gnn(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """Message passing alone: gnn.layers_mp layers of gnn.layer_type, with gnn.residual, no norm around them."""
    dim = plan.settings.gnn.dim_inner
    return stack(plan, dim, dim_out, [_build_conv_layer(plan, dim) for _ in range(plan.settings.gnn.layers_mp)])


def _build_conv_layer(plan: NetworkPlan, dim: int) -> GNNLayer:
    gnn, name, specs = plan.settings.gnn, plan.settings.gnn.layer_type, named("message_passing")
    if name not in CONVS:
        refuse_graphgym_layer(plan, name, "gnn.layer_type")
    spec = look_up(specs | {public: specs[CONVS[public]] for public in CONVS}, name, "gnn.layer_type")
    options: dict[str, Any] = {
        "heads": plan.settings.gt.n_heads,
        "equivstable_pe": False,  # no public code has gates in these networks
        "residual": gnn.residual,
        "edge_residual": gnn.residual if gnn.edge_residual is None else gnn.edge_residual,
    }
    if name in CONVS:
        options |= {"heads": 1, "use_edge_attr": False, "inner": gnn.gine_inner}
    conv = plan.build(spec, dim, gnn.dropout, plan.layer_activation(), **options)
    if conv.internal_residual:
        return GNNLayer(conv)
    if name == "gineconv" and gnn.gine_inner == "mlp_dropout":  # its dropout is inside, and nothing follows
        return GNNLayer(conv, residual=gnn.residual)
    act = plan.layer_activation() if spec.name == "GINE" else plan.activation()
    return GNNLayer(conv, act, gnn.dropout, gnn.residual)


# Networks of gt.layers layers with gt.n_heads heads.
HEADED = (*GPS, "SANTransformer", "GritTransformer", "Performer", "BigBird", "PPGT", "Spexphormer", "Polynormer")


def width_step(settings: Any) -> int:
    """Return what the width of the configured network must be a multiple of: its number of heads, or 1."""
    if settings.model.type == "Graphormer":
        return settings.graphormer.num_heads
    has_heads = settings.model.type == "custom_gnn" and settings.gnn.layer_type not in CONVS
    return settings.gt.n_heads if settings.model.type in HEADED or has_heads else 1
