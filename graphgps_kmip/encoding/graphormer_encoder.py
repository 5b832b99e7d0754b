"""Graphormer's encodings in a model (Ying et al. 2021): degree embeddings, and a bias of attention for pairs of nodes.

What differs from the public code: the bias also goes to attention over several graphs at once, whose pairs stand in a
flat list; the places behind the end of a path add nothing to the bias; values beyond a table share its last row, where
the public code fails.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from graphgps_kmip.encoding.graph_token import INITIAL_STD, first_nodes
from graphgps_kmip.encoding.graphormer_bias import NO_EDGE, UNREACHABLE
from graphgps_kmip.errors import InputError

GROUP = "posenc_GraphormerBias"


class GraphormerEncoder(nn.Module):
    r"""Add degree embeddings to the node features, and make the attention bias of all pairs inside graphs.

    .. math::
        x_i' &= \mathrm{drop}(x_i + z^-_{\deg^-(i)} + z^+_{\deg^+(i)}) \\
        b_{ij} &= s_{\phi(i, j)} + \frac{1}{|p_{ij}|} \sum_{l \in p_{ij}} t_{type(l)} W_l

    with phi the length of the shortest path, s one number for each head, p_ij the edges of that path (only where edge
    types are asked for), t their embeddings and W one matrix for each place in a path. Of paths as long as the table of
    distances or longer, the first num_spatial_types - 1 edges count: the last matrix, which public checkpoints hold, is
    read with ``pad_paths`` only.

    Args:
        dim: width C of the result.
        dim_x: columns of ``batch.x``, which a linear layer maps to C. None: it is that wide already.
        num_heads: H, heads of the attention that reads the bias.
        num_spatial_types: distances that are told apart; unreachable pairs have a row of their own beside them.
        num_in_degrees: in-degrees that are told apart.
        num_out_degrees: out-degrees that are told apart.
        node_degrees_only: no bias.
        num_edge_types: types of edges in ``batch.path_types``. None: the bias does not read paths; 0: neither, but it
            has the matrices, as in the public code.
        input_dropout: probability to drop a number of the result.
        pad_paths: repeat a fault of the public code: the places behind the end of a path, and those of pairs without
            one, hold edges of type 0.

    Shapes: batch.x (N, dim_x), batch.in_degrees and batch.out_degrees (N,), batch.spatial_types (P,) and
        batch.path_types (P, num_spatial_types - 1) of the P = sum n^2 pairs of all graphs -> batch.x (N, C),
        batch.pair_index (2, P), the attending node first, and batch.pair_attr (P, H).

    Raises:
        ValueError: a table without rows when built; statistics missing, or not of whole graphs, when called.
    """

    def __init__(
        self,
        dim: int,
        dim_x: int | None,
        num_heads: int,
        *,
        num_spatial_types: int | None = None,
        num_in_degrees: int | None = None,
        num_out_degrees: int | None = None,
        node_degrees_only: bool = False,
        num_edge_types: int | None = None,
        input_dropout: float = 0.0,
        pad_paths: bool = False,
    ) -> None:
        super().__init__()
        tables = {"num_in_degrees": num_in_degrees, "num_out_degrees": num_out_degrees}
        if not node_degrees_only:
            tables["num_spatial_types"] = num_spatial_types
        for key, rows in tables.items():
            if rows is None or rows < 1:
                raise InputError(f"{GROUP}.{key} must be 1 or more, got {rows}")
        self.linear_x = nn.Identity() if dim_x is None else nn.Linear(dim_x, dim)
        self.in_degree_encoder = _table(num_in_degrees, dim)
        self.out_degree_encoder = _table(num_out_degrees, dim)
        # One row more, for pairs without a path.
        self.spatial_encoder = None if node_degrees_only else _table(num_spatial_types + 1, num_heads)
        self.edge_encoder = self.place_encoder = None
        self.reads_paths = bool(num_edge_types) and not node_degrees_only and num_spatial_types > 1
        if num_edge_types is not None and not node_degrees_only:
            self.edge_encoder = _table(num_edge_types, num_heads)
            # one matrix (H, H) for each place, in the shape that public checkpoints have
            self.place_encoder = nn.Parameter(torch.randn(num_spatial_types * num_heads**2, 1) * INITIAL_STD)
        self.input_dropout, self.pad_paths = nn.Dropout(input_dropout), pad_paths

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``, and set ``batch.pair_index`` and ``batch.pair_attr``."""
        x = self.linear_x(batch.x.to(self.in_degree_encoder.weight.dtype))
        x = x + _look_up(self.in_degree_encoder, _statistic(batch, "in_degrees"))
        batch.x = self.input_dropout(x + _look_up(self.out_degree_encoder, _statistic(batch, "out_degrees")))
        if self.spatial_encoder is not None:
            batch.pair_index = all_pairs(batch)
            batch.pair_attr = self._bias(batch)
        return batch

    def _bias(self, batch: Batch) -> Tensor:
        distances = _statistic(batch, "spatial_types").long()
        if len(distances) != batch.pair_index.size(1):
            raise InputError(
                f"GraphormerBias: spatial_types are of {len(distances)} pairs of nodes, these graphs have "
                f"{batch.pair_index.size(1)}: it needs whole graphs, set train.sampler to full_batch"
            )
        farthest = self.spatial_encoder.num_embeddings - 2
        rows = distances.clamp(max=farthest).masked_fill(distances == UNREACHABLE, farthest + 1)
        bias = self.spatial_encoder(rows)  # (P, H)
        if not self.reads_paths:
            return bias
        # The number of a row is that of the edges of its paths.
        return bias + self._paths(_statistic(batch, "path_types")) / rows.clamp(min=1)[:, None]

    def _paths(self, types: Tensor) -> Tensor:
        """Return the sum over the edges of each path, (P, L) -> (P, H), without an array (P, L, H)."""
        if types.numel() and int(types.max()) >= self.edge_encoder.num_embeddings:
            raise InputError(
                f"GraphormerBias: a path holds an edge of type {int(types.max())}, but "
                f"dataset.edge_encoder_num_types is {self.edge_encoder.num_embeddings}: raise it"
            )
        heads = self.edge_encoder.embedding_dim
        matrices = self.place_encoder.view(-1, heads, heads)
        tables = (self.edge_encoder.weight @ matrices).to(matrices.dtype)  # (L + 1, types, H)
        total = tables.new_zeros(types.size(0), tables.size(-1))
        if self.pad_paths:  # at every place, and then taken away again where there is an edge
            total, tables = total + tables[:, 0].sum(dim=0), tables - tables[:, :1]
        for place, table in zip(types.unbind(1), tables, strict=False):
            there = (place != NO_EDGE).nonzero().squeeze(1)
            total = total.index_add(0, there, table[place[there].long()])
        return total


def all_pairs(batch: Batch) -> Tensor:
    """Return all pairs (i, j) of nodes of the same graph, graph by graph, row by row, in node numbers of the batch.

    Shapes: graphs of n nodes -> (2, sum of n^2).
    """
    ptr = first_nodes(batch)
    sizes = ptr.diff()
    first = (sizes.square().cumsum(0) - sizes.square()).repeat_interleave(sizes.square())  # of each pair's graph
    place = torch.arange(len(first), device=first.device) - first
    size, start = (values.repeat_interleave(sizes.square()) for values in (sizes, ptr[:-1]))
    return torch.stack([start + place // size, start + place % size])


def _table(rows: int, columns: int) -> nn.Embedding:
    table = nn.Embedding(rows, columns)
    nn.init.normal_(table.weight, std=INITIAL_STD)
    return table


def _look_up(table: nn.Embedding, values: Tensor) -> Tensor:
    return table(values.long().clamp(max=table.num_embeddings - 1))


def _statistic(batch: Batch, name: str) -> Tensor:
    if name not in batch:
        raise InputError(f"GraphormerBias needs {name}, but the graphs do not have it: set {GROUP}.enable True")
    return batch[name]
