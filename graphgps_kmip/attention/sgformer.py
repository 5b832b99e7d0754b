"""SGFormer's simple global attention: linear attention without softmax (Wu et al. 2023, section 3.1).

torch_geometric's module of this name divides each query and key by its own length, and counts padded rows as nodes;
here, as in the paper, one number divides all queries of a graph, and another one all its keys.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.head_arguments import check_dropout, described
from graphgps_kmip.attention.linear_attention import linear_attention
from graphgps_kmip.errors import InputError
from graphgps_kmip.registry import register

SHORTEST = 1e-12  # norms below count as this one, as in torch.nn.functional.normalize: zeros stay zeros


@register("attention", "SGFormer")
class SGFormerAttention(nn.Module):
    r"""Every node's own value and the values of its graph, weighted by inner products of normalised queries and keys.

    .. math::
        o_n = \mathrm{drop}\Big(\frac1H \sum_h \frac{N v_n + \sum_m \langle\tilde q_n, \tilde k_m\rangle v_m}
        {N + \sum_m \langle\tilde q_n, \tilde k_m\rangle}\Big), \qquad
        \tilde Q = Q / \lVert Q \rVert_F, \qquad \tilde K = K / \lVert K \rVert_F

    N is the number of nodes of the graph of n, m runs over them, and the norms over them and all heads. The denominator
    is at least :math:`N - \sqrt N`; of a graph of one node, where that is 0, the output is its value, which is what the
    quotient is. Heads have dim channels each and are averaged. Time is num_heads * N * dim^2, memory
    num_heads * dim * (N + B * dim) numbers for B graphs.

    Args:
        dim (int): channels in and out.
        num_heads (int): heads; the paper has one.
        dropout (float, optional): probability to drop an output, in training only. (default: 0.0)
        use_weight (bool, optional): values are a linear map of x; False: x itself. (default: True)

    Shapes:
        x (N, dim); context a GraphContext, a batch vector (N,) or None; returns (N, dim).

    Raises:
        ValueError: one of the arguments is out of its range.
    """

    def __init__(self, dim: int, num_heads: int, dropout: float = 0.0, *, use_weight: bool = True) -> None:
        super().__init__()
        if num_heads < 1:
            raise InputError(f"num_heads must be >= 1, got {num_heads}")
        self.num_heads, self.use_weight = num_heads, use_weight
        self.query, self.key = nn.Linear(dim, num_heads * dim), nn.Linear(dim, num_heads * dim)
        self.value = nn.Linear(dim, num_heads * dim) if use_weight else None
        self.dropout = nn.Dropout(check_dropout(dropout))

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each graph: x (N, dim) -> (N, dim)."""
        context = GraphContext.of(context, x)
        q, k = self.query(x), self.key(x)
        v = x.repeat(1, self.num_heads) if self.value is None else self.value(x)
        wide = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):  # the sums may have very many terms
            q, k, v = (one.to(wide).unflatten(1, (self.num_heads, -1)) for one in (q, k, v))  # (N, H, D)
            out = _attend(unit_norm(q, context), unit_norm(k, context), v, context)
        return self.dropout(out.mean(1).to(x.dtype))

    def extra_repr(self) -> str:
        """Say dim, heads, and other options that are not the default ones."""
        return described(self, self.query.in_features, self.num_heads)


def unit_norm(x: Tensor, context: GraphContext) -> Tensor:
    """Divide the rows of each graph by their Frobenius norm, over nodes, heads and channels.

    Shapes: x (N, H, D) -> (N, H, D).
    """
    squares = x.new_zeros(context.num_graphs).index_add(0, context.batch, x.square().sum((1, 2)))
    return x * squares.clamp(min=SHORTEST**2).rsqrt()[context.batch, None, None]


def _attend(q: Tensor, k: Tensor, v: Tensor, context: GraphContext) -> Tensor:
    size = context.sizes[context.batch, None, None].to(v.dtype)  # (N, 1, 1)
    total, weight = linear_attention(q, k, v, context)
    alone = size == 1
    return torch.where(alone, v, (total + size * v) / torch.where(alone, 1.0, size + weight))
