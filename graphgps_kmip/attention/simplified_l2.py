r"""Simplified L2 attention of PPGT (Ma et al., equations 4 and 5): scores of distances, biases and factors of pairs.

.. math::
    o_i = \sum_j (1 + \phi_{ij}) \, \mathrm{softmax}_j(s_{ij}) \, v_j, \qquad
    s_{ij} = \langle q_i, k_j \rangle - \frac{\|k_j\|^2}{2 \sqrt D} + \theta_{ij}

with :math:`(\theta, \phi) = W p_{ij} + b` of pair features. This is the public code's score; the paper's has the inner
product over :math:`\sqrt D`, too (``scale="paper"``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import linear

from graphgps_kmip.attention.head_arguments import check_choice, check_dropout, describe, dim_per_head, split_heads
from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.context import GraphContext, all_pairs, complete_pairs
from graphgps_kmip.ops.operators import refuse_second_derivative
from graphgps_kmip.ops.pair_attention import pair_attention, sparse_pair_attention
from graphgps_kmip.ranges import NATURAL, Choice, whole
from graphgps_kmip.registry import register

SCALES = ("code", "paper")
KEY_NORMS = ("fixed", "learned", "none")
PAIRS_AT_A_TIME = 2048  # in the maps of pairs and their gradients on a CPU: two such matrices fit into its cache
PairNumbers = tuple[tuple[Tensor, Tensor | None], ...]  # theta and phi of each layer


class L2Heads(nn.Module):
    """Queries, keys, values, key bias and output map; arguments are those of `SimplifiedL2Attention`."""

    def __init__(self, dim: int, num_heads: int, *, key_norm: str, scale: str) -> None:
        super().__init__()
        width = dim_per_head(dim, num_heads)
        check_choice(KEY_NORMS, key_norm=key_norm)
        check_choice(SCALES, scale=scale)
        self.num_heads, self.key_norm = num_heads, key_norm
        self.scale = 1.0 if scale == "code" else 1 / math.sqrt(width)
        self.query, self.key_value = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.key_scale = nn.Parameter(torch.ones(num_heads)) if key_norm == "learned" else None
        self.out = nn.Linear(dim, dim)

    def project(self, x: Tensor) -> Tensor:
        """Return queries, keys and values side by side, (N, dim) -> (N, 3 dim)."""
        weight = torch.cat([self.query.weight, self.key_value.weight])  # one product in place of two
        return linear(x, weight, torch.cat([self.query.bias, self.key_value.bias]))

    def key_bias(self, k: Tensor) -> Tensor | None:
        """Return what keys add to the scores: k (N, dim) -> (N, H), or None."""
        if self.key_norm == "none":
            return None
        k = split_heads(k, self.num_heads)  # (N, H, D)
        bias = k.square().sum(-1) * (-0.5 / math.sqrt(k.size(-1)))
        return bias if self.key_scale is None else bias * self.key_scale


@register("attention", "sL2", breaks=("batch_vector",))
class SimplifiedL2Attention(nn.Module):
    r"""Multi-head attention by simplified L2 distances, with a bias and a factor for each pair of nodes (PPGT).

    See the module for the formula. Pairs that the data does not list have features 0, and attend with the bias of the
    linear map. The features of pairs are ``context.pair_attr``. Costs sum_g N_g^2 (dim + dim_pair H).

    Args:
        dim (int): channels in and out.
        num_heads (int): heads; must divide dim.
        dropout (float, optional): probability to drop an attention weight, in training only. (default: 0.0)
        dim_pair (int, optional): width of the features of pairs; 0: dim. (default: 0)
        urpe (bool, optional): factors 1 + phi after the softmax (Luo et al. 2022). (default: True)
        key_norm (str, optional): factor of :math:`-\|k_j\|^2 / (2 \sqrt D)` in the scores: "fixed" 1, "learned" one for
            each head (from 1), "none" 0. (default: "fixed")
        scale (str, optional): factor of inner products: "code" 1, "paper" :math:`1 / \sqrt D`. (default: "code")
        window (int, optional): w > 0 keeps the pairs for which the sum of the first w + 2 channels of ``context.rrwp``
            is above 0, those within w + 1 hops. A query without a pair gets the bias of the output map.
            ``context.rrwp_index`` must have these pairs, and lists those of the features, too. (default: -1, all)

    Shapes:
        x (N, dim); context a GraphContext with pair_attr (P, dim_pair), for a window also rrwp (P, K); returns
        (N, dim). Gradients flow to x and to the features of pairs.

    Raises:
        ValueError: an argument is out of its range; when called: there are no features of pairs of width dim_pair, or
            a window finds no RRWP of enough channels.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        dim_pair: Annotated[int, NATURAL] = 0,
        urpe: bool = True,
        key_norm: Annotated[str, Choice(KEY_NORMS)] = "fixed",
        scale: Annotated[str, Choice(SCALES)] = "code",
        window: Annotated[int, whole(-1)] = -1,
    ) -> None:
        super().__init__()
        self.dim, self.num_heads, self.dim_pair = dim, num_heads, dim_pair or dim
        self.dropout, self.window, self.urpe = check_dropout(dropout), window, urpe
        self.heads = L2Heads(dim, num_heads, key_norm=key_norm, scale=scale)
        self.pair = nn.Linear(self.dim_pair, num_heads * (2 if urpe else 1))

    def forward(
        self, x: Tensor, context: GraphContext | Tensor | None = None, state: PairNumbers | None = None
    ) -> Tensor | tuple[Tensor, PairNumbers]:
        """Attend inside each graph: x (N, dim) -> (N, dim), and the state of `SharedPairs` without its first entry."""
        context = GraphContext.of(context, x)
        dropout = self.dropout if self.training else 0.0
        qkv = self.heads.project(x)
        key_bias = self.heads.key_bias(qkv.chunk(3, 1)[1])
        if self.window > 0:
            return self.heads.out(self._attend_window(qkv, key_bias, context, dropout))
        theta, phi = state[0] if state else SharedPairs([self])(context)[0]
        options = {"scale": self.heads.scale, "key_bias": key_bias, "theta": theta, "phi": phi, "dropout": dropout}
        out = self.heads.out(pair_attention(qkv, context, self.num_heads, **options))
        return out if state is None else (out, state[1:])

    extra_repr = describe

    def _pair_attr(self, context: GraphContext) -> Tensor:
        """Return the features of all pairs, or with a window and sparse RRWP of its pairs."""
        if self.window > 0 and context.rrwp_index is not None:
            _check_listed(context)
            attr = context.pair_attr
        else:
            attr = complete_pairs(context)
        if attr.shape[1:] != (self.dim_pair,):
            raise InputError(
                f"sL2 attention reads features of pairs of width {self.dim_pair}, got shape {tuple(attr.shape)}: set "
                "gt.sl2.dim_pair to the width of pair_attr"
            )
        return attr

    def _attend_window(self, qkv: Tensor, key_bias: Tensor | None, context: GraphContext, dropout: float) -> Tensor:
        attr, rows = self._pair_attr(context), window_pairs(context, self.window)
        q, k, v = qkv.unflatten(1, (3, self.num_heads, -1)).unbind(1)
        pairs = self.pair(attr[rows])
        theta, phi = pairs.chunk(2, 1) if self.urpe else (pairs, None)
        index = (all_pairs(context.ptr) if context.rrwp_index is None else context.rrwp_index)[:, rows]
        options = {"scale": self.heads.scale, "key_bias": key_bias, "theta": theta, "phi": phi, "dropout": dropout}
        return sparse_pair_attention(q, k, v, index, **options).flatten(1)


