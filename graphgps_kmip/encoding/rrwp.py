"""Relative random walk probabilities (RRWP): powers I, M, M^2, ... of M = D^-1 A for all pairs of nodes of a graph.

Ma et al. 2023 (GRIT), section 3.1. The public codes differ: ``channels`` "K" (GRIT) has I .. M^(K-1) of the graph as it
is, "K+1" (PPGT) I .. M^K, and first makes a directed graph undirected, without the number of repeated edges.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding.feature_encoders import LinearNodeEncoder
from graphgps_kmip.encoding.positional_encoding import PositionalEncoding
from graphgps_kmip.errors import ConfigError, InputError
from graphgps_kmip.ops.context import first_nodes
from graphgps_kmip.ops.host_copies import host_copy
from graphgps_kmip.ranges import Choice, whole
from graphgps_kmip.registry import register

log = logging.getLogger(__name__)
GROUP = "posenc_RRWP"
CACHE_BYTES = 2 << 30  # values of a data set that ``where: auto`` stores: ZINC's (0.7 GiB), not Peptides' (57 GiB)
GRAPH_BYTES = 4 << 30  # values of one graph: 5,500 nodes with 33 channels in float32
SPREAD = 1.15  # sizes of graphs whose matrices are multiplied together: at most a third of the entries is padding
CELLS = 1 << 22  # entries of one matrix of such a group
BLOCK_NUMBERS = 1 << 23  # of a sparse graph's nodes times some queries: k_hop + 2 matrices of 64 MiB in float64
PRECISIONS = {"float32": torch.float32, "float64": torch.float64}
SETTINGS = ("ksteps", "add_identity", "sym_norm", "k_hop", "dual_direction", "channels", "precision", "sparse")


@register("encoding", "RRWP")
class RRWP(PositionalEncoding):
    """Relative random walk probabilities of all pairs of nodes (GRIT, PPGT); takes no columns.

    Its attributes are ``rrwp`` (n * n, C) and ``rrwp_degree`` (n,). With ``sparse``, ``rrwp`` is (P, C), of the pairs
    (query, key) of ``rrwp_index`` (2, P) that ``k_hop`` keeps, and attention is limited to them.

    Args:
        ksteps (int, optional): K, at least 1. (default: 21)
        add_identity (bool, optional): The first channel is I. (default: ``True``)
        sym_norm (bool, optional): M = D^-1/2 A D^-1/2 in place of D^-1 A. (default: ``False``)
        k_hop (int, optional): Pairs whose first k_hop + 1 channels sum to 0 have zeros in all; -1: none. (default: -1)
        dual_direction (bool, optional): Append the powers of the reversed graph, without I. (default: ``False``)
        channels (str, optional): ``"K"`` or ``"K+1"``, see the head of this file; ours. (default: ``"K"``)
        precision (str, optional): ``"float32"`` or ``"float64"``, of all sums; ours. (default: ``"float32"``)
        where (str, optional): ``"cache"``: computed before training, stored on disk; ``"batch"``: for each mini-batch,
            on its device; ``"auto"``: in batches above `CACHE_BYTES`; ours. (default: ``"auto"``)
        sparse (bool, optional): Only the pairs that k_hop keeps have rows; ours. (default: ``False``)

    Raises:
        ConfigError: sparse without k_hop.
    """

    ksteps: Annotated[int, whole(1, 1000)] = 21
    add_identity: bool = True
    sym_norm: bool = False
    k_hop: Annotated[int, whole(-1, 1000)] = -1
    dual_direction: bool = False
    channels: Annotated[str, Choice(("K", "K+1"))] = "K"
    precision: Annotated[str, Choice(tuple(PRECISIONS))] = "float32"
    where: Annotated[str, Choice(("auto", "cache", "batch"))] = "auto"
    sparse: bool = False
    in_batch: int = 0
    FROM_CONFIG: ClassVar[Mapping[str, str]] = {"in_batch": "share.rrwp_in_batch"}
    width: ClassVar[int] = 0  # it is added to the node features

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sparse and self.k_hop < 0:
            raise ConfigError(f"{GROUP}.sparse lists the pairs within {GROUP}.k_hop hops: set k_hop to 0 or more")

    @property
    def num_powers(self) -> int:
        """Powers of M in one direction, the identity not counted."""
        return self.ksteps if self.channels == "K+1" else self.ksteps - self.add_identity

    @property
    def num_channels(self) -> int:
        """Width C of the values."""
        return self.add_identity + self.num_powers * (1 + self.dual_direction)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the values."""
        return PRECISIONS[self.precision]

    @property
    def float64(self) -> bool:
        """Whether the values stay float64 on disk."""
        return self.precision == "float64"

    @property
    def pair_bytes(self) -> int:
        """Bytes of the values of one pair of nodes."""
        return self.num_channels * self.dtype.itemsize

    @property
    def undirected(self) -> bool:
        """Whether a directed graph is made undirected first."""
        return self.channels == "K+1" and not self.dual_direction

    @property
    def computed_in_batch(self) -> bool:
        """Whether mini-batches come without values, which `with_rrwp` then computes."""
        return self.where == "batch" or (self.where == "auto" and bool(self.in_batch))

    def settings(self) -> dict[str, Any]:
        """Return which matrices the channels are; ``sparse``, which came later than values on disk, only where set."""
        return {name: getattr(self, name) for name in SETTINGS if self.sparse or name != "sparse"}

    def facts(self, graphs: Sequence[Data]) -> dict[str, int]:
        """Return whether the values of the whole data set are too many to store (``where: auto``)."""
        if self.where != "auto" or self.sparse:
            return {}
        if getattr(graphs, "drawn_when_read", False):  # `NodeSubgraphs`: too many to draw them all first
            return {"rrwp_in_batch": 1}
        pairs = sum(graph.num_nodes**2 for graph in graphs)
        return {"rrwp_in_batch": int(pairs * self.pair_bytes > CACHE_BYTES)}

    @staticmethod
    def compute(graph: Data, **settings: Any) -> dict[str, Tensor]:
        """Return the values of all pairs of nodes, or of the near ones and which they are, and the degrees."""
        ptr = torch.tensor([0, graph.num_nodes], device=graph.edge_index.device)
        return RRWP(**settings).values(graph.edge_index, ptr)

    def values(self, edge_index: Tensor, ptr: Tensor) -> dict[str, Tensor]:
        """Return the attributes of a mini-batch of graphs."""
        if self.sparse:
            return dict(zip(("rrwp", "rrwp_index", "rrwp_degree"), sparse_rrwp(edge_index, ptr, self), strict=True))
        return dict(zip(("rrwp", "rrwp_degree"), batched_rrwp(edge_index, ptr, self), strict=True))

    def encoder(self, dim: int, dim_x: int | None) -> nn.Module:
        """Return GRIT's linear maps of RRWP, of a node to x and of pairs to pair_attr; of raw features before them."""
        linear = RRWPLinear(self.num_channels, dim, self)
        return linear if dim_x is None else nn.Sequential(LinearNodeEncoder(dim_x, dim), linear)


