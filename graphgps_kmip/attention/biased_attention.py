"""Full attention with a bias for each pair of nodes: Graphormer's attention (Ying et al. 2021, equations 6 and 7)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from graphgps_kmip.attention.context import AttentionGraph, GraphContext, complete_pairs
from graphgps_kmip.attention.full import FullAttention
from graphgps_kmip.attention.pair_attention import padded_pairs, pair_attention
from graphgps_kmip.errors import InputError
from graphgps_kmip.registry import register


@register("attention", "BiasedTransformer", breaks=("batch_vector",))
class BiasedFullAttention(nn.Module):
    r"""Full attention with a number for each pair of nodes and head added to the scores: Graphormer's attention.

    .. math:: \mathrm{out}(\mathrm{concat}_h \, \mathrm{softmax}(Q_h K_h^T / \sqrt{D} + B_h) V_h)

    (Ying et al. 2021, equations 6 and 7.) Row 0 of ``context.pair_index`` attends to row 1 with the biases in
    ``context.pair_attr``; the biases of a pair that is given twice are added, a pair that is not given has none. Memory
    and time are those of sum_g N_g^2 * num_heads numbers where the C loops run; elsewhere (on a GPU, half
    precision on a CPU) graphs are padded to the largest one.

    Args:
        dim (int): channels in and out.
        num_heads (int): heads; must divide dim.
        dropout (float, optional): probability to drop an attention weight, in training only. (default: 0.0)

    Shapes:
        x (N, dim); context a GraphContext with pair_index (2, P) and pair_attr (P, num_heads); returns (N, dim).
        Gradients flow to x and to the biases.

    Raises:
        ValueError: as `FullAttention`; when called: there are no biases, or not one column per head.
    """

    def __init__(self, dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = FullAttention(dim, num_heads, dropout)

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each graph: x (N, dim) -> (N, dim)."""
        context, attention = GraphContext.of(context, x), self.attention
        qkv, theta = attention.qkv(x), pair_bias(context, attention.num_heads)
        out = pair_attention(
            qkv,
            context,
            attention.num_heads,
            scale=1 / math.sqrt(x.size(1) / attention.num_heads),
            theta=theta,
            dropout=attention.dropout if self.training else 0.0,
        )
        return attention.out(out)

    @torch.no_grad()
    def attention_graph(self, x: Tensor, context: GraphContext | Tensor | None = None) -> AttentionGraph:
        """Return all weights, as `FullAttention` does."""
        context = GraphContext.of(context, x)
        bias = padded_pairs(pair_bias(context, self.attention.num_heads), context)
        return self.attention.weights(x, context, bias)


def pair_bias(context: GraphContext, num_heads: int) -> Tensor:
    """Return the biases of all pairs, (H, P) in the order of `all_pairs`.

    Raises:
        ValueError: the context has none, or not one column per head.
    """
    if context.pair_index is None or context.pair_attr is None:
        raise InputError(
            "BiasedTransformer needs a bias for each pair of nodes, and this data has none: set "
            "posenc_GraphormerBias.enable True (and node_degrees_only False there), or take Transformer"
        )
    if context.pair_attr.dim() != 2 or context.pair_attr.size(1) != num_heads:
        raise InputError(
            f"BiasedTransformer has {num_heads} heads (gt.n_heads), but the bias of pairs has shape "
            f"{tuple(context.pair_attr.shape)}: give one column per head"
        )
    return complete_pairs(context).T