class SharedPairs:
    """Biases and factors of pairs for all layers of a stack, in one pass over the features of pairs.

    It is the ``initial_state`` of the first layer's attention; each layer takes its first entry and passes on the rest.

    Args:
        attentions (Sequence[SimplifiedL2Attention]): of all layers, first layer first, without windows.

    Raises:
        ValueError: an attention has a window.
    """

    def __init__(self, attentions: Sequence[SimplifiedL2Attention]) -> None:
        if any(attention.window > 0 for attention in attentions):
            raise InputError("attentions with a window do not share features of pairs: set gt.sl2.window -1")
        self.attentions = tuple(attentions)

    def __call__(self, context: GraphContext) -> PairNumbers:
        """Return theta (H, P) and phi (H, P) or None of each layer."""
        attr = self.attentions[0]._pair_attr(context)
        weight = torch.cat([attention.pair.weight for attention in self.attentions])
        bias = torch.cat([attention.pair.bias for attention in self.attentions])
        rows = [attention.num_heads for attention in self.attentions for _ in range(1 + attention.urpe)]
        device = attr.device.type
        kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        maps = iter(_PairMaps.apply(attr.to(kind), weight.to(kind), bias.to(kind), rows))
        return tuple((next(maps), next(maps) if attention.urpe else None) for attention in self.attentions)


