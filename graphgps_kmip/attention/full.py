"""Full softmax attention among the nodes of each graph by fused kernels, plain and with a bias for pairs."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from graphgps_kmip.attention.attention_graph import AttentionGraph
from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.dense import from_padded, to_padded
from graphgps_kmip.attention.full_cpu import can_run, full_attention
from graphgps_kmip.attention.head_arguments import check_dropout, described, dim_per_head
from graphgps_kmip.errors import InputError


class FullAttention(nn.Module):
    """Multi-head attention where every node attends to all nodes of its graph.

    ``out(concat_h softmax(Q_h K_h^T / sqrt(D)) V_h)`` with D = dim / num_heads; costs sum_g N_g^2 * dim.
    Initialised as ``torch.nn.MultiheadAttention``. Second derivatives are right where the kernel of `full_cpu` runs;
    torch's fused attention, which stands in elsewhere (a GPU, more threads than heads, a bias), has none and raises:
    call it inside ``torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`` for them.

    Args:
        dim: channels in and out.
        num_heads: heads; must divide dim.
        dropout: probability to drop an attention weight, in training only.

    Shapes:
        x (N, dim); context a GraphContext, a batch vector (N,) or None; returns (N, dim).

    Raises:
        ValueError: dim is not divisible by num_heads, or dropout is not in [0, 1).
    """

    def __init__(self, dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        dim_per_head(dim, num_heads)
        self.num_heads = num_heads
        self.dropout = check_dropout(dropout)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each graph: x (N, dim) -> (N, dim)."""
        return self.attend(x, GraphContext.of(context, x))

    @torch.no_grad()
    def attention_graph(self, x: Tensor, context: GraphContext | Tensor | None = None) -> AttentionGraph:
        """Return all weights: K = Nmax slots a node, in the order of the nodes of its graph, without dropout."""
        return self.weights(x, GraphContext.of(context, x))

    def extra_repr(self) -> str:
        """Say dim, heads and dropout."""
        return described(self, self.out.in_features, self.num_heads, dropout=self.dropout)

    def attend(self, x: Tensor, context: GraphContext, bias: Tensor | None = None) -> Tensor:
        """Attend with a bias (B, H, Nmax, Nmax) added to the scores: x (N, dim) -> (N, dim)."""
        dropout = self.dropout if self.training else 0.0
        qkv = self.qkv(x)
        if bias is None and can_run(qkv, context, self.num_heads, dropout):
            return self.out(full_attention(qkv, context, self.num_heads, dropout))
        q, k, v, mask = self._padded(qkv, context)
        seen = _key_mask(mask, context)
        if bias is not None:
            seen = bias if seen is None else bias.masked_fill(~seen, -torch.inf)
        out = scaled_dot_product_attention(q, k, v, seen, dropout)  # (B, H, Nmax, D)
        return self.out(from_padded(out.transpose(1, 2).flatten(2), context))

    def weights(self, x: Tensor, context: GraphContext, bias: Tensor | None = None) -> AttentionGraph:
        """Return the weights of :meth:`attend`."""
        q, k, _, mask = self._padded(self.qkv(x), context)
        score = q @ k.mT / math.sqrt(q.size(-1))  # (B, H, Nmax, Nmax)
        score = (score if bias is None else score + bias).transpose(1, 2).flatten(2)  # (B, Nmax, H * Nmax)
        mask = mask[context.batch]  # (N, Nmax), the keys of each node
        score = from_padded(score, context).unflatten(1, (self.num_heads, -1)).transpose(0, 1)  # (H, N, Nmax)
        weight = score.masked_fill(~mask, -torch.inf).softmax(-1)
        index = context.ptr[context.batch, None] + torch.arange(context.max_nodes, device=x.device)
        return AttentionGraph(index.masked_fill(~mask, -1).expand_as(weight), weight)

    def _padded(self, qkv: Tensor, context: GraphContext) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Padded q, k and v (B, H, Nmax, D) and the mask (B, Nmax) of real nodes."""
        padded, mask = to_padded(qkv, context)
        q, k, v = padded.unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # (B, Nmax, 3, H, D)
        return q, k, v, mask


class BiasedFullAttention(nn.Module):
    r"""Full attention with a number for each pair of nodes and head added to the scores: Graphormer's attention.

    .. math:: \mathrm{out}(\mathrm{concat}_h \, \mathrm{softmax}(Q_h K_h^T / \sqrt{D} + B_h) V_h)

    (Ying et al. 2021, equations 6 and 7.) Row 0 of ``context.pair_index`` attends to row 1 with the biases in
    ``context.pair_attr``; those of a pair that stands there twice are added, and a pair that does not has none. Memory
    and time are those of B * Nmax^2 * num_heads numbers.

    Args:
        dim: channels in and out.
        num_heads: heads; must divide dim.
        dropout: probability to drop an attention weight, in training only.

    Shapes:
        x (N, dim); context a GraphContext with pair_index (2, P) and pair_attr (P, num_heads); returns (N, dim).
        Gradients flow to x and to the biases.

    Raises:
        ValueError: as `FullAttention`; when called: there are no biases, or they are not for as many heads.
    """

    def __init__(self, dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = FullAttention(dim, num_heads, dropout)

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each graph: x (N, dim) -> (N, dim)."""
        context = GraphContext.of(context, x)
        return self.attention.attend(x, context, pair_bias(context, self.attention.num_heads))

    @torch.no_grad()
    def attention_graph(self, x: Tensor, context: GraphContext | Tensor | None = None) -> AttentionGraph:
        """Return all weights, as `FullAttention` does."""
        context = GraphContext.of(context, x)
        return self.attention.weights(x, context, pair_bias(context, self.attention.num_heads))


def pair_bias(context: GraphContext, num_heads: int) -> Tensor:
    """Return the biases of all pairs, padded: (B, H, Nmax, Nmax), the attending node first.

    Raises:
        ValueError: the context has none, or not for this number of heads.
    """
    if context.pair_index is None or context.pair_attr is None:
        raise InputError(
            "BiasedTransformer needs a bias for each pair of nodes, and this data has none: set "
            "posenc_GraphormerBias.enable True (and node_degrees_only False there), or take Transformer"
        )
    if context.pair_attr.dim() != 2 or context.pair_attr.size(1) != num_heads:
        raise InputError(
            f"BiasedTransformer has {num_heads} heads (gt.n_heads), but the bias of pairs has shape "
            f"{tuple(context.pair_attr.shape)}: it needs one column for each head"
        )
    most, graph = context.max_nodes, context.batch[context.pair_index[0]]
    query, key = context.pair_index - context.ptr[graph]  # in their graph
    rows = (graph * most + query) * most + key
    bias = context.pair_attr.new_zeros(context.num_graphs * most**2, num_heads).index_add(0, rows, context.pair_attr)
    return bias.view(context.num_graphs, most, most, num_heads).permute(0, 3, 1, 2)


def _key_mask(mask: Tensor, context: GraphContext) -> Tensor | None:
    """Which keys a query may see, (B, 1, 1, Nmax); None (the fastest kernels) when nothing is padded."""
    if context.min_nodes == context.max_nodes:
        return None
    # a graph without nodes looks at its padding: a row without any key could turn into NaN
    return (mask | ~mask.any(1, keepdim=True))[:, None, None]
