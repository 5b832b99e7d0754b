"""Attention along edges: a softmax over the edges into each node; and the edge features that attentions ask for."""

from __future__ import annotations

import torch
from torch import Tensor

from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.context import GraphContext


def edge_softmax(score: Tensor, target: Tensor, num_targets: int) -> Tensor:
    """Normalise scores over the edges into each target; all -inf gives weights 0.

    Shapes: score (E, H), target (E,); returns (E, H). Gradients flow to score.
    """
    constant = score.detach()  # a softmax does not depend on what is subtracted
    top = constant.new_full((num_targets, score.size(1)), -torch.inf)
    top = top.scatter_reduce(0, target[:, None].expand_as(score), constant, "amax")
    top = top.masked_fill(top == -torch.inf, 0.0)
    unnormalised = torch.exp(score - top[target])
    total = unnormalised.new_zeros(top.shape).index_add(0, target, unnormalised)
    return unnormalised / total.masked_fill(total == 0, 1.0)[target]


def encoded_edges(layer: str, context: GraphContext, dim: int, otherwise: str = "") -> Tensor:
    """Return the edge features (E, dim) of a context; the error names the attention and, `otherwise`, another fix."""
    edge_attr = context.edge_attr
    if edge_attr is None or edge_attr.shape[1:] != (dim,):
        features = "no edge features" if edge_attr is None else f"shape {tuple(edge_attr.shape)}"
        raise InputError(
            f"{layer} needs encoded edge features (E, {dim}), got {features}: set dataset.edge_encoder True and "
            f"dataset.edge_encoder_name DummyEdge (one learned vector){otherwise}"
        )
    return edge_attr
