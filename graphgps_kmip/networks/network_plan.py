"""Plan of a network: settings under their YAML names, dims of the data, activations and other components."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

from torch import nn

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.registry import Spec, build, components, register


@dataclass(frozen=True)
class NetworkPlan:
    """What builders of networks read.

    Args:
        settings (Any): Groups ``gt``, ``gnn``, ``model``, ``dataset``, ``graphormer``, ``prep`` and ``share`` with keys
            as in YAML files: GraphGym's config, or `Settings`.
        dim_in (int): Columns of the node features.
        edge_dim (int): Columns of the edge features, 0 where there are none.
        others (Mapping, optional): Kind -> name -> component of what other packages registered with GraphGym.
            (default: none)
    """

    settings: Any
    dim_in: int
    edge_dim: int
    others: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def group(self, spec: Spec) -> Mapping[str, Any]:
        """Return the config group of a component, empty for one without options."""
        return reduce(lambda node, name: node[name], spec.group.split("."), self.settings) if spec.options else {}

    def build(self, spec: Spec, *positional: Any, **given: Any) -> Any:
        """Return a new module; options that do not come from its group are ``given``, the plan among them."""
        return build(spec, *positional, settings=self.group(spec), given={"plan": self} | given)

    def known(self, kind: str) -> dict[str, Any]:
        """Return the components of a kind by name and alias; of two of one name, ours."""
        return dict(self.others.get(kind, {})) | components(kind)

    def activation(self) -> Callable[[], nn.Module]:
        """Return what builds the activation ``gnn.act``."""
        return look_up(self.known("activation"), self.settings.gnn.act, "gnn.act")

    def layer_activation(self) -> Callable[[], nn.Module]:
        """Return what builds the activation inside GPS layers, GatedGCN and GINE: ``gnn.layer_act``, or ``gnn.act``.

        Some public codes have a ReLU there whatever ``gnn.act`` says.
        """
        name = self.settings.gnn.layer_act
        return look_up(self.known("activation"), name, "gnn.layer_act") if name else self.activation()

    def has_encoding(self, name: str) -> bool:
        """Return whether an encoding is part of the node encoder."""
        dataset = self.settings.dataset
        return dataset.node_encoder and name in dataset.node_encoder_name.split("+")


register("activation", "relu", nn.ReLU)
register("activation", "gelu", nn.GELU)
register("activation", "silu", nn.SiLU, aliases=("swish",))
register("activation", "elu", nn.ELU)
register("activation", "selu", nn.SELU)
register("activation", "prelu", nn.PReLU)
for _name, _slope in (("lrelu_01", 0.1), ("lrelu_025", 0.25), ("lrelu_05", 0.5)):
    register("activation", _name, partial(nn.LeakyReLU, _slope), summary=f"LeakyReLU of negative slope {_slope}")
