"""GraphContext: the graphs of a mini-batch as attentions get them.

Contract of every attention: ``attention(x, context) -> (N, C)`` on the flat nodes of a mini-batch, sorted by graph;
``context`` may also be a batch vector, or None (one graph): `GraphContext.of` takes each. Optional:

* ``initial_state(context)`` of an attention that carries something from layer to layer, which is then called
  ``attention(x, context, state) -> (x, state)``. It may be a module: the stack keeps the first layer's. Called without
  a state, the attention makes one and returns only x.
* ``attention_graph(x, context) -> AttentionGraph``: the learned graph; `collect_attention` gets those of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.circular_convolution import SizeGroups
from graphgps_kmip.ops.host_copies import host_copy, single_graph

EDGE_SET_SUFFIX = "_edge_index"
UNSORTED = (
    "the batch vector must be non-decreasing and start at 0 or above, got an unsorted or negative one: "
    "sort the nodes by graph (order = batch.argsort(stable=True); x[order], batch[order])"
)
_SIZES = ("sizes", "host_sizes", "max_nodes", "min_nodes", "pair_ptr", "num_pairs", "size_groups", "_ptr_is_checked")


@dataclass(frozen=True, eq=False)
class GraphContext:
    """The graphs of one mini-batch: B graphs with N nodes in all, sorted by graph.

    Args:
        batch (Tensor): graph of each node, non-decreasing.
        ptr (Tensor): first node of each graph, and N at the end; a graph may have no node.
        edge_index (Tensor, optional): edges (source, target) in global node ids. (default: None)
        edge_attr (Tensor, optional): edge features. (default: None)
        edge_sets (Mapping, optional): further edge sets: name -> (edge_index, edge_attr or None). (default: {})
        pair_index (Tensor, optional): pairs (query, key) in global node ids; None: `all_pairs`. (default: None)
        pair_attr (Tensor, optional): features of those pairs. (default: None)
        rrwp (Tensor, optional): relative random walk probabilities of the pairs rrwp_index. (default: None)
        rrwp_index (Tensor, optional): the pairs (query, key) of rrwp; None: `all_pairs`. (default: None)
        progress (float, optional): training progress in [0, 1], see `progress_in`. (default: None)
        epoch (int, optional): epoch of the training, from 0; None outside of a training. (default: None)
        encoding (Tensor, optional): EquivStableLapPE, which some message passing layers read. (default: None)
        degree (Tensor, optional): degree of each node as RRWP counts it. (default: None)

    Shapes:
        batch (N,), ptr (B+1,), edge_index (2, E), edge_attr (E, C), pair_index (2, P), pair_attr (P, C),
        rrwp (sum of n^2, K) or, with rrwp_index (2, R), (R, K), encoding (N, C), degree (N,).
    """

    batch: Tensor
    ptr: Tensor
    edge_index: Tensor | None = None
    edge_attr: Tensor | None = None
    edge_sets: Mapping[str, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    pair_index: Tensor | None = None
    pair_attr: Tensor | None = None
    rrwp: Tensor | None = None
    rrwp_index: Tensor | None = None
    progress: float | None = None
    epoch: int | None = None
    encoding: Tensor | None = None
    degree: Tensor | None = None

    @property
    def num_graphs(self) -> int:
        """Number of graphs B, those without nodes included."""
        return self.ptr.numel() - 1

    @cached_property
    def sizes(self) -> Tensor:
        """Number of nodes of each graph, (B,)."""
        return self.ptr.diff()

    @cached_property
    def host_sizes(self) -> Tensor:
        """`sizes` on the CPU, (B,); read from the device, once, if the host does not know them (`host_copies`)."""
        return host_copy(self.ptr).diff()

    @cached_property
    def max_nodes(self) -> int:
        """Number of nodes of the largest graph (0 without graphs)."""
        return int(self.host_sizes.max()) if self.num_graphs else 0

    @cached_property
    def min_nodes(self) -> int:
        """Number of nodes of the smallest graph (0 without graphs)."""
        return int(self.host_sizes.min()) if self.num_graphs else 0

    @cached_property
    def pair_ptr(self) -> Tensor:
        """First pair of each graph among all pairs of all graphs, and their number at the end, (B+1,)."""
        return torch.cat([self.ptr.new_zeros(1), self.sizes.square().cumsum(0)])

    @cached_property
    def num_pairs(self) -> int:
        """Number of pairs of nodes inside graphs, sum of n^2."""
        return int(self.host_sizes.square().sum())

    @cached_property
    def size_groups(self) -> SizeGroups:
        """The graphs by size, for convolutions along their nodes."""
        return SizeGroups.of(self.ptr)

    def progress_in(self, training: bool) -> float:
        """Return the training progress; if unset, 0 in training mode and 1, the end of schedules, in eval mode."""
        if self.progress is None:
            return 0.0 if training else 1.0
        return self.progress

    @cached_property
    def _ptr_is_checked(self) -> bool:
        check_bounds(host_copy(self.ptr).tolist(), len(self.batch))
        return True

    def check_ptr(self) -> None:
        """Refuse boundaries that are not those of the nodes, before compiled code reads by them."""
        _ = self._ptr_is_checked

    def with_edge_attr(self, edge_attr: Tensor | None) -> GraphContext:
        """Return the same graphs with other edge features."""
        return self.with_edges(self.edge_index, edge_attr)

    def with_edges(self, edge_index: Tensor | None, edge_attr: Tensor | None) -> GraphContext:
        """Return the same nodes with other edges and edge features; sizes read from the device are not read again."""
        new = replace(self, edge_index=edge_index, edge_attr=edge_attr)
        new.__dict__.update({name: self.__dict__[name] for name in _SIZES if name in self.__dict__})
        return new

    @classmethod
    def of(cls, context_or_batch: GraphContext | Tensor | None, x: Tensor) -> GraphContext:
        """Make a context from any form that a caller may pass; a context is returned as it is.

        Args:
            context_or_batch (GraphContext or Tensor or None): or the graph of each node (N,); None: one graph.
            x (Tensor): node features (N, C), for the number of nodes and the device.

        Raises:
            ValueError: the batch vector is unsorted, negative, not integral, or not as long as x.
        """
        if isinstance(context_or_batch, GraphContext):
            _check_length(context_or_batch.batch, x)
            return context_or_batch
        if context_or_batch is None:
            batch = torch.zeros(x.size(0), dtype=torch.long, device=x.device)
            return cls(batch, single_graph(x.size(0), x.device))
        _check_length(context_or_batch, x)
        return cls(*_find_graphs(context_or_batch))

    @classmethod
    def from_data(cls, data: Any) -> GraphContext:
        """Make a context from a torch_geometric ``Batch`` or ``Data``.

        Every attribute ``<name>_edge_index`` becomes the edge set ``<name>``, with ``<name>_edge_attr`` where there is
        one; ``pair_index``, ``pair_attr``, ``rrwp``, ``rrwp_index``, ``progress`` and ``epoch`` are optional.
        """
        batch, ptr = getattr(data, "batch", None), getattr(data, "ptr", None)
        names = ("edge_index", "edge_attr", "pair_index", "pair_attr", "rrwp", "rrwp_index", "progress", "epoch")
        parts = {name: getattr(data, name, None) for name in names}
        if batch is None:
            device = data.x.device if getattr(data, "x", None) is not None else data.edge_index.device
            batch = torch.zeros(data.num_nodes, dtype=torch.long, device=device)
            ptr = single_graph(data.num_nodes, device)
        elif ptr is None:
            batch, ptr = _find_graphs(batch)
        for name, kind in (("progress", float), ("epoch", int)):
            parts[name] = None if parts[name] is None else kind(parts[name])
        parts["encoding"] = getattr(data, "pe_EquivStableLapPE", None)
        parts["degree"] = getattr(data, "rrwp_degree", None)
        return cls(batch, ptr, edge_sets=_edge_sets(data), **parts)


def check_bounds(bounds: list[int], num_nodes: int) -> None:
    """Raise a ValueError for boundaries of graphs that do not increase from 0 to the number of nodes."""
    if bounds[:1] != [0] or bounds[-1] != num_nodes or bounds != sorted(bounds):
        raise ValueError(
            f"ptr must increase from 0 to {num_nodes}, the number of nodes, got {bounds[:10]}: "
            "give the first node of each graph, and the number of nodes at the end"
        )


def _edge_sets(data: Any) -> dict[str, tuple[Tensor, Tensor | None]]:
    names = [key.removesuffix(EDGE_SET_SUFFIX) for key in data.keys() if key.endswith(EDGE_SET_SUFFIX)]  # noqa: SIM118
    return {name: (data[name + EDGE_SET_SUFFIX], getattr(data, f"{name}_edge_attr", None)) for name in names}


def _find_graphs(batch: Tensor) -> tuple[Tensor, Tensor]:
    """Return the graph of each node (N,) and the first node of each graph (B+1,).

    In a traced program no size may depend on values: B is N, and the last graphs have no node.
    """
    if batch.dim() != 1 or batch.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"the batch vector must be (N,) of int64, got shape {tuple(batch.shape)} of {batch.dtype}: "
            "give the graph number of each node"
        )
    if not is_compiling():
        if batch.numel() and (bool((batch[1:] < batch[:-1]).any()) or int(batch[0]) < 0):
            raise ValueError(UNSORTED)
        ptr = torch.bincount(batch).cumsum(0)
        return batch.long(), torch.cat([ptr.new_zeros(1), ptr])
    torch._assert_async((batch[1:] >= batch[:-1]).all(), UNSORTED)
    number = torch.cat([batch.new_zeros(batch[:1].shape), (batch[1:] != batch[:-1]).long()]).cumsum(0)
    return number, torch.searchsorted(number, torch.arange(batch.size(0) + 1, device=batch.device))


def _check_length(batch: Tensor, x: Tensor) -> None:
    if batch.size(0) != x.size(0):
        raise ValueError(f"x has {x.size(0)} nodes but the batch vector has {batch.size(0)}: give one entry per node")


def complete_pairs(context: GraphContext) -> Tensor:
    """Return the features of all pairs inside graphs, in the order of `all_pairs`.

    Pairs that are not in ``context.pair_index`` have zeros, those of a pair that is given twice are added.

    Shapes: pair_attr (P, C) -> (sum of n^2, C).
    """
    attr, index = context.pair_attr, context.pair_index
    if attr is None:
        raise InputError("this attention reads features of pairs of nodes, and the data has none: set pair_attr")
    rows = context.num_pairs if index is None else index.size(1)
    if len(attr) != rows:
        raise InputError(f"pair_attr has {len(attr)} rows for {rows} pairs: give one row for each pair")
    if index is None:
        return attr
    return attr.new_zeros(context.num_pairs, *attr.shape[1:]).index_add(0, pair_rows(context.ptr, *index), attr)


def first_state(attention: nn.Module, context: GraphContext) -> Any:
    """Return the first state of an attention that is called outside a stack of layers, which threads the state."""
    if not hasattr(attention, "initial_state"):
        raise InputError(
            f"{type(attention).__name__} is a later layer of a stack, whose first layer makes the state: pass the "
            "one that the layer before returned, as attention(x, context, state)"
        )
    return attention.initial_state(context)


@dataclass(frozen=True, eq=False)
class AttentionGraph:
    """One directed weighted graph per head: an edge from key ``index[h, n, j]`` to query n with ``weight[h, n, j]``."""

    index: Tensor  # (H, N, K) global node id of the key, -1 in a missing slot
    weight: Tensor  # (H, N, K) attention weight, 0 in a missing slot; the weights of a query sum to 1

    def out_degree(self) -> Tensor:
        """Number of queries that select each node as a key, (H, N) int64 (thesis, section on attention graphs)."""
        degree = self.index.new_zeros(self.index.shape[:2])
        selected = (self.index >= 0).long().flatten(1)
        return degree.scatter_add_(1, self.index.clamp(min=0).flatten(1), selected)


@torch.no_grad()
def collect_attention(model: nn.Module, batch: Any) -> list[AttentionGraph]:
    """Run the model once in eval mode and return the attention graph of each layer that has one, in order of use.

    Args:
        model (Module): any module; ``attention_graph`` of its layers is called with the arguments of their forward.
        batch (object): input of the model; cloned first if it can be (models write into it).
    """
    graphs: list[AttentionGraph] = []

    def record(module: nn.Module, args: tuple, kwargs: dict) -> None:
        graphs.append(module.attention_graph(*args, **kwargs))

    training = {module: module.training for module in model.modules()}
    layers = [module for module in training if callable(getattr(module, "attention_graph", None))]
    hooks = [module.register_forward_pre_hook(record, with_kwargs=True) for module in layers]
    try:
        model.eval()(batch.clone() if hasattr(batch, "clone") else batch)
    finally:
        for hook in hooks:
            hook.remove()
        for module, flag in training.items():
            module.training = flag
    return graphs


def first_nodes(batch: Any) -> Tensor:
    """Return the first node of each graph, and the number of nodes at the end; a `Data` that is no batch is one graph.

    Shapes: (B + 1,).
    """
    return batch.ptr if "ptr" in batch else single_graph(batch.num_nodes, batch.x.device)


def all_pairs(ptr: Tensor) -> Tensor:
    """Return all pairs (query, key) of nodes of the same graph: graph by graph, query by query, in global node ids.

    Shapes: ptr (B+1,) of graphs of n nodes -> (2, sum of n^2).
    """
    sizes = ptr.diff()
    squares = sizes.square()
    number = int(host_copy(ptr).diff().square().sum())
    first, size, start = (
        values.repeat_interleave(squares, output_size=number)
        for values in (squares.cumsum(0) - squares, sizes, ptr[:-1])  # of each pair's graph
    )
    place = torch.arange(number, device=first.device) - first
    return torch.stack([start + place // size, start + place % size])


def pair_rows(ptr: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return the row of each pair in the order of `all_pairs`; query and key are nodes of the same graph.

    Shapes: ptr (B+1,), query and key (M,) -> (M,).
    """
    sizes = ptr.diff()
    graph = torch.searchsorted(ptr, query.contiguous(), right=True) - 1
    first = sizes.square().cumsum(0) - sizes.square()
    return first[graph] + (query - ptr[graph]) * sizes[graph] + key - ptr[graph]