def rrwp(edge_index: Tensor, num_nodes: int, walks: RRWP = RRWP()) -> Tensor:  # noqa: B008 (frozen)
    r"""Return the random walk probabilities of all pairs of nodes of one graph (Ma et al. 2023, equation 1).

    .. math:: P_{ij} = [I, M, M^2, \dots]_{ij}, \qquad M = D^{-1} A

    Repeated edges add up, self loops count once; the row of a node without edges is 0. No gradient flows.

    Shapes: edge_index (2, E) -> (N * N, C); pair (i, j), query i and key j, in row i * N + j.
    """
    return batched_rrwp(edge_index, torch.tensor([0, num_nodes], device=edge_index.device), walks)[0]


@torch.no_grad()
def batched_rrwp(edge_index: Tensor, ptr: Tensor, walks: RRWP) -> tuple[Tensor, Tensor]:
    """Return the values of `rrwp` and the degrees of all graphs of a mini-batch, computed on its device.

    Args:
        edge_index (Tensor): Edges (source, target) inside graphs, in node numbers of the batch.
        ptr (Tensor): First node of each graph, and the number of nodes at the end.
        walks (RRWP): Which matrices they are.

    Shapes: edge_index (2, E), ptr (B + 1,) of graphs of n nodes -> values (sum of n^2, C), graph by graph, query by
        query; degrees (N,) int64: row sums of A, which is undirected where ``walks.undirected``.

    Raises:
        InputError: an edge leaves its graph, or the values of a graph take more than `GRAPH_BYTES`.
    """
    sizes = ptr.diff().tolist()
    largest = max(sizes, default=0)
    if largest**2 * walks.pair_bytes > GRAPH_BYTES:
        raise InputError(
            f"{GROUP}: {walks.num_channels} channels of all pairs of a graph of {largest:,} nodes take "
            f"{largest**2 * walks.pair_bytes / 2**30:.1f} GiB, the limit is {GRAPH_BYTES / 2**30:g} GiB: lower "
            f"{GROUP}.ksteps, or train on smaller subgraphs (train.sampler)"
        )
    graph = _find_graphs(edge_index, ptr)
    first_pair = list(accumulate((size**2 for size in sizes), initial=0))
    values = torch.empty(first_pair[-1], walks.num_channels, dtype=walks.dtype, device=ptr.device)
    degrees = ptr.new_zeros(len(graph), dtype=torch.long)
    first_node = ptr.tolist()
    for members in _group_by_size(sizes):
        numbers = torch.tensor(members, device=ptr.device)
        counts = _adjacency(edge_index, graph, ptr, numbers, sizes[members[0]], walks)  # (G, n, n)
        channels = _channels(counts, walks)
        for place, number in enumerate(members):
            size, node, pair = sizes[number], first_node[number], first_pair[number]
            degrees[node : node + size] = counts[place, :size].sum(dim=1)
            block = values[pair : pair + size**2].view(size, size, -1)
            torch.stack([channel[place, :size, :size] for channel in channels], dim=-1, out=block)
            if walks.k_hop >= 0:
                block *= block[:, :, : walks.k_hop + 1].sum(dim=2, keepdim=True) > 0
    return values, degrees


