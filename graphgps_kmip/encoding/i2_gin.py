"""I2-GIN encoder of PPGT: features of edges by a GIN on the subgraph around each, with its two ends marked by RRWP.

Ma et al. 2025 (PPGT), experiments on BREC, after I2-GNN (Huang et al. 2023). The nodes within some hops of a induce the
subgraph of an edge (a, b), as in the public code; its features are those of the pair with query a and key b.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from graphgps_kmip.encoding.rrwp import RRWP, with_rrwp
from graphgps_kmip.ops.context import first_nodes, pair_rows
from graphgps_kmip.ops.propagation import WeightedEdges, propagate
from graphgps_kmip.ops.row_layers import NORM_LAYERS

CACHED_ROWS = 2**13  # nodes of subgraphs at a time in evaluation on a CPU, so that their features stay in its cache


def neighborhoods(edge_index: Tensor, num_nodes: int, num_hops: int) -> Tensor:
    """Return the pairs (a, v) of a node and the nodes that it reaches in at most ``num_hops`` steps, itself included.

    Shapes: edge_index (2, E) -> (2, M), sorted by a, then by v.
    """
    lists = _TargetLists(edge_index, num_nodes)
    codes = torch.arange(num_nodes, device=edge_index.device) * (num_nodes + 1)  # a N + v of the pairs (v, v)
    for _ in range(num_hops):
        start, node = codes // num_nodes, codes % num_nodes
        row, reached = lists.steps(node)
        grown = torch.cat([codes, start[row] * num_nodes + reached]).unique()
        if len(grown) == len(codes):
            break
        codes = grown
    return torch.stack([codes // max(num_nodes, 1), codes % max(num_nodes, 1)])


class EdgeSubgraphs:
    """Subgraphs of all edges (a, b): the nodes within ``num_hops`` around a, and the edges between them."""

    def __init__(self, edge_index: Tensor, num_nodes: int, num_hops: int) -> None:
        start, self.node = neighborhoods(edge_index, num_nodes, num_hops)
        counts = torch.bincount(start, minlength=num_nodes)
        self.sizes = counts[edge_index[0]]  # nodes of each subgraph (E,)
        self.first = (counts.cumsum(0) - counts)[edge_index[0]]  # where they begin in `node` (E,)
        self.num_nodes, self.lists = num_nodes, _TargetLists(edge_index, num_nodes)

    def select(self, edges: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Return the edge (counted from the first of these) and the node of each row, and the edges between the rows.

        Shapes: returns (M,), ascending, (M,) and (2, L).
        """
        edge, place = _spread(self.sizes[edges])
        member = self.node[self.first[edges][edge] + place]
        row, reached = self.lists.steps(member)
        codes, targets = edge * self.num_nodes + member, edge[row] * self.num_nodes + reached  # codes increase
        target = torch.searchsorted(codes, targets).clamp(max=max(len(codes) - 1, 0))
        inside = codes[target] == targets
        return edge, member, torch.stack([row[inside], target[inside]])

    def blocks(self, num_rows: int) -> list[slice]:
        """Return all edges in slices whose subgraphs have about ``num_rows`` nodes together."""
        lengths = torch.bincount((self.sizes.cumsum(0) - self.sizes) // num_rows).tolist()
        ends = list(itertools.accumulate(filter(None, lengths)))
        return [slice(*pair) for pair in zip([0, *ends], ends, strict=False)]


class _TargetLists:
    def __init__(self, edge_index: Tensor, num_nodes: int) -> None:
        self.targets = edge_index[1][edge_index[0].argsort(stable=True)]
        self.counts = torch.bincount(edge_index[0], minlength=num_nodes)
        self.first = self.counts.cumsum(0) - self.counts

    def steps(self, node: Tensor) -> tuple[Tensor, Tensor]:
        """Return the edges that leave each of some nodes: the row of ``node``, and the target: (M,) -> (L,), (L,)."""
        row, place = _spread(self.counts[node])
        return row, self.targets[self.first[node][row] + place]


def _spread(sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return group and place in the group of each member of groups of these sizes: (G,) -> (M,), (M,)."""
    group = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)
    first = sizes.cumsum(0) - sizes
    return group, torch.arange(len(group), device=sizes.device) - first[group]


class I2GINEncoder(nn.Module):
    r"""Make features of the pairs of nodes that edges join from the subgraphs around these edges.

    .. math::
        h_v^0 &= W_0 [P_{va}, P_{vb}] + b_0 \\
        h_v^{l+1} &= h_v^l + \mathrm{BN}\Big(\mathrm{MLP}\big((1 + \epsilon) h_v^l + \sum_{u \to v} h_u^l\big)\Big) \\
        p_{ab} &= W \, \mathrm{BN}\big(\textstyle\sum_v h_v^L\big)

    for the nodes v of the subgraph of the edge (a, b), with the random walk probabilities P of `RRWP`; 0 for pairs
    without an edge. A repeated edge adds its sum once more. What ``batch.pair_attr`` holds already is added.

    Args:
        encoding (RRWP): Its values are precomputed, or computed here for each mini-batch.
        dim (int): Width C.
        num_layers (int, optional): L. (default: 5)
        num_hops (int, optional): Radius of the subgraphs. (default: 4)

    Shapes: batch.edge_index (2, E), batch.rrwp (P, K) -> batch.pair_attr (P, C) of all P = sum n^2 pairs.
    """

    def __init__(self, encoding: RRWP, dim: int, *, num_layers: int = 5, num_hops: int = 4) -> None:
        super().__init__()
        self.encoding, self.num_hops = encoding, num_hops
        self.first = nn.Linear(2 * encoding.num_channels, dim)
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim)) for _ in range(num_layers)
        )
        self.epsilons = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(num_layers))
        batch_norm = NORM_LAYERS["batch_norm"]
        self.norms = nn.ModuleList(batch_norm(dim) for _ in range(num_layers))
        self.pool_norm = batch_norm(dim)
        self.last = nn.Linear(dim, dim, bias=False)

    def forward(self, batch: Batch) -> Batch:
        """Set ``batch.pair_attr``."""
        batch, ptr = with_rrwp(batch, self.encoding), first_nodes(batch)
        pairs = self.last.weight.new_zeros(len(batch.rrwp), self.last.out_features)
        if batch.edge_index.numel():
            row, values = self._encode_edges(batch.edge_index, batch.rrwp, ptr)
            pairs = pairs.index_copy(0, row, values.to(pairs.dtype))
        batch.pair_attr = pairs if batch.get("pair_attr") is None else batch.pair_attr + pairs
        return batch

    def _encode_edges(self, edge_index: Tensor, rrwp: Tensor, ptr: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of the pairs that edges join (E',), and their features (E', C)."""
        with torch.no_grad():
            subgraphs = EdgeSubgraphs(edge_index, int(ptr[-1]), self.num_hops)
            row, pair = pair_rows(ptr, *edge_index).unique(return_inverse=True)
        # norms of a training need all rows at once, and so does one gradient
        whole = self.training or torch.is_grad_enabled() or edge_index.device.type != "cpu"
        sums = self.last.weight.new_zeros(len(row), self.last.in_features)
        for edges in [slice(None)] if whole else subgraphs.blocks(CACHED_ROWS):
            edge, h = self._encode_subgraphs(*subgraphs.select(edges), edge_index[:, edges], rrwp, ptr)
            sums = sums.index_add(0, pair[edges][edge], h.to(sums.dtype))
        return row, self.last(self.pool_norm(sums))

    def _encode_subgraphs(
        self, edge: Tensor, node: Tensor, inside: Tensor, ends: Tensor, rrwp: Tensor, ptr: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the edge of each node of the subgraphs of some edges, and its features: (M,), (M, C)."""
        with torch.no_grad():
            # of query v, key a or b; indexing by [] takes several times as long
            walks = [rrwp.index_select(0, pair_rows(ptr, node, end[edge])) for end in ends]
            edges = WeightedEdges(inside, len(node))
        h = self.first(torch.cat(walks, dim=1).to(self.first.weight.dtype))
        for mlp, epsilon, norm in zip(self.mlps, self.epsilons, self.norms, strict=True):
            h = h + norm(mlp(torch.addcmul(h, h, epsilon.to(h.dtype)) + propagate(h, edges)))
        return edge, h
