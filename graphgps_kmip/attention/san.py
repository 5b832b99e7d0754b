"""SAN attention (Kreuzer et al. 2021, section 3.3): along edges, and with a smaller weight between unconnected pairs.

The mathematics is that of GraphGPS. Differs in memory: attention between pairs without an edge is a masked matrix
product; many pairs are computed in chunks of queries, and again in the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from graphgps_kmip.attention.head_arguments import check_dropout, check_least, describe, dim_per_head, split_heads
from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.clamped_attention import EPS, LARGEST_LOGIT
from graphgps_kmip.ops.context import GraphContext, edge_softmax, encoded_edges, first_state
from graphgps_kmip.ops.dense import from_padded, to_padded

# Weights (pairs times heads) at once; they have some five temporaries: 80 MB of float32, on a GPU 1.3 GB.
LARGEST = {"cpu": 2**22}
LARGEST_ELSEWHERE = 2**26


def between_unlinked(q: Tensor, k: Tensor, v: Tensor, context: GraphContext, softmax: bool) -> Tensor:
    r"""Sum values over the other nodes of each node's graph from which no edge leads to it, weighted by scores.

    .. math:: o_i = \sum_{j \not\to i} w_{ij} v_j, \qquad
        w_{ij} = \exp(\mathrm{clamp}(\langle q_i, k_j \rangle / \sqrt{D}, -5, 5))

    or the softmax of these scores over j, without the clamp. A node with an edge from every other one gets 0. Memory is
    that of `LARGEST` weights at most.

    Shapes: q, k (N, H, D), v (N, H, C); returns (N, H, C). Gradients flow to q, k and v.
    """
    if not len(q):
        return v
    nodes = (q / math.sqrt(q.size(-1)), k, v)
    q, k, v = (to_padded(x.flatten(1), context)[0].unflatten(2, x.shape[1:]).transpose(1, 2) for x in nodes)
    max_nodes = q.size(2)  # q, k (B, H, Nmax, D), v (B, H, Nmax, C)
    rows = max(1, LARGEST.get(q.device.type, LARGEST_ELSEWHERE) // (q.size(0) * q.size(1) * max_nodes))
    at_once = rows >= max_nodes
    attend = _attend if at_once else partial(checkpoint, _attend, use_reentrant=False, preserve_rng_state=False)
    parts = [attend(q[:, :, i : i + rows], k, v, context, i, softmax) for i in range(0, max_nodes, rows)]
    sums = torch.cat(parts, dim=2).transpose(1, 2)  # (B, Nmax, H, C)
    return from_padded(sums.flatten(2), context).unflatten(1, sums.shape[2:])


def _attend(q: Tensor, k: Tensor, v: Tensor, context: GraphContext, start: int, softmax: bool) -> Tensor:
    """Return the sums for R nodes of each graph, from its ``start``-th on: q (B, H, R, D) -> (B, H, R, C)."""
    score = (q @ k.mT).to(torch.promote_types(v.dtype, torch.float32))  # (B, H, R, Nmax)
    unlinked = _unlinked(context, start, q.size(2))[:, None]  # (B, 1, R, Nmax)
    if softmax:  # a finite number, not -inf: a row without any pair would turn into NaN
        weight = score.masked_fill(~unlinked, torch.finfo(score.dtype).min).softmax(-1)
    else:
        weight = score.clamp(-LARGEST_LOGIT, LARGEST_LOGIT).exp()
    return weight.masked_fill(~unlinked, 0.0) @ v.to(score.dtype)


def _unlinked(context: GraphContext, start: int, rows: int) -> Tensor:
    """Mark pairs without an edge, for targets ``start`` to ``start + rows``: (B, rows, Nmax), False for padding."""
    target = torch.arange(start, start + rows, device=context.ptr.device)
    source = torch.arange(context.max_nodes, device=context.ptr.device)
    unlinked = (source < context.sizes[:, None, None]) & (source != target[:, None])
    if context.edge_index is not None:
        graph = context.batch[context.edge_index[0]]
        source, target = context.edge_index - context.ptr[graph]  # within their graph
        inside = (target >= start) & (target < start + rows)
        unlinked[graph[inside], target[inside] - start, source[inside]] = False
    return unlinked


ALL_PAIRS, NO_PAIRS = "full_graph", "none"


class SANStart(nn.Module):
    """The learned feature (1, C) that all pairs without an edge share; (0, C) where such pairs are not used."""

    def __init__(self, dim: int, fake: bool) -> None:
        super().__init__()
        self.feature = nn.Embedding(int(fake), dim)

    def forward(self, context: GraphContext) -> Tensor:  # noqa: ARG002 (one signature for all states)
        """Return the feature."""
        return self.feature.weight


class SANAttention(nn.Module):
    r"""Multi-head attention along edges and, with queries and keys of its own, between pairs that have no edge.

    .. math::
        s_{ij} &= \exp(\mathrm{clamp}(\textstyle\sum_d (Q x_i) (K x_j) (E e_{ij}) / \sqrt{D}, -5, 5)) \\
        x_i' &= O \, \mathrm{drop} \frac{\sum_{j \to i} s_{ij} V x_j + \gamma \sum_{j \not\to i} s'_{ij} V x_j}
            {\sum_{j \to i} s_{ij} + \gamma \sum_{j \not\to i} s'_{ij} + (1 + \gamma) 10^{-6}}

    The second sums are over the other nodes of the graph from which no edge leads to i, never i itself, with weights
    s' of further maps Q', K', E' and one learned feature for all such pairs. An edge counts as often as it is listed, a
    listed loop too. ``separate`` (GraphGPS's SAN2) has no clamp, a softmax for the edges into i and another for
    the other pairs, and the mean of the two with weights 1 and a learned :math:`\gamma`, over :math:`1 + \gamma`.

    Costs sum_g N_g^2 * dim with padding to the largest graph.

    Args:
        dim (int): channels in and out, of edge features too.
        num_heads (int): heads; must divide dim.
        dropout (float, optional): probability to drop an entry of the heads' output, in training only. (default: 0.0)
        gamma (float, optional): weight of a pair without an edge relative to an edge; ``separate`` learns it instead,
            from 0.5. (default: 1e-05)
        secondary_edges (str, optional): pairs besides the edges: "full_graph" as above, "none", or the name of an edge
            set. (default: "full_graph")
        separate (bool, optional): two softmaxes (GraphGPS's SAN2). (default: False)

    Shapes: x (N, dim), context with edge_attr (E, dim), state -> (N, dim), the same state; without a state (N, dim).

    Raises:
        ValueError: an argument is out of its range; when called: edges have no features of width dim, or there is no
            edge set of that name.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        gamma: float = 1e-5,
        secondary_edges: str = ALL_PAIRS,
        separate: bool = False,
    ) -> None:
        super().__init__()
        dim_per_head(dim, num_heads)
        check_least(0, gamma=gamma)
        self.dim, self.num_heads = dim, num_heads
        self.secondary_edges, self.separate = secondary_edges, separate
        fake = secondary_edges != NO_PAIRS
        self.query, self.key, self.edge, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.fake_query, self.fake_key, self.fake_edge = (
            nn.Linear(dim, dim, bias=False) if fake else None for _ in range(3)
        )
        self.gamma = nn.Parameter(torch.tensor(0.5)) if separate else gamma  # even without such pairs, as in GraphGPS
        self.dropout, self.out = nn.Dropout(check_dropout(dropout)), nn.Linear(dim, dim)
        self.initial_state = SANStart(dim, fake)

    def forward(
        self, x: Tensor, context: GraphContext | Tensor | None = None, state: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend inside each graph: x (N, dim) -> (N, dim), and the state as it is; without a state only x."""
        context = GraphContext.of(context, x)
        if state is None:
            return self(x, context, first_state(self, context))[0]
        v = split_heads(self.value(x), self.num_heads)
        v = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)  # (N, H, D + 1): the last one sums the weights
        sums, share = self._edges(x, v, context), 1.0
        if self.secondary_edges != NO_PAIRS:
            sums = sums + self.gamma * self._secondary(x, v, context, state)
            share = 1.0 + self.gamma
        mean = sums[..., :-1] / (share if self.separate else sums[..., -1:] + share * EPS)
        return self.out(self.dropout(mean.flatten(1).to(v.dtype))), state

    extra_repr = describe

    def _edges(self, x: Tensor, v: Tensor, context: GraphContext) -> Tensor:
        if context.edge_index is None:
            return torch.zeros_like(v)
        edge_attr = encoded_edges("SAN", context, self.dim)
        q, k, e = self._heads((self.query, x), (self.key, x), (self.edge, edge_attr))
        return along_edges(q, k, v, e, context.edge_index, self.separate)

    def _secondary(self, x: Tensor, v: Tensor, context: GraphContext, state: Tensor) -> Tensor:
        q, k, e = self._heads((self.fake_query, x), (self.fake_key, x), (self.fake_edge, state))
        if self.secondary_edges == ALL_PAIRS:
            return between_unlinked(q * e, k, v, context, self.separate)
        if self.secondary_edges not in context.edge_sets:
            raise InputError(
                f"secondary_edges {self.secondary_edges!r}: the data has no such edges: choose one of "
                f"{', '.join([ALL_PAIRS, NO_PAIRS, *context.edge_sets])} (prep.exp True makes those called expander)"
            )
        return along_edges(q, k, v, e, context.edge_sets[self.secondary_edges][0], self.separate)

    def _heads(self, *pairs: tuple[nn.Linear, Tensor]) -> Iterator[Tensor]:
        return (split_heads(linear(x), self.num_heads) for linear, x in pairs)  # each (N, H, D)


def along_edges(q: Tensor, k: Tensor, v: Tensor, e: Tensor, edge_index: Tensor, softmax: bool) -> Tensor:
    """Sum values over the edges into each node, weighted by clamped exponentials of scores or by a softmax of them.

    Half-precision inputs are computed in float32. Gradients flow to all but the edges.

    Shapes: q, k (N, H, D), v (N, H, C), e (E, H, D) or (1, H, D), edge_index (2, E); returns (N, H, C).
    """
    source, target = edge_index
    wide = torch.promote_types(v.dtype, torch.float32)
    score = (q[target].to(wide) * k[source] * e).sum(-1) / math.sqrt(q.size(-1))  # (E, H)
    weight = edge_softmax(score, target, len(v)) if softmax else score.clamp(-LARGEST_LOGIT, LARGEST_LOGIT).exp()
    message = weight[..., None] * v[source]
    return message.new_zeros(v.shape).index_add(0, target, message)
