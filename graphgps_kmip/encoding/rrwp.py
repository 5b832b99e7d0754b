"""Relative random walk probabilities (RRWP): powers I, M, M^2, ... of M = D^-1 A for all pairs of nodes of a graph.

Ma et al. 2023 (GRIT), section 3.1; with K + 1 channels the input of PPGT. They are precomputed and cached on disk, or,
for data sets of which they would fill the disk, computed for each mini-batch on its device (``where``).

The public codes differ, and ``channels`` says which one is meant: "K" (GRIT) has I .. M^(K-1) of the graph as it is,
"K+1" (PPGT) has I .. M^K, and first makes a directed graph undirected, without the number of repeated edges.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding.feature_encoders import LinearNodeEncoder
from graphgps_kmip.encoding.positional_encoding import PositionalEncoding
from graphgps_kmip.encoding.rrwp_linear import RRWPLinear, diagonal  # noqa: F401 (beside `rrwp` for its readers)
from graphgps_kmip.encoding.sparse_rrwp import adjacency_counts, near_pairs, undirected_counts
from graphgps_kmip.errors import ConfigError, InputError
from graphgps_kmip.ops.host_copies import host_copy
from graphgps_kmip.ops.node_pairs import first_nodes
from graphgps_kmip.ranges import Choice, whole
from graphgps_kmip.registry import register

log = logging.getLogger(__name__)
GROUP = "posenc_RRWP"
# Values of a whole data set that ``where: auto`` still stores: ZINC's (0.7 GiB) and not Peptides' (57 GiB). Computing
# takes 7 ms for a batch of 32 graphs of 23 nodes, 0.3 s for 32 of 150 (33 channels, one thread).
CACHE_BYTES = 2 << 30
GRAPH_BYTES = 4 << 30  # values of one graph: 5,500 nodes with 33 channels in float32
SPREAD = 1.15  # sizes of graphs whose matrices are multiplied together: at most a third of the entries is padding
CELLS = 1 << 22  # entries of one matrix of such a group
PRECISIONS = {"float32": torch.float32, "float64": torch.float64}
Precision = Annotated[str, Choice(tuple(PRECISIONS))]


@dataclass(frozen=True)
class Walks:
    """Which random walk matrices are the channels of RRWP.

    Args:
        ksteps (int, optional): K, at least 1. (default: 21)
        add_identity (bool, optional): The first channel is I. (default: ``True``)
        sym_norm (bool, optional): M = D^-1/2 A D^-1/2 in place of D^-1 A. (default: ``False``)
        k_hop (int, optional): Pairs whose first k_hop + 1 channels sum to 0 have zeros in all; -1: none.
            (default: -1)
        dual_direction (bool, optional): Append the powers of the reversed graph, without a second I; a directed graph
            then stays one. (default: ``False``)
        channels (str, optional): ``"K"`` or ``"K+1"``, see the head of this file. (default: ``"K"``)
        precision (str, optional): ``"float32"`` or ``"float64"``, in which they are computed. (default: ``"float32"``)
        sparse (bool, optional): Only the pairs that k_hop keeps have rows, see `sparse_rrwp`. (default: ``False``)

    Raises:
        ConfigError: sparse without k_hop.
    """

    ksteps: int = 21
    add_identity: bool = True
    sym_norm: bool = False
    k_hop: int = -1
    dual_direction: bool = False
    channels: str = "K"
    precision: str = "float32"
    sparse: bool = False

    def __post_init__(self) -> None:
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
    def pair_bytes(self) -> int:
        """Bytes of the values of one pair of nodes."""
        return self.num_channels * self.dtype.itemsize

    @property
    def undirected(self) -> bool:
        """Whether a directed graph is made undirected first."""
        return self.channels == "K+1" and not self.dual_direction


def rrwp(edge_index: Tensor, num_nodes: int, walks: Walks = Walks()) -> Tensor:  # noqa: B008 (frozen)
    r"""Return the random walk probabilities of all pairs of nodes of one graph (Ma et al. 2023, equation 1).

    .. math:: P_{ij} = [I, M, M^2, \dots]_{ij}, \qquad M = D^{-1} A

    Repeated edges add up, self loops count once; the row of a node without edges is 0. No gradient flows.

    Args:
        edge_index (Tensor): Edges (source, target) of one graph.
        num_nodes (int): N.
        walks (Walks, optional): Which matrices they are. (default: ``Walks()``)

    Shapes: edge_index (2, E) -> (N * N, C); pair (i, j), query i and key j, in row i * N + j.

    Raises:
        InputError: an edge names a node that does not exist, or the values take more than `GRAPH_BYTES`.
    """
    return batched_rrwp(edge_index, torch.tensor([0, num_nodes], device=edge_index.device), walks)[0]


@torch.no_grad()
def batched_rrwp(edge_index: Tensor, ptr: Tensor, walks: Walks) -> tuple[Tensor, Tensor]:
    """Return the values of `rrwp` and the degrees of all graphs of a mini-batch, computed on its device.

    Graphs of about the same size are multiplied together, so that padding stays small.

    Args:
        edge_index (Tensor): Edges (source, target) inside graphs, in node numbers of the batch.
        ptr (Tensor): First node of each graph, and the number of nodes at the end.
        walks (Walks): Which matrices they are.

    Shapes: edge_index (2, E), ptr (B + 1,) of graphs of n nodes -> values (sum of n^2, C), graph by graph, query by
        query; degrees (N,) int64: row sums of A, which is undirected where ``walks.undirected``.

    Raises:
        InputError: an edge leaves its graph, or the values of a graph take more than `GRAPH_BYTES`.
    """
    sizes = ptr.diff().tolist()
    _check_sizes(sizes, walks)
    graph = torch.arange(len(sizes), device=ptr.device).repeat_interleave(ptr.diff())
    _check_edges(edge_index, graph)
    first_pair = list(accumulate((size**2 for size in sizes), initial=0))
    values = torch.empty(first_pair[-1], walks.num_channels, dtype=walks.dtype, device=ptr.device)
    degrees = ptr.new_zeros(len(graph), dtype=torch.long)
    first_node = ptr.tolist()
    for members in _groups(sizes):
        numbers = torch.tensor(members, device=ptr.device)
        counts = _adjacency(edge_index, graph, ptr, numbers, sizes[members[0]], walks)  # (G, n, n)
        channels = _channels(counts, walks)
        for place, number in enumerate(members):
            size, node, pair = sizes[number], first_node[number], first_pair[number]
            degrees[node : node + size] = counts[place, :size].sum(dim=1)
            found = values[pair : pair + size**2].view(size, size, -1)
            torch.stack([channel[place, :size, :size] for channel in channels], dim=-1, out=found)
            if walks.k_hop >= 0:
                found *= found[:, :, : walks.k_hop + 1].sum(dim=2, keepdim=True) > 0
    return values, degrees


@torch.no_grad()
def sparse_rrwp(edge_index: Tensor, ptr: Tensor, walks: Walks) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values of `batched_rrwp` of the pairs that ``walks.k_hop`` keeps, these pairs, and the degrees.

    Each graph is computed by itself, for few and large ones.

    Args:
        edge_index (Tensor): Edges (source, target) inside graphs, in node numbers of the batch.
        ptr (Tensor): First node of each graph, and the number of nodes at the end.
        walks (Walks): Which matrices they are, with ``sparse``.

    Shapes: edge_index (2, E), ptr (B + 1,) -> values (P, C); pairs (2, P), query first, in increasing order; degrees
        (N,) int64.

    Raises:
        InputError: an edge leaves its graph, or the values of a graph take more than `GRAPH_BYTES`.
    """
    graph = torch.arange(len(ptr) - 1, device=ptr.device).repeat_interleave(ptr.diff())
    _check_edges(edge_index, graph)
    of_edge = graph[edge_index[0]]
    values = [torch.empty(0, walks.num_channels, dtype=walks.dtype, device=ptr.device)]
    pairs, degrees = [ptr.new_empty(2, 0)], [ptr.new_empty(0)]
    for number, (first, last) in enumerate(zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True)):
        counts = adjacency_counts(edge_index[:, of_edge == number] - first, last - first, walks.dtype)
        if walks.undirected:
            counts, directed = undirected_counts(counts, last - first)
            if directed:
                _warn_of_directed_graphs()
        value, pair, degree = near_pairs(counts, last - first, walks, GRAPH_BYTES)
        values.append(value)
        pairs.append(pair + first)
        degrees.append(degree)
    return torch.cat(values), torch.cat(pairs, dim=1), torch.cat(degrees)