def _find_graphs(edge_index: Tensor, ptr: Tensor) -> Tensor:
    """Return the graph of each node, (N,), after a check of the edges."""
    graph = torch.arange(len(ptr) - 1, device=ptr.device).repeat_interleave(ptr.diff())
    if not edge_index.numel():
        return graph
    low, high = int(edge_index.min()), int(edge_index.max())
    if low < 0 or high >= len(graph):
        raise InputError(
            f"{GROUP}: edge_index names node {high if low >= 0 else low}, but there are {len(graph)} nodes: "
            "number them from 0, and give whole graphs"
        )
    if bool((graph[edge_index[0]] != graph[edge_index[1]]).any()):
        raise InputError(f"{GROUP}: an edge joins two graphs of the batch: check batch.ptr and edge_index")
    return graph


def _group_by_size(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield the numbers of graphs whose matrices are multiplied together, the largest of a group first."""
    group: list[int] = []
    for number in sorted((n for n, size in enumerate(sizes) if size), key=lambda n: -sizes[n]):
        if group and (sizes[number] * SPREAD < sizes[group[0]] or (len(group) + 1) * sizes[group[0]] ** 2 > CELLS):
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def _adjacency(edge_index: Tensor, graph: Tensor, ptr: Tensor, numbers: Tensor, size: int, walks: RRWP) -> Tensor:
    """Return how many edges lead from node i to node j of each graph, 0 in the padding: (G, n, n)."""
    place = torch.full((len(ptr) - 1,), -1, device=ptr.device)
    place[numbers] = torch.arange(len(numbers), device=ptr.device)
    which = place[graph[edge_index[0]]]
    edges, which = edge_index[:, which >= 0], which[which >= 0]
    row, column = edges - ptr[numbers[which]]
    counts = torch.zeros(len(numbers), size, size, dtype=walks.dtype, device=ptr.device)
    counts.index_put_((which, row, column), counts.new_ones(()), accumulate=True)
    if walks.undirected:
        directed = (counts != counts.mT).flatten(1).any(dim=1)
        if bool(directed.any()):
            _warn_of_directed_graphs()
            counts = torch.where(directed[:, None, None], ((counts + counts.mT) > 0).to(counts.dtype), counts)
    return counts


@functools.cache
def _warn_of_directed_graphs() -> None:
    log.warning(
        "posenc_RRWP: directed graphs are made undirected first, as in the public code of PPGT: set "
        "posenc_RRWP.dual_direction True, or channels K, to keep the directions"
    )


def _channels(counts: Tensor, walks: RRWP) -> list[Tensor]:
    identity = torch.eye(counts.size(1), dtype=counts.dtype, device=counts.device).expand_as(counts)
    channels = [identity] if walks.add_identity else []
    for adjacency in (counts, counts.mT)[: 1 + walks.dual_direction]:
        scale = _inverse_degree(adjacency.sum(dim=2), walks)
        step = scale[:, :, None] * adjacency
        power = step = step * scale[:, None, :] if walks.sym_norm else step
        for number in range(walks.num_powers):
            power = step @ power if number else step
            channels.append(power)
    return channels


def _inverse_degree(degree: Tensor, walks: RRWP) -> Tensor:
    return torch.where(degree > 0, degree.pow(-0.5 if walks.sym_norm else -1), 0)


@torch.no_grad()
def sparse_rrwp(edge_index: Tensor, ptr: Tensor, walks: RRWP) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values of `batched_rrwp` of the pairs that ``walks.k_hop`` keeps, these pairs, and the degrees.

    Graphs are computed one by one, the channels of some queries at a time. Time is that of N E numbers for each
    channel. Arguments and errors are those of `batched_rrwp`.

    Shapes: edge_index (2, E), ptr (B + 1,) -> values (P, C); pairs (2, P), query first, ascending; degrees (N,) int64.
    """
    edge_graph = _find_graphs(edge_index, ptr)[edge_index[0]]
    values = [torch.empty(0, walks.num_channels, dtype=walks.dtype, device=ptr.device)]
    pairs, degrees = [ptr.new_empty(2, 0)], [ptr.new_empty(0)]
    for number, (first, last) in enumerate(zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True)):
        size, num_values = last - first, 0
        row, column, count = _adjacency_entries(edge_index[:, edge_graph == number] - first, size, walks)
        steps = [_transposed_step(row, column, count, size, walks)]
        if walks.dual_direction:
            steps.append(_transposed_step(column, row, count, size, walks))
        for queries in torch.arange(size, device=ptr.device).split(max(1, BLOCK_NUMBERS // max(1, size))):
            pair, value = _near_pairs(queries, steps, size, walks)
            num_values += len(value)
            if num_values * walks.pair_bytes > GRAPH_BYTES:
                raise InputError(
                    f"{GROUP}: {walks.num_channels} channels of the pairs within {walks.k_hop} hops of a graph of "
                    f"{size:,} nodes take more than {GRAPH_BYTES / 2**30:g} GiB: lower {GROUP}.k_hop or ksteps"
                )
            values.append(value)
            pairs.append(pair + first)
        degrees.append(count.new_zeros(size).index_add(0, row, count).long())
    return torch.cat(values), torch.cat(pairs, dim=1), torch.cat(degrees)


def _adjacency_entries(edge_index: Tensor, num_nodes: int, walks: RRWP) -> tuple[Tensor, Tensor, Tensor]:
    """Return row and column of the adjacency matrix's entries, ascending, and how many edges each is: (E,) each."""
    keys, count = (edge_index[0] * num_nodes + edge_index[1]).unique(return_counts=True)
    row, column = keys // max(1, num_nodes), keys % max(1, num_nodes)
    if walks.undirected:
        reverse, order = (column * num_nodes + row).sort()
        if not (torch.equal(reverse, keys) and torch.equal(count[order], count)):
            _warn_of_directed_graphs()
            keys = torch.cat([keys, reverse]).unique()
            row, column, count = keys // num_nodes, keys % num_nodes, torch.ones_like(keys)
    return row, column, count.to(walks.dtype)


def _transposed_step(row: Tensor, column: Tensor, count: Tensor, num_nodes: int, walks: RRWP) -> Tensor:
    """Return the sparse matrix M^T, (N, N), with M = D^-1 A, or D^-1/2 A D^-1/2."""
    scale = _inverse_degree(count.new_zeros(num_nodes).index_add(0, row, count), walks)
    entries = count * scale[row] * (scale[column] if walks.sym_norm else 1)
    index = torch.stack([column, row])
    return torch.sparse_coo_tensor(index, entries, (num_nodes, num_nodes), check_invariants=False).coalesce()


def _near_pairs(queries: Tensor, steps: list[Tensor], num_nodes: int, walks: RRWP) -> tuple[Tensor, Tensor]:
    channels = _compute_channels(queries, steps, num_nodes, walks)
    nearest = list(islice(channels, walks.k_hop + 1))  # they decide which pairs are near
    query, key = (sum(nearest) > 0).T.nonzero(as_tuple=True)  # query by query
    columns = [channel[key, query] for channel in nearest]
    del nearest
    columns += [channel[key, query] for channel in channels]
    return torch.stack([queries[query], key]), torch.stack(columns, dim=1)


def _compute_channels(queries: Tensor, steps: list[Tensor], num_nodes: int, walks: RRWP) -> Iterator[Tensor]:
    """Yield each channel of some queries, transposed: (N, Q)."""
    start = torch.zeros(num_nodes, len(queries), dtype=walks.dtype, device=queries.device)
    start[queries, torch.arange(len(queries), device=queries.device)] = 1
    if walks.add_identity:
        yield start
    for step in steps:
        power = start
        for _ in range(walks.num_powers):
            power = torch.sparse.mm(step, power)
            yield power


def with_rrwp(batch: Batch, encoding: RRWP) -> Batch:
    """Return the batch with ``rrwp`` (P, C) and ``rrwp_degree`` (N,), computed now where it comes without them.

    Raises:
        InputError: they are missing and not to be computed here, or are of other pairs or channels.
    """
    ptr, sparse = first_nodes(batch), encoding.sparse
    if "rrwp" not in batch and encoding.computed_in_batch:
        for name, value in encoding.values(batch.edge_index, ptr).items():
            batch[name] = value
    names = ("rrwp", "rrwp_degree", "rrwp_index") if sparse else ("rrwp", "rrwp_degree")
    if any(name not in batch for name in names):
        raise InputError(
            f"RRWP needs {' and '.join(names)}, but the graphs do not have them: set {GROUP}.enable True, or "
            f"{GROUP}.where batch"
        )
    if sparse:
        index = batch.rrwp_index
        pairs, fits = index.size(1), not index.numel() or int(host_copy(index).max()) < int(host_copy(ptr)[-1])
    else:
        pairs, fits = int(host_copy(ptr).diff().square().sum()), "rrwp_index" not in batch
    if not fits or tuple(batch.rrwp.shape) != (pairs, encoding.num_channels):
        raise InputError(
            f"rrwp must be ({pairs}, {encoding.num_channels}) for these graphs, got {tuple(batch.rrwp.shape)}: "
            f"check {GROUP}.ksteps, channels and sparse, and give whole graphs (train.sampler full_batch)"
        )
    return batch


class RRWPLinear(nn.Module):
    r"""Add a linear map of a node's own RRWP to its features, and make pair features by another one.

    .. math:: x_i' = x_i + W_1 P_{ii}, \qquad e_{ij} = W_2 P_{ij}

    without biases, Xavier uniform at the start (GRIT's ``rrwp_linear`` encoders).

    Args:
        num_channels (int): Width C of RRWP.
        dim (int): Width of nodes and pairs.
        encoding (RRWP, optional): Computes values that a batch does not have. (default: ``None``, it has them)

    Shapes: batch.x (N, dim), batch.rrwp (P, C) of all pairs or of those of batch.rrwp_index (2, P) -> batch.x (N, dim),
        batch.pair_attr (P, dim), batch.pair_index None or (2, P).
    """

    def __init__(self, num_channels: int, dim: int, encoding: RRWP | None = None) -> None:
        super().__init__()
        self.encoding = encoding
        self.node, self.pair = (nn.Linear(num_channels, dim, bias=False) for _ in range(2))
        for linear in (self.node, self.pair):
            nn.init.xavier_uniform_(linear.weight)

    def forward(self, batch: Batch) -> Batch:
        """Return the batch with new x, and with pair_attr."""
        batch = batch if self.encoding is None else with_rrwp(batch, self.encoding)
        values = batch.rrwp.to(self.pair.weight.dtype)
        batch.x = batch.x + self.node(diagonal(values, first_nodes(batch), batch.get("rrwp_index")))
        batch.pair_attr = self.pair(values)
        if "rrwp_index" in batch:
            batch.pair_index = batch.rrwp_index
        return batch


def diagonal(values: Tensor, ptr: Tensor, index: Tensor | None = None) -> Tensor:
    """Return the rows of the pairs (i, i): (P, C) -> (N, C).

    The values are of all pairs, or of the pairs ``index`` (2, P), where a node that is not in the list has zeros.
    """
    number = int(host_copy(ptr)[-1])
    if index is not None:
        loops = index[0] == index[1]
        return values.new_zeros(number, values.size(1)).index_copy(0, index[0, loops], values[loops])
    sizes = ptr.diff()
    first = sizes.square().cumsum(0) - sizes.square()
    start, pair, size = (part.repeat_interleave(sizes, output_size=number) for part in (ptr[:-1], first, sizes))
    node = torch.arange(number, device=ptr.device) - start
    return values[pair + node * (size + 1)]
