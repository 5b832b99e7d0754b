"""GRIT attention (Ma et al. 2023, section 3.2): vectors as scores of pairs of nodes, which are the next pair features.

The mathematics is that of the public code, the memory is not, see `grit_operator.py`. Without relative encodings pairs
have zeros, and the features of the edges between them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor, nn

from graphgps_kmip.attention.head_arguments import check_dropout, check_least, describe, dim_per_head, split_heads
from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.context import GraphContext, complete_pairs
from graphgps_kmip.ops.grit_operator import PairFeatures, PairMaps, PairSettings, grit_attention
from graphgps_kmip.ops.row_layers import RowBatchNorm, row_norms
from graphgps_kmip.ranges import NOT_NEGATIVE, optional
from graphgps_kmip.registry import register


@dataclass(frozen=True, eq=False)
class GRITState:
    """State that is passed from layer to layer: features of pairs (P, C), and log(1 + degree) of each node (N, 1)."""

    pairs: PairFeatures
    log_degree: Tensor


class PairUpdate(nn.Module):
    r"""New pair features of a layer, ``norm(e + alpha (W drop(s) + b))`` of the scores s that the attention computes.

    Args:
        dim (int): width C.
        dropout (float, optional): probability to drop an entry of s, in training only. (default: 0.0)
        norm (Module, optional): norm of the rows; a `RowBatchNorm` at its end is applied by the next layer as it reads
            them. (default: `row_norms`, a batch norm)
        update (bool, optional): False returns the pair features unchanged, without gradient. (default: True)
        rezero (bool, optional): a learned alpha, 0 at the start (ReZero, Bachlechner et al. 2021). (default: False)
    """

    def __init__(
        self,
        dim: int,
        dropout: float = 0.0,
        norm: nn.Sequential | None = None,
        *,
        update: bool = True,
        rezero: bool = False,
    ) -> None:
        super().__init__()
        self.dropout, self.update = check_dropout(dropout), update
        self.linear = nn.Linear(dim, dim)
        self.norm = row_norms(dim) if norm is None else norm
        self.alpha = nn.Parameter(torch.zeros(1, 1)) if rezero else None

    @property
    def needed(self) -> bool:
        """Whether anything reads new pair features: later layers, or running statistics of their norm."""
        return self.update or (self.training and any(isinstance(norm, RowBatchNorm) for norm in self.norm))

    def maps(self) -> tuple[Tensor, Tensor]:
        """Return the weight (C, C) and the bias (C,) of the update."""
        weight, bias = self.linear.weight, self.linear.bias
        return (weight, bias) if self.alpha is None else (self.alpha * weight, self.alpha[0] * bias)

    def forward(self, old: PairFeatures, new: Tensor | None) -> PairFeatures:
        """Return the pair features of the next layer: old (P, C), sums new (P, C) before the norm."""
        if new is None:
            return old
        new = new if self.update else new.detach()  # what nothing reads moves the statistics of the norm only
        scale = shift = None
        for norm in self.norm:
            if isinstance(norm, RowBatchNorm) and norm is self.norm[-1]:
                scale, shift = norm.affine(new)
            else:
                new = norm(new)
        return PairFeatures(new, old.index, scale, shift) if self.update else old


class GRITAttention(nn.Module):
    r"""GRIT's attention over pairs of nodes with features (Ma et al. 2023, equations 2 to 6).

    .. math::
        s_{ij} &= \mathrm{relu}(\rho((Q x_i + K x_j) \odot W_w e_{ij}) + W_b e_{ij}), \qquad
            \rho(x) = \mathrm{sign}(x) \sqrt{|x|} \\
        a_{ij} &= \mathrm{softmax}_j(\mathrm{clamp}(\langle w, s_{ij} \rangle, -5, 5)) \\
        h_i &= \textstyle\sum_j a_{ij} (V x_j + U s_{ij}), \qquad
        x_i' = O (\theta_1 \odot h_i + \log(1 + d_i) \, \theta_2 \odot h_i)

    and the `PairUpdate` of e with s, which is the state of the next layer. The first state are the context's pair
    features, and its edge features at their pairs (an edge u -> v at query v, key u). d is ``context.degree``, or the
    number of edges into a node. Only listed pairs are attended to; without a list all pairs of a graph are.

    Args:
        dim (int): channels in and out, of pairs, too.
        num_heads (int): heads; must divide dim.
        dropout (float, optional): probability to drop an attention weight, in training only. (default: 0.0)
        pairs (PairUpdate, optional): (default: ``PairUpdate(dim)``)
        clamp (float, optional): largest absolute value of a logit; None: any. (default: 5.0)
        out_dropout (float, optional): probability to drop an entry of h, in training only. (default: 0.0)

    Shapes: x (N, dim), context with pair_attr (P, dim) or none, state -> (N, dim), state; without a state (N, dim).

    Raises:
        ValueError: an argument is out of its range; when called: pair features of another width.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        pairs: PairUpdate | None = None,
        clamp: float | None = 5.0,
        out_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        dim_head = dim_per_head(dim, num_heads)
        check_least(0, **{"gt.grit.clamp": clamp})
        self.dim, self.num_heads, self.clamp = dim, num_heads, clamp
        self.dropout, self.out_dropout = check_dropout(dropout), nn.Dropout(out_dropout)
        self.query, self.edge = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(2))
        self.logit = nn.Parameter(torch.empty(dim_head, num_heads, 1))
        self.pair_value = nn.Parameter(torch.empty(dim_head, num_heads, dim_head))
        self.degree_factors = nn.Parameter(torch.empty(1, dim, 2))
        self.out = nn.Linear(dim, dim)
        self.pairs = PairUpdate(dim) if pairs is None else pairs
        for weight in (
            *(linear.weight for linear in (self.query, self.key, self.edge, self.value)),
            *(self.logit, self.pair_value, self.degree_factors),
        ):
            nn.init.xavier_normal_(weight)

    def initial_state(self, context: GraphContext) -> GRITState:
        """Return the state of the first layer."""
        degree = torch.log1p(node_degrees(context).to(self.edge.weight.dtype))
        return GRITState(first_pairs(context, self.edge.weight), degree[:, None])

    def forward(
        self, x: Tensor, context: GraphContext | Tensor | None = None, state: GRITState | None = None
    ) -> Tensor | tuple[Tensor, GRITState]:
        """Attend over pairs: x (N, dim) -> (N, dim), and the state of the next layer; without a state only x."""
        context = GraphContext.of(context, x)
        if state is None:
            return self(x, context, self.initial_state(context))[0]
        dropouts = (self.dropout, self.pairs.dropout) if self.training else (0.0, 0.0)
        attended, rows, new = grit_attention(
            self.query(x),
            self.key(x),
            self.value(x),
            state.pairs,
            context.ptr,
            self._maps(),
            PairSettings(self.num_heads, self.clamp, True, *dropouts),
            update_pairs=self.pairs.needed,
        )
        rows = torch.einsum("nhd,dhc->nhc", split_heads(rows, self.num_heads), self.pair_value)
        h = self.out_dropout(attended + rows.flatten(1))
        h = h * self.degree_factors[..., 0] + h * state.log_degree.to(h.dtype) * self.degree_factors[..., 1]
        return self.out(h), replace(state, pairs=self.pairs(state.pairs, new))

    extra_repr = describe

    def _maps(self) -> PairMaps:
        heads = (self.num_heads, 2, -1)
        edge = self.edge.weight.unflatten(0, heads).transpose(0, 1).flatten(0, 2)
        bias = self.edge.bias.view(heads).transpose(0, 1).flatten()
        return PairMaps(edge, bias, self.logit[..., 0].T.flatten(), *self.pairs.maps())


