"""Attention along edges: a softmax over the edges into each node; and the edge features that attentions ask for."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop

from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.context import GraphContext


def edge_attention(
    q: Tensor, k: Tensor, v: Tensor, edge_index: Tensor, bias: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    r"""Attend along edges: ``o_t = sum_e a_e v_s(e)`` over the edges e into t, with a softmax for each t.

    .. math:: a_e = \frac{\exp(z_e)}{\sum_{t(e') = t(e)} \exp(z_{e'})}, \qquad
        z_e = \langle q_{t(e)}, k_{s(e)} \rangle / \sqrt{D} + b_e

    An edge that is given twice counts twice. A query without edges, or with none whose bias is above -inf, gets 0.
    Memory is that of 3 E * H * D numbers. Half-precision inputs are computed in float32. Gradients flow to all
    arguments but the edges.

    Args:
        q (Tensor): queries.
        k (Tensor): keys.
        v (Tensor): values.
        edge_index (Tensor): source (row of k and v) and target (row of q) of each edge, in any order.
        bias (Tensor, optional): added to the scores; -inf removes an edge of a head. (default: None)
        dropout (float, optional): probability to drop a weight (the others are divided by 1 - dropout). (default: 0.0)

    Shapes:
        q (N, H, D), k (M, H, D), v (M, H, C), edge_index (2, E), bias (E, H); returns (N, H, C).
    """
    source, target = edge_index
    wide = torch.promote_types(v.dtype, torch.float32)
    values = v[source].to(wide)  # (E, H, C)
    score = (q[target].to(wide) * k[source].to(wide)).sum(-1) / math.sqrt(q.size(-1))  # (E, H)
    weight = edge_softmax(score if bias is None else score + bias.to(wide), target, q.size(0))
    message = drop(weight, dropout)[..., None] * values
    return message.new_zeros(*q.shape[:2], v.size(-1)).index_add(0, target, message).to(v.dtype)


def edge_softmax(score: Tensor, target: Tensor, num_targets: int) -> Tensor:
    """Normalise scores over the edges into each target; all -inf gives weights 0.

    Shapes:
        score (E, H), target (E,); returns (E, H). Gradients flow to score.
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