def _check_sizes(sizes: Sequence[int], walks: Walks) -> None:
    largest = max(sizes, default=0)
    if largest**2 * walks.pair_bytes > GRAPH_BYTES:
        raise InputError(
            f"{GROUP}: {walks.num_channels} channels of all pairs of a graph of {largest:,} nodes take "
            f"{largest**2 * walks.pair_bytes / 2**30:.1f} GiB, the limit is {GRAPH_BYTES / 2**30:g} GiB: lower "
            f"{GROUP}.ksteps, or train on smaller subgraphs (train.sampler)"
        )


def _check_edges(edge_index: Tensor, graph: Tensor) -> None:
    if not edge_index.numel():
        return
    low, high = edge_index.min(), edge_index.max()
    if int(low) < 0 or int(high) >= len(graph):
        raise InputError(
            f"{GROUP}: edge_index names node {int(high if low >= 0 else low)}, but there are {len(graph)} nodes: "
            "number them from 0, and give whole graphs"
        )
    if bool((graph[edge_index[0]] != graph[edge_index[1]]).any()):
        raise InputError(f"{GROUP}: an edge joins two graphs of the batch: check batch.ptr and edge_index")


def _groups(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield the numbers of graphs whose matrices are multiplied together, the largest of a group first."""
    group: list[int] = []
    for number in sorted((n for n, size in enumerate(sizes) if size), key=lambda n: -sizes[n]):
        if group and (sizes[number] * SPREAD < sizes[group[0]] or (len(group) + 1) * sizes[group[0]] ** 2 > CELLS):
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def _adjacency(edge_index: Tensor, graph: Tensor, ptr: Tensor, numbers: Tensor, size: int, walks: Walks) -> Tensor:
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
    """Log it once in a process."""
    log.warning(
        "%s: directed graphs are made undirected first, as in the public code of PPGT: set %s.dual_direction True, or "
        "channels K, to keep the directions",
        GROUP,
        GROUP,
    )


def _channels(counts: Tensor, walks: Walks) -> list[Tensor]:
    """Return the matrix of each channel, (G, n, n) -> C times (G, n, n)."""
    found = [torch.eye(counts.size(1), dtype=counts.dtype, device=counts.device).expand_as(counts)]
    found = found if walks.add_identity else []
    for adjacency in (counts, counts.mT)[: 1 + walks.dual_direction]:
        step = _normalised(adjacency, walks.sym_norm)
        power = step
        for number in range(walks.num_powers):
            power = step @ power if number else step
            found.append(power)
    return found


def _normalised(adjacency: Tensor, symmetric: bool) -> Tensor:
    """Return D^-1 A, or D^-1/2 A D^-1/2, with the row sums D; 0 for a node of degree 0."""
    degree = adjacency.sum(dim=2)
    scale = torch.where(degree > 0, degree.pow(-0.5 if symmetric else -1), 0)
    scaled = scale[:, :, None] * adjacency
    return scaled * scale[:, None, :] if symmetric else scaled


@register("encoding", "RRWP")
class RRWP(PositionalEncoding):
    """Relative random walk probabilities of all pairs of nodes (GRIT, PPGT); takes no columns.

    Its attributes are ``rrwp`` (n * n, C) and ``rrwp_degree`` (n,). With ``sparse``, ``rrwp`` is (P, C), of the pairs
    (query, key) of ``rrwp_index`` (2, P) that ``k_hop`` keeps, and attention is limited to them. ``where`` says when
    they are computed: ``cache`` before training, kept on disk; ``batch`` for each mini-batch, on its device; ``auto``
    as their size over the whole data set is at most `CACHE_BYTES` or above.
    """

    ksteps: Annotated[int, whole(1, 1000)] = 21
    add_identity: bool = True
    sym_norm: bool = False
    k_hop: Annotated[int, whole(-1, 1000)] = -1
    dual_direction: bool = False
    channels: Annotated[str, Choice(("K", "K+1"))] = "K"  # ours: of GRIT, or of PPGT
    precision: Precision = "float32"  # ours
    where: Annotated[str, Choice(("auto", "cache", "batch"))] = "auto"  # ours
    sparse: bool = False  # ours
    in_batch: int = 0
    FROM_CONFIG: ClassVar[Mapping[str, str]] = {"in_batch": "share.rrwp_in_batch"}

    @property
    def walks(self) -> Walks:
        """Which matrices the channels are."""
        return Walks(**{one.name: getattr(self, one.name) for one in fields(Walks)})

    @property
    def computed_in_batch(self) -> bool:
        """Whether mini-batches come without values, which `with_rrwp` then computes."""
        return self.where == "batch" or (self.where == "auto" and bool(self.in_batch))

    @property
    def float64(self) -> bool:
        """Whether the values stay float64 on disk."""
        return self.precision == "float64"

    @property
    def width(self) -> int:
        """Columns of the node features that it takes: it is added to them."""
        return 0

    def settings(self) -> dict[str, Any]:
        """Return which matrices the channels are; ``sparse``, which came later than values on disk, only where set."""
        chosen = {one.name: getattr(self, one.name) for one in fields(Walks)}
        return chosen if self.sparse else {name: value for name, value in chosen.items() if name != "sparse"}

    def facts(self, graphs: Sequence[Data]) -> dict[str, int]:
        """Return whether the values of the whole data set are too many to store (``where: auto``)."""
        if self.where != "auto" or self.sparse:
            return {}
        if getattr(graphs, "drawn_when_read", False):  # `NodeSubgraphs`: too many to draw them all first
            return {"rrwp_in_batch": 1}
        pairs = sum(graph.num_nodes**2 for graph in graphs)
        return {"rrwp_in_batch": int(pairs * self.walks.pair_bytes > CACHE_BYTES)}

    @staticmethod
    def compute(
        graph: Data,
        ksteps: int,
        add_identity: bool,
        sym_norm: bool,
        k_hop: int,
        dual_direction: bool,
        channels: str,
        precision: str,
        sparse: bool = False,
    ) -> dict[str, Tensor]:
        """Return the values of all pairs of nodes, or of the near ones and which they are, and the degrees."""
        walks = Walks(ksteps, add_identity, sym_norm, k_hop, dual_direction, channels, precision, sparse)
        ptr = torch.tensor([0, graph.num_nodes], device=graph.edge_index.device)
        if sparse:
            values, pairs, degree = sparse_rrwp(graph.edge_index, ptr, walks)
            return {"rrwp": values, "rrwp_index": pairs, "rrwp_degree": degree}
        values, degree = batched_rrwp(graph.edge_index, ptr, walks)
        return {"rrwp": values, "rrwp_degree": degree}

    def encoder(self, dim: int, dim_x: int | None) -> nn.Module:
        """Return GRIT's linear maps of RRWP, of a node to x and of pairs to pair_attr; of raw features before them."""
        features = [] if dim_x is None else [LinearNodeEncoder(dim_x, dim)]
        linear = RRWPLinear(self.walks.num_channels, dim, functools.partial(with_rrwp, encoding=self))
        return nn.Sequential(*features, linear) if features else linear


def with_rrwp(batch: Batch, encoding: RRWP) -> Batch:
    """Return the batch with ``rrwp`` (P, C) and ``rrwp_degree`` (N,), computed now where it comes without them.

    Sparse values are those of the pairs ``rrwp_index`` (2, P), others those of all pairs.

    Args:
        batch (Batch): Graphs; it is given the two attributes.
        encoding (RRWP): Says whether they may be computed here.

    Raises:
        InputError: they are missing and not to be computed here, or are of other pairs or channels.
    """
    walks = encoding.walks
    if "rrwp" not in batch and encoding.computed_in_batch:
        if walks.sparse:
            found = sparse_rrwp(batch.edge_index, first_nodes(batch), walks)
            batch.rrwp, batch.rrwp_index, batch.rrwp_degree = found
        else:
            batch.rrwp, batch.rrwp_degree = batched_rrwp(batch.edge_index, first_nodes(batch), walks)
    names = ("rrwp", "rrwp_degree", "rrwp_index") if walks.sparse else ("rrwp", "rrwp_degree")
    if any(name not in batch for name in names):
        raise InputError(
            f"RRWP needs {' and '.join(names)}, but the graphs do not have them: set {GROUP}.enable True, or "
            f"{GROUP}.where batch"
        )
    ptr = first_nodes(batch)
    if walks.sparse:
        index = batch.rrwp_index
        pairs, fits = index.size(1), not index.numel() or int(host_copy(index).max()) < int(host_copy(ptr)[-1])
    else:
        pairs, fits = int(host_copy(ptr).diff().square().sum()), "rrwp_index" not in batch
    if not fits or tuple(batch.rrwp.shape) != (pairs, walks.num_channels):
        raise InputError(
            f"rrwp must be ({pairs}, {walks.num_channels}) for these graphs, got {tuple(batch.rrwp.shape)}: "
            f"check {GROUP}.ksteps, channels and sparse, and give whole graphs (train.sampler full_batch)"
        )
    return batch
