"""Layer recipe: residuals, norms, dropout and feed-forward networks of GPS layers, not their messages or attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch_geometric.nn.models import JumpingKnowledge

from graphgps_kmip.errors import InputError
from graphgps_kmip.ranges import DROPOUT, NOT_NEGATIVE, Choice, refusal
from graphgps_kmip.signatures import read_rules

NORM_PLACES = ("post", "pre")
ORDERS = ("parallel", "local_first")
JUMPS = ("none", "sum", "max", "cat")


@dataclass(frozen=True)
class LayerRecipe:
    """What is around the branches of GPS layers; the defaults are those of GraphGPS (Rampášek et al. 2022).

    Args:
        local_residual (bool, optional): Add its input to the output of message passing. (default: True)
        attention_residual (bool, optional): Add its input to the output of an attention. (default: True)
        ffn (bool, optional): A feed-forward network after the branches; without one, the activation. (default: True)
        norm_place (str, optional): ``post``: norms follow the residuals; ``pre``: they precede the branches and the
            feed-forward network (Xiong et al. 2020). (default: "post")
        order (str, optional): ``parallel``: all branches read the same nodes; ``local_first``: attentions read what
            message passing gives, as in Polynormer (Deng et al. 2024). (default: "parallel")
        jump (str, optional): What the head reads: ``none``: the last layer; ``sum``, ``max``, ``cat``: all layers
            (jumping knowledge, Xu et al. 2018); a linear map follows ``cat``. (default: "none")
        feature_dropout (float, optional): Probability for every feature of the data. (default: 0.0)
        edge_dropout (float, optional): Probability for every edge of the graph, not of edge sets, one draw for all
            layers in each training step (DropEdge, Rong et al. 2020). (default: 0.0)
        attention_layer_scale (float, optional): Start of a learned factor for each channel of an attention's output
            (LayerScale, Touvron et al. 2021); 0: no factor. (default: 0.0)
        local_residual_map (str, optional): What the residual of message passing adds: ``identity``: its input;
            ``linear``: a linear map of it, as in Luo et al. 2024. (default: "identity")
        dropout_place (str, optional): ``branches``: after each branch; ``output``: once, after the activation that
            ends a layer without a feed-forward network, as in Luo et al. 2024. (default: "branches")
    """

    local_residual: bool = True
    attention_residual: bool = True
    ffn: bool = True
    norm_place: Annotated[str, Choice(NORM_PLACES)] = "post"
    order: Annotated[str, Choice(ORDERS)] = "parallel"
    jump: Annotated[str, Choice(JUMPS)] = "none"
    feature_dropout: Annotated[float, DROPOUT] = 0.0
    edge_dropout: Annotated[float, DROPOUT] = 0.0
    attention_layer_scale: Annotated[float, NOT_NEGATIVE] = 0.0
    local_residual_map: Annotated[str, Choice(("identity", "linear"))] = "identity"
    dropout_place: Annotated[str, Choice(("branches", "output"))] = "branches"

    def __post_init__(self) -> None:
        for name, rule in read_rules(LayerRecipe).items():
            if why := refusal(rule, getattr(self, name)):
                raise InputError(f"recipe.{name}: {why}")
        if self.local_residual_map == "linear" and not (self.local_residual and self.norm_place == "post"):
            raise InputError(
                "recipe.local_residual_map linear needs recipe.local_residual True and recipe.norm_place post: it maps "
                "what the residual of message passing adds before the norm"
            )
        if self.dropout_place == "output" and self.ffn:
            raise InputError(
                "recipe.dropout_place output needs recipe.ffn False: a feed-forward network has dropout of its own"
            )

    def check_message_passing(self, local: nn.Module) -> None:
        """Raise a ValueError if a residual inside of message passing is where this recipe has none, or another one."""
        if leaves_residual(local):
            return
        inside, name = getattr(local, "residual", True), type(local).__name__
        if self.norm_place == "pre" or self.local_residual_map == "linear" or (inside and not self.local_residual):
            raise InputError(
                f"{name} adds its input itself, or not at all, which does not fit recipe.norm_place pre, "
                f"recipe.local_residual False or recipe.local_residual_map linear: leave it to the recipe by "
                f"gt.{name.lower()}.residual False and gt.{name.lower()}.outer_residual True"
            )

    def describe(self) -> str:
        """Return the recipe in one line, for people."""
        residuals = {
            (True, True): "residuals around all branches",
            (True, False): "residual around message passing alone",
            (False, True): "residual around attention alone",
            (False, False): "no residuals around branches",
        }
        parts = {
            "message passing, then attention" if self.order == "local_first" else "branches side by side": True,
            residuals[self.local_residual, self.attention_residual]: True,
            "norms before the branches" if self.norm_place == "pre" else "norms after the residuals": True,
            "feed-forward network" if self.ffn else "activation instead of a feed-forward network": True,
            f"{self.jump} of all layers": self.jump != "none",
            f"feature dropout {self.feature_dropout:g}": self.feature_dropout,
            f"edge dropout {self.edge_dropout:g}": self.edge_dropout,
            f"learned factors of attention from {self.attention_layer_scale:g}": self.attention_layer_scale,
            "a linear map in the residual of message passing": self.local_residual_map == "linear",
            "dropout of the layer's output alone": self.dropout_place == "output",
        }
        return ", ".join(text for text, applies in parts.items() if applies)


def leaves_residual(local: nn.Module) -> bool:
    """Return whether a message passing layer leaves its residual to the layer around it: all but GatedGCN do."""
    return not getattr(local, "internal_residual", False) or getattr(local, "outer_residual", False)


def adds_nothing(local: nn.Module) -> bool:
    """Return whether a layer has no residual, whatever the recipe: GatedGCN of the public k-MIP code."""
    return not leaves_residual(local) and not getattr(local, "residual", True)


class LayerScale(nn.Module):
    """Multiply each of C channels by a learned factor, `start` at first: LayerScale (Touvron et al. 2021)."""

    def __init__(self, dim: int, start: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((dim,), float(start)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled channels."""
        return self.factor * x


class JumpingConnections(nn.Module):
    """Join the outputs of layers (jumping knowledge, Xu et al. 2018): ``sum``, ``max``, or ``cat`` and a linear map."""

    def __init__(self, dim: int, num_layers: int, mode: str) -> None:
        super().__init__()
        self.join = sum if mode == "sum" else JumpingKnowledge(mode)
        self.linear = nn.Linear(dim * num_layers, dim) if mode == "cat" else nn.Identity()

    def forward(self, outputs: list[Tensor]) -> Tensor:
        """Return the joined outputs."""
        return self.linear(self.join(outputs))