def node_degrees(context: GraphContext) -> Tensor:
    """Return the degree of each node (N,): ``context.degree``, or the number of edges into it."""
    if context.degree is not None:
        return context.degree
    count = context.batch.new_zeros(len(context.batch))
    if context.edge_index is None:
        return count
    return count.index_add(0, context.edge_index[1], torch.ones_like(context.edge_index[1]))


def first_pairs(context: GraphContext, like: Tensor) -> PairFeatures:
    """Return the pair features of a context with its edge features added at their pairs.

    Without a list they are those of all pairs, zeros where there are none. With one they are those of its pairs, of the
    edges, and of each node with itself, sorted by query and key. Edge features of another width than C are left out.

    Shapes: pair_attr (P, C), edge_attr (E, C), a weight like the model's (2C, C) -> (P', C).
    """
    dim, edges = like.size(1), context.edge_attr
    if context.pair_attr is not None and context.pair_attr.shape[1:] != (dim,):
        raise InputError(
            f"GRIT needs pair features (P, {dim}), got shape {tuple(context.pair_attr.shape)}: add RRWP to "
            "dataset.node_encoder_name, and no encoding of pairs of another width (GraphormerBias)"
        )
    if edges is not None and (edges.shape[1:] != (dim,) or not edges.is_floating_point()):
        edges = None  # raw ones, of a model without an edge encoder
    sets = [] if edges is None else [(context.edge_index.flip(0), edges.to(like.dtype))]
    if context.pair_index is not None:
        nodes = torch.arange(len(context.batch), device=like.device)
        sets += [(context.pair_index, context.pair_attr.to(like.dtype)), (nodes.expand(2, -1), like.new_zeros(1, dim))]
        return _add_pairs(sets, len(nodes))
    missing = context.pair_attr is None
    value = like.new_zeros(context.num_pairs, dim) if missing else complete_pairs(context).to(like.dtype)
    if not sets:
        return PairFeatures(value)
    index, edges = sets[0]
    return PairFeatures(value + complete_pairs(replace(context, pair_index=index, pair_attr=edges)))


def _add_pairs(sets: list[tuple[Tensor, Tensor]], num_nodes: int) -> PairFeatures:
    """Return the union of sets of pairs, sorted by query and key; features of one pair are added."""
    keys = torch.cat([query * num_nodes + key for (query, key), _ in sets])
    values = torch.cat([value.expand(index.size(1), -1) for index, value in sets])
    unique, row = keys.unique(return_inverse=True)
    index = torch.stack([unique // max(1, num_nodes), unique % max(1, num_nodes)])
    return PairFeatures(values.new_zeros(len(unique), values.size(1)).index_add(0, row, values), index)


@register("attention", "GRIT", zero_grad=("pairs.*",))  # of a single layer, whose new pair features nothing reads
def grit(
    dim: int,
    num_heads: int,
    dropout: float = 0.0,
    *,
    clamp: Annotated[float | None, optional(NOT_NEGATIVE)] = 5.0,
    update_e: bool = True,
) -> GRITAttention:
    """GRIT's attention over pairs of nodes with features (RRWP), which each layer updates."""
    return GRITAttention(dim, num_heads, dropout, pairs=PairUpdate(dim, update=update_e), clamp=clamp)
