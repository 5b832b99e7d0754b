"""DIFFormer attention: one step of diffusion among all nodes of a graph, in linear time (Wu et al. 2023, section 3.2).

Of "DIFFormer: Scalable (Graph) Transformers Induced by Energy Constrained Diffusion" (ICLR 2023) the form DIFFormer-s.
Its graph convolution is the message passing of a GPS layer (``gt.layer_type GCN+DIFFormer``). The paper normalises each
query and key, its code all of them together, and so does this file, for each graph by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphgps_kmip.attention.head_arguments import check_dropout, check_least, describe, split_heads
from graphgps_kmip.attention.performer import linear_attention
from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.registry import register


@register("attention", "DIFFormer")
class DIFFormerAttention(nn.Module):
    r"""Multi-head linear attention whose weights are 1 plus an inner product; the heads are averaged.

    .. math::
        w_{nm} = 1 + \langle q_n, k_m \rangle / (\Vert Q \Vert_F \Vert K \Vert_F), \qquad
        o_n = \mathrm{drop}\Big(\frac{1}{H} \sum_h \frac{\sum_m w_{nm} v_m}{\sum_m w_{nm}}\Big)

    The sums run over the nodes m of the graph of n; Q are the queries of all nodes and heads of that graph, K its keys.

    Args:
        dim (int): channels in and out, and of each head.
        num_heads (int): heads H.
        dropout (float, optional): probability to drop an output channel, in training only. (default: 0.0)

    Shapes: x (N, dim); context a GraphContext, a batch vector (N,) or None; returns (N, dim).

    Raises:
        ValueError: one of the arguments is out of its range.
    """

    def __init__(self, dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        check_least(1, num_heads=num_heads)
        self.dim, self.num_heads = dim, num_heads
        self.query, self.key, self.value = (nn.Linear(dim, num_heads * dim) for _ in range(3))
        self.dropout = nn.Dropout(check_dropout(dropout))

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each graph: x (N, dim) -> (N, dim)."""
        context = GraphContext.of(context, x)
        q, k, v = (split_heads(linear(x), self.num_heads) for linear in (self.query, self.key, self.value))
        wide = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):  # the sums may have very many terms
            q, k, v = (_normalise(q.to(wide), context), _normalise(k.to(wide), context), v.to(wide))
            total, weight = linear_attention(q, k, v, context)  # (N, H, C), (N, H, 1)
            mean = v.new_zeros(context.num_graphs, *v.shape[1:]).index_add(0, context.batch, v)
            sizes = context.sizes[context.batch].to(wide)[:, None, None]
            out = (total + mean[context.batch]) / (weight + sizes)
        return self.dropout(out.mean(1).to(x.dtype))

    extra_repr = describe


def _normalise(rows: Tensor, context: GraphContext) -> Tensor:
    """Divide the rows (N, H, C) of each graph by their norm."""
    squares = rows.new_zeros(context.num_graphs).index_add(0, context.batch, rows.square().sum((1, 2)))
    norm = squares.clamp(min=torch.finfo(rows.dtype).tiny).sqrt()
    return rows / norm[context.batch][:, None, None]