def rows_in_list(index: Tensor, query: Tensor, key: Tensor, num_nodes: int) -> Tensor:
    """Return the row of each pair in a list in increasing order of queries and then keys; -1: it is not in the list.

    Shapes: index (2, P), query and key (M,) -> (M,).
    """
    list_keys, pair_keys = index[0] * num_nodes + index[1], query * num_nodes + key
    if not len(list_keys):
        return torch.full_like(pair_keys, -1)
    row = torch.searchsorted(list_keys, pair_keys).clamp(max=len(list_keys) - 1)
    return torch.where(list_keys[row] == pair_keys, row, -1)


def edge_softmax(score: Tensor, target: Tensor, num_targets: int) -> Tensor:
    """Normalise scores over the edges into each target; all -inf gives weights 0.

    Shapes: score (E, H), target (E,); returns (E, H). Gradients flow to score.
    """
    constant = score.detach()  # a softmax does not depend on what is subtracted
    top = constant.new_full((num_targets, score.size(1)), -torch.inf)
    top = top.scatter_reduce(0, target[:, None].expand_as(score), constant, "amax")
    top = top.masked_fill(top == -torch.inf, 0.0)
    unnormalised = torch.exp(score - top[target])
    total = unnormalised.new_zeros(top.shape).index_add(0, target, unnormalised)
    return unnormalised / total.masked_fill(total == 0, 1.0)[target]


def encoded_edges(layer: str, context: GraphContext, dim: int, otherwise: str = "") -> Tensor:
    """Return the edge features (E, dim) of a context; the error names the attention and, `otherwise`, another fix."""
    edge_attr = context.edge_attr
    if edge_attr is None or edge_attr.shape[1:] != (dim,):
        features = "no edge features" if edge_attr is None else f"shape {tuple(edge_attr.shape)}"
        raise InputError(
            f"{layer} needs encoded edge features (E, {dim}), got {features}: set dataset.edge_encoder True and "
            f"dataset.edge_encoder_name DummyEdge (one learned vector){otherwise}"
        )
    return edge_attr