class _PairMaps(Function):
    """``weight @ attr.T + bias``, cut into rows, so that the pairs of a head are contiguous."""

    @staticmethod
    def forward(ctx: Any, attr: Tensor, weight: Tensor, bias: Tensor, rows: list[int]) -> tuple[Tensor, ...]:
        """Return (rows, P) each, of attr (P, C), weight (K, C), bias (K,) and rows that sum to K."""
        ctx.save_for_backward(attr, weight, bias)
        maps = weight.new_empty(len(weight), len(attr))
        for part in _parts(attr):  # on a CPU a product of all pairs at once has half the rate
            torch.addmm(bias[:, None], weight, attr[part].T, out=maps[:, part])
        return maps.split(rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Some pairs at a time, so that the gradients are put together in the cache."""
        attr, weight, bias = ctx.saved_tensors
        refuse_second_derivative("maps of pairs")
        grad_attr = torch.empty_like(attr) if ctx.needs_input_grad[0] else None
        grad_weight, grad_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        for part in _parts(attr):
            grad = torch.cat([rows[:, part] for rows in grads])  # (K, p)
            grad_weight.addmm_(grad, attr[part])
            grad_bias += grad.sum(1)
            if grad_attr is not None:
                torch.mm(grad.T, weight, out=grad_attr[part])
        return grad_attr, grad_weight, grad_bias, None


def _parts(attr: Tensor) -> list[slice]:
    step = PAIRS_AT_A_TIME if attr.device.type == "cpu" else max(1, len(attr))
    return [slice(start, start + step) for start in range(0, len(attr), step)]


def window_pairs(context: GraphContext, window: int) -> Tensor:
    """Return the rows of RRWP that a window keeps; ValueError where they are not those of the pairs, or too narrow."""
    rrwp = context.rrwp
    if rrwp is None:
        raise InputError("sL2 attention with a window reads RRWP, and the data has none: set posenc_RRWP.enable True")
    num_pairs = context.num_pairs if context.rrwp_index is None else context.rrwp_index.size(1)
    if len(rrwp) != num_pairs or rrwp.size(1) < window + 2:
        raise InputError(
            f"sL2 attention with window {window} needs rrwp ({num_pairs}, {window + 2} or more), got shape "
            f"{tuple(rrwp.shape)}: set posenc_RRWP.ksteps to at least {window + 2}"
        )
    return (rrwp[:, : window + 2].sum(1) > 0).nonzero().squeeze(1)


def _check_listed(context: GraphContext) -> None:
    index = context.pair_index
    same = index is context.rrwp_index or (index is not None and torch.equal(index, context.rrwp_index))
    if context.pair_attr is None or not same:
        raise InputError(
            "sL2 attention with a window and sparse RRWP reads features of the pairs of rrwp_index, and pair_index has "
            "others: add no other encoding of pairs, or set posenc_RRWP.sparse False"
        )


class ClassAttention(nn.Module):
    """Attention of one token per graph to the nodes of its graph, with simplified L2 scores and no features of pairs.

    Args:
        dim (int): channels in and out.
        num_heads (int): heads; must divide dim.
        dropout (float, optional): probability to drop an attention weight, in training only. (default: 0.0)
        key_norm, scale: as in `SimplifiedL2Attention`.

    Shapes: token (B, dim), x (N, dim), context as above; returns (B, dim), without nodes the bias of the output map.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        key_norm: str = "fixed",
        scale: str = "code",
    ) -> None:
        super().__init__()
        self.dim, self.num_heads, self.dropout = dim, num_heads, check_dropout(dropout)
        self.heads = L2Heads(dim, num_heads, key_norm=key_norm, scale=scale)

    def forward(self, token: Tensor, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend to the nodes of each graph: token (B, dim) -> (B, dim)."""
        context, heads = GraphContext.of(context, x), self.heads
        if len(token) != context.num_graphs:
            raise InputError(
                f"class attention: got {len(token)} tokens for {context.num_graphs} graphs: give one for each graph"
            )
        k, v = heads.key_value(x).chunk(2, 1)
        pairs = torch.stack([context.batch, torch.arange(len(x), device=x.device)])
        q, k, v = (split_heads(part, self.num_heads) for part in (heads.query(token), k, v))
        key_bias, dropout = heads.key_bias(k.flatten(1)), self.dropout if self.training else 0.0
        out = sparse_pair_attention(q, k, v, pairs, scale=heads.scale, key_bias=key_bias, dropout=dropout)
        return heads.out(out.flatten(1))

    extra_repr = describe
