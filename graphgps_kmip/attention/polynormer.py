r"""Polynormer's global attention: linear attention times a map of the node itself (Deng et al. 2024, equations 6, 8).

A product of two functions of the nodes has twice their degree as a polynomial, so that L layers reach degree 2^L.
Norm and ReLU are those of the public code. torch_geometric's module of this name counts padded rows as keys; here the
sums run over the nodes of each graph.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.head_arguments import check_dropout, described, dim_per_head
from graphgps_kmip.attention.linear_attention import linear_attention
from graphgps_kmip.errors import InputError
from graphgps_kmip.ranges import FRACTION, optional
from graphgps_kmip.registry import register

SMALLEST = 1e-30  # sum of weights, where sigmoids of large negative numbers are 0; its inverse is finite in float32
Beta = Annotated[float | None, optional(FRACTION)]


class ChannelGate(nn.Module):
    r"""The learned numbers :math:`\beta` of Polynormer, one for each channel.

    Args:
        dim (int): channels C.
        start (float or None, optional): None: :math:`\beta` is the sigmoid of a parameter, which starts as one of L
            rows of a Xavier normal matrix; a number: the parameter itself, which starts there. (default: None)
        num_layers (int, optional): layers L. (default: 1)

    Shapes: () -> (C,).

    Raises:
        ValueError: start is not in [0, 1].
    """

    def __init__(self, dim: int, start: float | None = None, num_layers: int = 1) -> None:
        super().__init__()
        if start is not None and not 0 <= start <= 1:
            raise InputError(f"beta must be in [0, 1], or None, got {start}")
        self.start = start
        given = (
            torch.full((dim,), float(start))
            if start is not None
            else torch.randn(dim) * math.sqrt(2 / (num_layers + dim))
        )
        self.weight = nn.Parameter(given)

    def forward(self) -> Tensor:
        """Return the numbers."""
        return self.weight.sigmoid() if self.start is None else self.weight


@register("attention", "Polynormer")
class PolynormerAttention(nn.Module):
    r"""Linear attention whose features are sigmoids, times a linear map of the node; then a linear map and ReLU.

    .. math::
        a_n = \big\Vert_h \frac{\sum_m \langle\sigma(q_n), \sigma(k_m)\rangle v_m}
        {\sum_m \langle\sigma(q_n), \sigma(k_m)\rangle}, \qquad
        x_n' = \mathrm{drop}\big(\mathrm{ReLU}(W_O(\mathrm{LN}(a_n) \odot (W_H x_n + \beta)))\big)

    m runs over the nodes of the graph of n; all maps have biases. As in the public code, the channels of a head are
    every H-th one, so that its weights fit. Beside the linear maps, time is N * dim^2 / num_heads, and memory
    dim * (N + B * dim / num_heads) numbers for N nodes in B graphs.

    Args:
        dim (int): channels C in and out.
        num_heads (int): heads H; must divide dim.
        dropout (float, optional): probability to drop an output, in training only. (default: 0.0)
        beta (float or None, optional): where :math:`\beta` starts; None: a sigmoid, see `ChannelGate`. (default: None)
        qk_shared (bool, optional): queries are the keys. (default: True)

    Shapes:
        x (N, dim); context a GraphContext, a batch vector (N,) or None; returns (N, dim).

    Raises:
        ValueError: one of the arguments is out of its range.
    """

    def __init__(
        self, dim: int, num_heads: int, dropout: float = 0.0, *, beta: Beta = None, qk_shared: bool = True
    ) -> None:
        super().__init__()
        dim_per_head(dim, num_heads)
        self.num_heads, self.qk_shared = num_heads, qk_shared
        self.query = None if qk_shared else nn.Linear(dim, dim)
        self.key, self.value, self.factor, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.norm, self.gate = nn.LayerNorm(dim), ChannelGate(dim, beta)
        self.dropout = nn.Dropout(check_dropout(dropout))

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each graph: x (N, dim) -> (N, dim)."""
        x = self.norm(self._attend(x, GraphContext.of(context, x))) * (self.factor(x) + self.gate())
        return self.dropout(torch.relu(self.out(x)))

    def extra_repr(self) -> str:
        """Say dim, heads, and other options that are not the default ones."""
        return described(self, self.out.out_features, self.num_heads, beta=self.gate.start)

    def _attend(self, x: Tensor, context: GraphContext) -> Tensor:
        k, v = self.key(x), self.value(x)
        q = k if self.query is None else self.query(x)
        wide = torch.promote_types(k.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):  # the sums may have very many terms
            k, v = self._heads(k.to(wide).sigmoid()), self._heads(v.to(wide))
            q = k if self.query is None else self._heads(q.to(wide).sigmoid())
            total, weight = linear_attention(q, k, v, context)
            out = total / weight.clamp(min=SMALLEST)
        return out.mT.flatten(1).to(x.dtype)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, self.num_heads)).mT  # (N, H, D)
