"""The branches of a GPS layer: ``gt.layer_type`` joins names by plus, message passing and attention, any number."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from graphgps_kmip.attention import ExphormerAttention
from graphgps_kmip.attention.exphormer import ExpanderMessages
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.model.layer_recipe import LayerRecipe
from graphgps_kmip.networks.network_plan import NetworkPlan
from graphgps_kmip.registry import Spec, lookup, named

KEY = "gt.layer_type"
ALONG_EXPANDER = "__exp"  # behind the name of a message passing layer: it reads the edges of Exphormer attention
EXPHORMER = ("num_virt_node", "add_edge_index", "use_exp_edges")  # options of the attention that stand in prep
GPS = ("GPSModel", "MultiModel", "SingleModel")  # the networks whose layers have branches


@dataclass(frozen=True)
class Branch:
    """One branch of a layer.

    Args:
        spec (Spec): Attention or message passing layer.
        along_expander (bool): A message passing layer that reads the edges of Exphormer attention.
    """

    spec: Spec
    along_expander: bool = False

    @property
    def name(self) -> str:
        """Its part of ``gt.layer_type``, by its own name."""
        return self.spec.name + (ALONG_EXPANDER if self.along_expander else "")

    @property
    def is_local(self) -> bool:
        """Whether it is message passing along the edges of the graph."""
        return self.spec.kind == "message_passing" and not self.along_expander


def branch_rows(plan: NetworkPlan) -> list[Branch]:
    """Return the branches that the config names, those called None left out.

    Raises:
        ConfigError: an unknown name, or one with an ending that is not `ALONG_EXPANDER` of a message passing layer.
    """
    return [_branch(plan, name) for name in plan.settings.gt.layer_type.split("+") if name != "None"]


def _branch(plan: NetworkPlan, name: str) -> Branch:
    name, mark, edges = name.partition("__")
    refuse_graphgym_layer(plan, name, KEY)
    spec = lookup(("attention", "message_passing"), name)
    if not mark:
        return Branch(spec)
    if mark + edges != ALONG_EXPANDER or spec.kind != "message_passing":
        raise ConfigError(
            f"{KEY}: {name}{mark}{edges}: the only ending is {ALONG_EXPANDER}, behind a message passing layer "
            f"({', '.join(named('message_passing'))}): leave it out"
        )
    return Branch(spec, along_expander=True)


def refuse_graphgym_layer(plan: NetworkPlan, name: str, key: str) -> None:
    """Refuse a layer of GraphGym's ``register_layer``, which is called in another way.

    Raises:
        ConfigError: it is one; says what to use.
    """
    if name in plan.others.get("layer", {}) and name not in named("attention", "message_passing"):
        raise ConfigError(
            f"{key}: {name} is a layer of GraphGym's register_layer, for model.type gnn: take that network, or "
            f"register('message_passing', {name!r}, ...) (docs/extending.md)"
        )


def edge_width(plan: NetworkPlan) -> int | None:
    """Return the width of the edge features that a branch asks for by its option ``edge_dim``, None for that of nodes.

    Raises:
        ConfigError: two branches ask for different ones.
    """
    chosen = branch_rows(plan)
    asked = {one.name: plan.group(one.spec)["edge_dim"] for one in chosen if "edge_dim" in one.spec.options}
    if asked and len(asked) < sum(one.is_local for one in chosen):  # the others read edges as wide as nodes
        asked["the others"] = None
    if len(set(asked.values())) > 1:
        raise ConfigError(f"{KEY} {plan.settings.gt.layer_type}: its branches read edges of different widths, {asked}")
    return next(iter(asked.values()), None)


def branches(plan: NetworkPlan, dim: int) -> tuple[list[nn.Module], list[nn.Module]]:
    """Return new modules for one layer: message passing, attention.

    Args:
        plan (NetworkPlan): Settings and dims.
        dim (int): Width C.
    """
    chosen = branch_rows(plan)
    attention = [build_branch(plan, one.spec, dim) for one in chosen if one.spec.kind == "attention"]
    attention += [_along_expander(plan, one.spec, dim) for one in chosen if one.along_expander]
    starts = [one.initial_state for one in attention if isinstance(one, (ExphormerAttention, ExpanderMessages))]
    for start in starts[1:]:
        start.expander = starts[0].expander  # one vector in a model, as in the public code
    return [build_branch(plan, one.spec, dim) for one in chosen if one.is_local], attention


def build_branch(plan: NetworkPlan, spec: Spec, dim: int) -> nn.Module:
    """Return a new attention or message passing layer of width ``dim``."""
    gt, given = plan.settings.gt, _given(plan)
    if spec.kind == "attention":
        return plan.build(spec, dim, gt.n_heads, dropout_of(plan, spec), **given)
    return plan.build(spec, dim, gt.dropout, plan.layer_activation(), **given)


def _given(plan: NetworkPlan) -> dict[str, Any]:
    given = {"heads": plan.settings.gt.n_heads, "equivstable_pe": plan.settings.posenc_EquivStableLapPE.enable}
    return given | {name: plan.settings.prep[name] for name in EXPHORMER}


def dropout_of(plan: NetworkPlan, spec: Spec) -> float:
    """Return the dropout of an attention; None in its key stands for ``gt.attn_dropout``."""
    given = plan.settings.gt[spec.traits.dropout]
    return plan.settings.gt.attn_dropout if given is None else given


def _along_expander(plan: NetworkPlan, spec: Spec, dim: int) -> nn.Module:
    """Return a message passing module on the edges of Exphormer; dropout and residual are those around attentions."""
    conv = plan.build(spec, dim, 0.0, plan.layer_activation(), **_given(plan) | {"residual": False})
    edges = {name: plan.settings.prep[name] for name in ("add_edge_index", "use_exp_edges")}
    return ExpanderMessages(conv, dim, plan.settings.gt.dropout, **edges)


def refuse_unread_recipe(plan: NetworkPlan) -> None:
    """Refuse settings of the group ``recipe`` for networks without GPS layers, which would ignore them.

    Raises:
        ConfigError: one of them is not at its default.
    """
    given, kind = plan.settings.recipe, plan.settings.model.type
    for one in fields(LayerRecipe):
        if kind not in GPS and given[one.name] != one.default:
            raise ConfigError(
                f"recipe.{one.name}: model.type {kind} does not read it: leave it out, or take {' or '.join(GPS)}"
            )


def warn_of_unread_settings(plan: NetworkPlan) -> None:
    """Log settings that are switched on and that no branch of the layers reads."""
    settings = plan.settings
    if settings.model.type not in GPS:
        return
    chosen = branch_rows(plan)
    reading = [one.name for one in chosen if one.spec.name == "Exphormer" or one.along_expander]
    if reading and settings.prep.use_exp_edges and not settings.prep.exp:
        logging.warning(
            "%s has no expander edges, prep.exp is False: set it True, or prep.use_exp_edges False", reading[0]
        )
    if settings.posenc_EquivStableLapPE.enable and not any("equivstable_pe" in one.spec.options for one in chosen):
        logging.warning(
            "posenc_EquivStableLapPE has no effect: no branch of %s %s reads it", KEY, settings.gt.layer_type
        )
