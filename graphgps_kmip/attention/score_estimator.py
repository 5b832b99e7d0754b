r"""Attention score estimator of the low-width method: Exphormer attention of width 4 or 8 (Shirzad et al.), stage 1.

.. math::
    z_{ij} &= \langle k_j, q_i \rangle / \sqrt{D} \cdot \textstyle\sum_d (E_1 t_r)_d + (E_2 t_r)_h \\
    s_{ij} &= \exp(\mathrm{clamp}(z_{ij} / T, -8, 8)), \qquad
    o_i = \textstyle\sum_j s_{ij} v_j / (\sum_j s_{ij} + 10^{-6}), \qquad v_j = \sigma V x_j / \lVert V x_j \rVert

for an edge j -> i of kind r; the temperature T decreases in training. The default is the score of the public code; the
paper's is :math:`(E_1 t_r \odot k_j)^T q_i + E_2 t_r` (the option ``elementwise``).
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from graphgps_kmip.attention.exphormer import ExphormerState, TypedEdgeStart
from graphgps_kmip.attention.head_arguments import check_dropout, check_least, describe, dim_per_head
from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.clamped_attention import clamped_attention, edge_weights
from graphgps_kmip.ops.context import AttentionGraph, GraphContext, first_state
from graphgps_kmip.ranges import NATURAL, NOT_NEGATIVE, POSITIVE
from graphgps_kmip.registry import register

LARGEST_LOGIT = 8.0  # of the public code, after the division by T


def temperature(epoch: int, wait: int = 10, ratio: float = 1.0, minimum: float = 0.1) -> float:
    """Return the temperature of an epoch: 1 before epoch ``wait``, then ``max(minimum, ratio ** (epoch - wait))``."""
    return 1.0 if epoch < wait else max(minimum, ratio ** (epoch - wait))


@register("attention", "ScoreEstimator", aliases=("ASE",), dropout="sparse_attn_dropout", group="score_estimator")
class ScoreEstimatorAttention(nn.Module):
    r"""Narrow attention along graph edges, expander edges and self loops, whose weights a sparse network samples by.

    There is no output map. In training the temperature follows ``context.epoch``, where that is set; a checkpoint
    stores it. The vectors of the kinds of edges exist once for all layers, in ``initial_state``: a stack of layers
    keeps only those of its first layer. Edge features of the graph are not read.

    Args:
        dim (int): channels in and out.
        num_heads (int): heads; must divide dim.
        dropout (float, optional): probability to drop an attention weight, in training only. (default: 0.0)
        temp_wait (int, optional): first epoch whose temperature may be below 1. (default: 10)
        temp_ratio (float, optional): factor of the temperature from one epoch to the next. (default: 1.0)
        temp_min (float, optional): smallest temperature. (default: 0.1)
        normalise_values (bool, optional): values have length 1 in each head, before they are scaled. (default: True)
        value_scale (float, optional): start of the learned factor of all values; 0: there is none. (default: 0.25)
        elementwise (bool, optional): the scores of the paper, see above, instead of those of its code. (default: False)
        use_edge_types (bool, optional): scores depend on the kind of an edge. (default: True)
        self_loops (bool, optional): attend along a self loop of each node, too. (default: True)

    Shapes: x (N, dim), context, state -> (N, dim), state; without a state (N, dim).

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        temp_wait: Annotated[int, NATURAL] = 10,
        temp_ratio: Annotated[float, POSITIVE] = 1.0,
        temp_min: Annotated[float, POSITIVE] = 0.1,
        normalise_values: bool = True,
        value_scale: Annotated[float, NOT_NEGATIVE] = 0.25,
        elementwise: bool = False,
        use_edge_types: bool = True,
        self_loops: bool = True,
    ) -> None:
        super().__init__()
        dim_per_head(dim, num_heads)
        check_least(0, temp_wait=temp_wait, value_scale=value_scale)
        if temp_ratio <= 0 or temp_min <= 0:
            raise InputError(f"temp_ratio and temp_min must be above 0, got {temp_ratio} and {temp_min}")
        self.dim, self.num_heads, self.dropout = dim, num_heads, check_dropout(dropout)
        self.temp_wait, self.temp_ratio, self.temp_min = temp_wait, temp_ratio, temp_min
        self.normalise_values, self.elementwise, self.use_edge_types = normalise_values, elementwise, use_edge_types
        self.self_loops = self_loops
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.first_scale = float(value_scale)
        self.value_scale = nn.Parameter(torch.tensor([self.first_scale])) if value_scale else None
        self.edge = nn.Linear(dim, dim, bias=False) if use_edge_types else None
        self.edge_bias = nn.Linear(dim, num_heads) if use_edge_types else None
        self.register_buffer("temperature", torch.tensor(1.0))
        self.initial_state = TypedEdgeStart(dim, self_loops)  # without types, too, as in the public code

    def forward(
        self, x: Tensor, context: GraphContext | Tensor | None = None, state: ExphormerState | None = None
    ) -> Tensor | tuple[Tensor, ExphormerState]:
        """Attend along the edges of the state: x (N, dim) -> (N, dim), and the state of the next layer."""
        context = GraphContext.of(context, x)
        if state is None:
            return self(x, context, first_state(self, context))[0]
        if self.training and context.epoch is not None:
            self.temperature.fill_(temperature(context.epoch, self.temp_wait, self.temp_ratio, self.temp_min))
        q, k, v, e, bias = self._heads(x, state)
        dropout = self.dropout if self.training else 0.0
        out = clamped_attention(q, k, v, e, state.edges, dropout, bias=bias, limit=LARGEST_LOGIT, scale=1.0)
        return out.flatten(1), state

    @torch.no_grad()
    def edge_scores(
        self, x: Tensor, context: GraphContext | Tensor | None = None, state: ExphormerState | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the edges (3, E), see `typed_edges`, and their weights (E, H), without dropout and gradient."""
        context = GraphContext.of(context, x)
        state = first_state(self, context) if state is None else state
        q, k, _, e, bias = self._heads(x, state)
        return state.edges, edge_weights(q, k, e, state.edges, bias=bias, limit=LARGEST_LOGIT, scale=1.0)

    @torch.no_grad()
    def attention_graph(
        self, x: Tensor, context: GraphContext | Tensor | None = None, state: ExphormerState | None = None
    ) -> AttentionGraph:
        """Return the weights in slots, as many as the largest in-degree; an edge that is listed twice has two."""
        edges, weight = self.edge_scores(x, context, state)
        target, order = edges[1].sort(stable=True)
        degree = target.bincount(minlength=len(x))
        slot = torch.arange(len(target), device=target.device) - (degree.cumsum(0) - degree)[target]
        width = int(degree.max()) if len(degree) else 0
        index = edges.new_full((len(x), width), -1)
        index[target, slot] = edges[0, order]
        weights = weight.new_zeros(len(x), width, self.num_heads)
        weights[target, slot] = weight[order]
        return AttentionGraph(index.expand(self.num_heads, -1, -1), weights.movedim(-1, 0))

    def extra_repr(self) -> str:
        """Return dim, heads, and other options that are not the default ones."""
        return describe(self, value_scale=self.first_scale)

    def _heads(self, x: Tensor, state: ExphormerState) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """Return q, k, v (N, H, D), factors (R, H, D) or (R, H, 1) and biases (R, H) of the kinds of edges."""
        q, k, v = self.qkv(x).unflatten(1, (self.num_heads, -1)).chunk(3, dim=-1)
        v = normalize(v, dim=-1) if self.normalise_values else v
        v = v if self.value_scale is None else v * self.value_scale
        inverse = 1 / self.temperature  # a new tensor: the buffer may change before the backward pass
        if self.edge is None:
            e, bias = torch.ones_like(state.features)[:, :1, None].expand(-1, self.num_heads, 1), None
        else:
            features = state.features.to(x.dtype)
            e, bias = self.edge(features).unflatten(1, (self.num_heads, -1)), self.edge_bias(features) * inverse
        if not self.elementwise:
            e = e.sum(-1, keepdim=True) / (q.size(-1) ** 0.5)
        return q, k, v, e * inverse, bias
