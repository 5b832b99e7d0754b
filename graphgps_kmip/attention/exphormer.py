"""Exphormer attention (Shirzad et al. 2023): along graph edges, expander edges, and edges of virtual nodes.

As in the public code, scores are clamped and multiplied by edge features, and there is no output linear map. Also the
typed edges and sampled edges of the low-width method, and message passing along the same edges (``__exp``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from graphgps_kmip.attention.head_arguments import check_dropout, check_least, describe, dim_per_head, split_heads
from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.clamped_attention import clamped_attention
from graphgps_kmip.ops.context import GraphContext, encoded_edges, first_state
from graphgps_kmip.registry import register

logger = logging.getLogger(__name__)

EXPANDER = "expander"  # name of the edge set
FEW_COLUMNS = 8  # times as many channels at least: else their product takes about as long as that of the channels


@dataclass(frozen=True, eq=False)
class ExphormerState:
    """State that is passed from layer to layer: all edges with their features, and the virtual nodes.

    Args:
        edges (Tensor): source, target, and row of ``features``, sorted by target.
        features (Tensor): one row per real edge, one for all expander edges, two per virtual node of a graph; with a
            mixture, vectors of which the rows are sums: those of a linear encoder of few columns, and the others.
        virtual (Tensor): features of the virtual nodes; virtual node v of graph g is row ``v * B + g`` here and node
            ``N + v * B + g`` in ``edges``.

        mixture (Tensor, optional): rows are ``mixture @ features``; None: they are the features. (default: None)

    Shapes: edges (3, E), features (R, C) or (F, C), virtual (V * B, C), mixture (R, F).
    """

    edges: Tensor
    features: Tensor
    virtual: Tensor
    mixture: Tensor | None = None

    def map_rows(self, dtype: torch.dtype, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """Return the rows, or a linear map of them, (R, C)."""
        features = self.features.to(dtype)
        if self.mixture is None:
            return features if weight is None else linear(features, weight, bias)
        rows = self.mixture.to(dtype) @ (features if weight is None else linear(features, weight))
        return rows if bias is None else rows + bias


class ExphormerStart(nn.Module):
    """Make the state of the first layer: its learned vectors exist once in a model. See `ExphormerAttention`."""

    def __init__(self, dim: int, num_virt_node: int, add_edge_index: bool, use_exp_edges: bool) -> None:
        super().__init__()
        self.dim, self.num_virt_node = dim, num_virt_node
        self.add_edge_index, self.use_exp_edges = add_edge_index, use_exp_edges
        self.expander = nn.Embedding(1, dim)  # without expander edges, too, as in the public code
        self.virtual, self.to_virtual, self.from_virtual = (
            nn.Embedding(num_virt_node, dim) if num_virt_node else None for _ in range(3)
        )

    def forward(self, context: GraphContext) -> ExphormerState:
        """Return all edges, their features, and the first state of the virtual nodes."""
        nothing = self.expander.weight.new_empty(0, self.dim)  # in the model's dtype: it is concatenated with nodes
        edges, features, num_rows = [context.batch.new_empty(3, 0)], [nothing], 0
        for edge_index, row, rows_of_set in self._sets(context):
            edges.append(torch.cat([edge_index, row[None] + num_rows]))
            features.append(rows_of_set)
            num_rows += len(rows_of_set)
        virtual = self.virtual.weight.repeat_interleave(context.num_graphs, 0) if self.num_virt_node else nothing
        edges, mixture = torch.cat(edges, 1), None
        encoder, columns = getattr(features[:2][-1], "linear_columns", (None, None))  # real edges are the first set
        if encoder is not None and FEW_COLUMNS * columns.size(1) <= self.dim:
            columns = torch.cat([columns, columns.new_ones(len(columns), 1)], 1)  # the last one for the bias
            others = torch.cat(features[2:] or [nothing])
            features = [encoder.weight.T, encoder.bias[None], others]
            mixture = torch.block_diag(columns, torch.eye(len(others), dtype=columns.dtype, device=columns.device))
        return ExphormerState(edges[:, edges[1].argsort(stable=True)], torch.cat(features), virtual, mixture)

    def _sets(self, context: GraphContext) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield edge_index (2, E), row of each edge among the set's features (E,), and these features (R, C)."""
        if self.add_edge_index and context.edge_index is not None:
            encoded = encoded_edges("Exphormer", context, self.dim, ", or prep.add_edge_index False")
            yield context.edge_index, torch.arange(len(encoded), device=encoded.device), encoded
        if self.use_exp_edges:
            nothing = context.batch.new_empty(2, 0)
            edge_index, _ = context.edge_sets.get(EXPANDER, (nothing, None))
            yield edge_index, edge_index.new_zeros(edge_index.size(1)), self.expander.weight
        if self.num_virt_node:
            number = torch.arange(self.num_virt_node, device=context.batch.device).repeat_interleave(len(context.batch))
            node = torch.arange(len(context.batch), device=number.device).repeat(self.num_virt_node)  # (V * N,)
            virtual = len(context.batch) + number * context.num_graphs + context.batch[node]
            yield torch.stack([node, virtual]), number, self.to_virtual.weight
            yield torch.stack([virtual, node]), number, self.from_virtual.weight


