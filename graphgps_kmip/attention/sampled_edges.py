r"""Attention of the sparse network of the low-width method: a softmax over the few sampled edges into each node.

.. math::
    z_{ij} = \textstyle\sum_d (E_1 t_r)_d (k_j)_d (q_i)_d + (E_2 t_r)_h, \qquad
    o_i = \textstyle\sum_j \mathrm{softmax}_j(\mathrm{clamp}(z_{ij}, -8, 8)) v_j

for a sampled edge j -> i of kind r (Shirzad et al., stage 2). As in the public code, there is no factor
:math:`1 / \sqrt{D}` and no output map.
"""

from __future__ import annotations

from torch import Tensor, nn

from graphgps_kmip.attention.clamped_attention import clamped_attention
from graphgps_kmip.attention.head_arguments import dim_per_head

LARGEST_LOGIT = 8.0  # of the public code


class SampledEdgeAttention(nn.Module):
    """Multi-head attention from the nodes of one layer to those of the next, along edges drawn for this layer.

    An edge that was drawn twice counts twice; a target without edges gets zeros. Its edges change from layer to layer,
    so that it is no attention of ``gt.layer_type``'s branches: the network `SpexphormerModel` calls it.

    Args:
        dim (int): channels in and out.
        num_heads (int): heads; must divide dim.

    Shapes:
        x (N, dim), edges (3, E): source, target and kind, num_targets M, types (R, dim), a vector of each kind ->
        (M, dim). The targets are the first M rows of x.

    Raises:
        ValueError: num_heads does not divide dim.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        dim_per_head(dim, num_heads)
        self.num_heads = num_heads
        self.query, self.key, self.value, self.edge = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.edge_bias = nn.Linear(dim, num_heads)

    def forward(self, x: Tensor, edges: Tensor, num_targets: int, types: Tensor) -> Tensor:
        """Attend along the edges."""
        types = types.to(x.dtype)
        given = ((self.query, x[:num_targets]), (self.key, x), (self.value, x), (self.edge, types))
        q, k, v, e = (linear(rows).unflatten(1, (self.num_heads, -1)) for linear, rows in given)
        return self.attend(q, k, v, e, self.edge_bias(types), edges).flatten(1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, e: Tensor, bias: Tensor, edges: Tensor) -> Tensor:
        """Return the output of each head; arguments and shapes as of `clamped_attention`."""
        return clamped_attention(q, k, v, e, edges, bias=bias, limit=LARGEST_LOGIT, eps=0.0, scale=1.0)

    def extra_repr(self) -> str:
        """Say dim and heads."""
        return f"dim={self.query.in_features}, num_heads={self.num_heads}"