@register("attention", "Exphormer", dropout="sparse_attn_dropout")
class ExphormerAttention(nn.Module):
    r"""Multi-head attention along graph edges, expander edges, and edges between nodes and virtual nodes.

    .. math::
        s_{ij} &= \exp(\mathrm{clamp}(\textstyle\sum_d (Q x_i) (K x_j) (E e_{ij}) / \sqrt{D}, -5, 5)) \\
        x_i' &= \textstyle\sum_j s_{ij} V x_j / (\sum_j s_{ij} + 10^{-6})

    All expander edges share one learned vector; each virtual node has one for its edges from the nodes, and one for its
    edges to them. A virtual node starts as a learned vector, the same in all graphs. All layers use the edge features
    of the first one. Parameters that exist once for all layers are in ``initial_state``: a stack keeps the first one's.

    Args:
        dim (int): channels in and out, of edge features too.
        num_heads (int): heads; must divide dim.
        dropout (float, optional): probability to drop an attention weight, in training only. (default: 0.0)
        num_virt_node (int, optional): virtual nodes per graph, the config's ``prep.num_virt_node``. (default: 0)
        add_edge_index (bool, optional): attend along the graph's edges, ``prep.add_edge_index``. (default: True)
        use_exp_edges (bool, optional): attend along the edge set ``expander``, if any. (default: True)
        use_bias (bool, optional): the four linear maps have biases. (default: False)

    Shapes: x (N, dim), context, state -> (N, dim), state; without a state (N, dim). A node without edges gets zeros.

    Raises:
        ValueError: an argument is out of its range, or no kind of edges is left.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        num_virt_node: int = 0,
        add_edge_index: bool = True,
        use_exp_edges: bool = True,
        use_bias: bool = False,
    ) -> None:
        super().__init__()
        dim_per_head(dim, num_heads)
        check_least(0, **{"prep.num_virt_node": num_virt_node})
        if not (num_virt_node or add_edge_index or use_exp_edges):
            raise InputError(
                "Exphormer has no edges to attend along: set prep.add_edge_index or prep.use_exp_edges True, or "
                "prep.num_virt_node to 1 or more"
            )
        self.dim, self.num_heads, self.use_bias = dim, num_heads, use_bias
        self.num_virt_node, self.add_edge_index, self.use_exp_edges = num_virt_node, add_edge_index, use_exp_edges
        self.dropout = check_dropout(dropout)
        self.query, self.key, self.value, self.edge = (nn.Linear(dim, dim, bias=use_bias) for _ in range(4))
        self.initial_state = ExphormerStart(dim, num_virt_node, add_edge_index, use_exp_edges)

    def forward(
        self, x: Tensor, context: GraphContext | Tensor | None = None, state: ExphormerState | None = None
    ) -> Tensor | tuple[Tensor, ExphormerState]:
        """Attend on the edges of the state, or of the context: x (N, dim) -> (N, dim), with a state the next, too."""
        context = GraphContext.of(context, x)
        if state is None:
            state = first_state(self, context)
            if len(x) and not state.edges.size(1):
                logger.warning(
                    "Exphormer attention has no edge to attend along and returns zeros: give a GraphContext with "
                    "edge_index and edge_attr, or with the edge set 'expander', or num_virt_node of 1 or more"
                )
            return self(x, context, state)[0]
        nodes = torch.cat([x, state.virtual])  # (M, C)
        q, k, v = (split_heads(linear(nodes), self.num_heads) for linear in (self.query, self.key, self.value))
        e = split_heads(state.map_rows(x.dtype, self.edge.weight, self.edge.bias), self.num_heads)
        out = clamped_attention(q, k, v, e, state.edges, self.dropout if self.training else 0.0).flatten(1)
        return out[: len(x)], replace(state, virtual=out[len(x) :])

    extra_repr = describe


class ExpanderMessages(nn.Module):
    """Message passing along graph edges and expander edges, called like an attention with a state.

    All expander edges share one learned vector. New edge features are the state of the next layer of this branch.

    Args:
        conv (Module): ``(x, edge_index, edge_attr) -> (x, edge_attr)``, without a residual of nodes inside.
        dim (int): width C of nodes and edges.
        dropout (float, optional): probability to drop the update of an edge feature, in training. (default: 0.0)
        add_edge_index (bool, optional): use the graph's edges, ``prep.add_edge_index``. (default: True)
        use_exp_edges (bool, optional): use the edge set ``expander``, if any. (default: True)

    Shapes: x (N, C), context, state -> (N, C), state.

    Raises:
        ValueError: no kind of edges is left.
    """

    def __init__(
        self,
        conv: nn.Module,
        dim: int,
        dropout: float = 0.0,
        *,
        add_edge_index: bool = True,
        use_exp_edges: bool = True,
    ) -> None:
        super().__init__()
        if not (add_edge_index or use_exp_edges):
            raise InputError("a branch __exp has no edges: set prep.add_edge_index or prep.use_exp_edges True")
        self.conv, self.dropout = conv, nn.Dropout(dropout)
        self.initial_state = ExphormerStart(dim, 0, add_edge_index, use_exp_edges)

    def forward(self, x: Tensor, context: GraphContext, state: ExphormerState) -> tuple[Tensor, ExphormerState]:
        """Return new node features, and the state with the new edge features."""
        edge_index, row = state.edges[:2], state.edges[2]
        old = state.map_rows(x.dtype)[row]  # (E, C)
        encoding = () if getattr(self.conv, "gate", None) is None else (context.encoding,)
        x, new = self.conv(x, edge_index, old, *encoding)
        if new is old:
            return x, state
        edges = torch.cat([edge_index, torch.arange(len(new), device=new.device)[None]])
        return x, replace(state, edges=edges, features=old + self.dropout(new - old), mixture=None)


GRAPH_EDGE, EXPANDER_EDGE, SELF_LOOP = 0, 1, 2
KINDS = ("graph", "expander", "self loop")  # by number


def typed_edges(context: GraphContext, self_loops: bool = True) -> Tensor:
    """Return source, target and kind of every edge of the attention graph, sorted by target: (3, E), int64.

    Edges of the graph, those of the edge set ``expander``, and a self loop of each node, in this order at a target. A
    pair that is an edge of the graph and of the expander counts twice, as does a self loop of the graph.

    Args:
        context (GraphContext): the graphs of a batch.
        self_loops (bool, optional): False leaves out the self loops, but those of the graph. (default: True)
    """
    nothing = context.batch.new_empty(2, 0)
    num_loops = len(context.batch) if self_loops else 0
    loops = torch.arange(num_loops, device=context.batch.device).expand(2, -1)
    expander, _ = context.edge_sets.get(EXPANDER, (nothing, None))
    sets = (nothing if context.edge_index is None else context.edge_index, expander, loops)  # in order of their kinds
    device, count = context.batch.device, sum(edge_index.size(1) for edge_index in sets)
    edges = context.batch.new_empty(3, count)
    narrow = torch.int32 if len(context.batch) < 2**31 else torch.int64  # sorts in half the time and memory
    target, order = torch.cat([edge_index[1].to(narrow) for edge_index in sets]).sort(stable=True)
    edges[1] = target  # neighbouring targets are neighbours in memory
    del target
    scalars = (torch.full((), kind, dtype=torch.uint8, device=device) for kind in range(len(sets)))
    kinds = torch.cat([kind.expand(edge_index.size(1)) for kind, edge_index in zip(scalars, sets, strict=True)])
    edges[2] = kinds[order]
    edges[0] = torch.cat([edge_index[0].to(narrow) for edge_index in sets])[order]
    return edges


class TypedEdgeStart(nn.Module):
    """Make the state of the first layer, without virtual nodes: `typed_edges`, and one learned vector for each kind."""

    def __init__(self, dim: int, self_loops: bool = True) -> None:
        super().__init__()
        self.self_loops = self_loops
        self.types = nn.Embedding(len(KINDS), dim)

    def forward(self, context: GraphContext) -> ExphormerState:
        """Return the edges of the attention graph and the vectors of their kinds."""
        types = self.types.weight
        return ExphormerState(typed_edges(context, self.self_loops), types, types.new_empty(0, types.size(1)))


LARGEST_SAMPLED_LOGIT = 8.0  # of the public code of the low-width method


class SampledEdgeAttention(nn.Module):
    r"""Multi-head attention from the nodes of one layer to those of the next, along edges drawn for this layer.

    .. math::
        z_{ij} = \textstyle\sum_d (E_1 t_r)_d (k_j)_d (q_i)_d + (E_2 t_r)_h, \qquad
        o_i = \textstyle\sum_j \mathrm{softmax}_j(\mathrm{clamp}(z_{ij}, -8, 8)) v_j

    for a sampled edge j -> i of kind r (Shirzad et al., stage 2). As in the public code, there is no factor
    :math:`1 / \sqrt{D}` and no output map. An edge that was drawn twice counts twice; a target without edges gets
    zeros. The network `SpexphormerModel` calls it, and no ``gt.layer_type`` does.

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
        self.dim, self.num_heads = dim, num_heads
        self.query, self.key, self.value, self.edge = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.edge_bias = nn.Linear(dim, num_heads)

    def forward(self, x: Tensor, edges: Tensor, num_targets: int, types: Tensor) -> Tensor:
        """Attend along the edges."""
        types = types.to(x.dtype)
        pairs = ((self.query, x[:num_targets]), (self.key, x), (self.value, x), (self.edge, types))
        q, k, v, e = (split_heads(linear(rows), self.num_heads) for linear, rows in pairs)
        return self.attend(q, k, v, e, self.edge_bias(types), edges).flatten(1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, e: Tensor, bias: Tensor, edges: Tensor) -> Tensor:
        """Return the output of each head; arguments and shapes as of `clamped_attention`."""
        return clamped_attention(q, k, v, e, edges, bias=bias, limit=LARGEST_SAMPLED_LOGIT, eps=0.0, scale=1.0)

    extra_repr = describe
