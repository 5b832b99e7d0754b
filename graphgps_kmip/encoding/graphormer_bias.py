"""Graphormer encodings (GraphormerBias): degree embeddings, attention bias of shortest paths, and the graph token.

Ying et al. 2021, section 3.1. Differs from the public code: places after the end of a path add nothing, values beyond a
table share its last row, and edges stay between the nodes that they joined when the graph token is inserted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
import scipy
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding.degree_and_heat_kernel import out_degrees
from graphgps_kmip.encoding.positional_encoding import PositionalEncoding, edge_array, read_encoding
from graphgps_kmip.errors import ConfigError, InputError
from graphgps_kmip.ops.context import all_pairs, first_nodes
from graphgps_kmip.ranges import FLAG, NATURAL, whole
from graphgps_kmip.registry import register

Array = np.ndarray
MAX_NODES = 10_000  # of one graph: 1 GB of distances, and its solver takes 1.2 GB more
UNREACHABLE = -1
NO_EDGE = -1
GROUP = "posenc_GraphormerBias"
INITIAL_STD = 0.02  # of Graphormer's tables
Rows = Annotated[int | None, whole(1, 1_000_000)]


@register("encoding", "GraphormerBias")
class GraphormerBias(PositionalEncoding):
    """Embeddings of degrees, an attention bias of shortest paths, a graph token; takes no columns."""

    node_degrees_only: bool = False
    dim_pe: Annotated[int, NATURAL] = 0
    num_spatial_types: Rows = None
    num_in_degrees: Rows = None
    num_out_degrees: Rows = None
    # ours: the bias reads the types of edges on shortest paths; None: if the config says their number
    edge_types: Annotated[bool | None, FLAG] = None
    unread_tables: bool = False  # ours: the tables for edges on paths exist even if nothing reads them
    num_edge_types: int = 0
    num_heads: int = 8
    graphormer_heads: int = 4
    network: str = ""
    input_dropout: float = 0.0
    use_graph_token: bool = False
    encoder_name: str = "GraphormerBias"
    FROM_CONFIG: ClassVar[Mapping[str, str]] = {
        "num_edge_types": "dataset.edge_encoder_num_types",
        "num_heads": "gt.n_heads",
        "graphormer_heads": "graphormer.num_heads",
        "network": "model.type",
        "input_dropout": "graphormer.input_dropout",
        "use_graph_token": "graphormer.use_graph_token",
        "encoder_name": "dataset.node_encoder_name",
    }

    @property
    def heads(self) -> int:
        """Return the heads of the attention that reads the bias."""
        return self.graphormer_heads if self.network == "Graphormer" else self.num_heads

    @property
    def path_tables(self) -> int | None:
        """Return the types of edges on paths; 0: tables that nothing reads, as in the public code; None: no tables."""
        types = None if self.edge_types is False else self.num_edge_types or None
        return 0 if types is None and self.unread_tables else types

    def settings(self) -> dict[str, Any]:
        """Return whether pairs have distances, and of how many edges of a path the types are stored."""
        read = self.edge_types is not False and not self.node_degrees_only and self.num_edge_types > 0
        longest = max((self.num_spatial_types or 1) - 1, 0) if read else 0
        return {"node_degrees_only": self.node_degrees_only, "longest": longest}

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the attributes of a graph on which the values depend."""
        return ("edge_index", "edge_attr") if self.settings()["longest"] else ("edge_index",)

    @staticmethod
    def compute(graph: Data, node_degrees_only: bool, longest: int) -> dict[str, Tensor]:
        """Return degrees, distances of all pairs, and types along paths, the last two if asked for."""
        edges, size = graph.edge_index, graph.num_nodes
        values = {"in_degrees": out_degrees(edges.flip(0), size), "out_degrees": out_degrees(edges, size)}
        if not node_degrees_only:
            values["spatial_types"] = shortest_distances(edges, size)
        if longest:
            values["path_types"] = path_types(edges, size, graph.edge_attr, longest)
        return values

    def encoder(self, dim: int, dim_x: int | None) -> nn.Module:
        """Return a `GraphormerEncoder`, followed by a `GraphToken` if there is one."""
        if self.dim_pe:
            raise ConfigError(f"{GROUP}.dim_pe must be 0, got {self.dim_pe}: it is added to the features")
        if self.edge_types and self.num_edge_types < 1:
            raise ConfigError(f"{GROUP}.edge_types needs dataset.edge_encoder_num_types, the number of types: set it")
        encoder = GraphormerEncoder(self, dim, dim_x)
        if not self.use_graph_token:
            return encoder
        if self.encoder_name.split("+")[-1] != "GraphormerBias":
            raise ConfigError(
                f"graphormer.use_graph_token: in dataset.node_encoder_name {self.encoder_name}, parts after "
                "GraphormerBias have nothing for the token: put it last, or set graphormer.use_graph_token False"
            )
        heads = None if self.node_degrees_only else self.heads
        return nn.Sequential(encoder, GraphToken(dim, heads, self.input_dropout))


def shortest_distances(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return how many edges the shortest path from each node i to each node j has; `UNREACHABLE` where there is none.

    Shapes: edge_index (2, E), directed edges of one graph -> (N * N,), int16, pair (i, j) in row i * N + j.
    """
    return torch.from_numpy(_find_paths(edge_array(edge_index, num_nodes), num_nodes)[0].reshape(-1))


def path_types(edge_index: Tensor, num_nodes: int, edge_types: Tensor, longest: int) -> Tensor:
    """Return the types of the first ``longest`` edges on a shortest path from each node i to each node j.

    Which of several shortest paths it is depends on the order of the nodes; of repeated edges the first one counts.

    Shapes: edge_index (2, E), edge_types (E,) or (E, 1), integers -> (N * N, L), int16, `NO_EDGE` after the end.
    """
    if edge_types.is_floating_point() or edge_types.numel() != edge_index.size(1):
        raise InputError(
            "posenc_GraphormerBias.edge_types needs one integer for each edge, got edge_attr "
            f"{tuple(edge_types.shape)} of {edge_types.dtype}: set it to False"
        )
    types = edge_types.reshape(-1).cpu().numpy()
    if len(types) and (types.min() < 0 or types.max() > np.iinfo(np.int16).max):
        raise InputError(f"edge types must be 0 to {np.iinfo(np.int16).max}, got {types.min()} to {types.max()}")
    source, target = edges = edge_array(edge_index, num_nodes)
    distances, before = _find_paths(edges, num_nodes)
    table = np.full((num_nodes, num_nodes, longest), NO_EDGE, np.int16)
    keys, first = np.unique(source * num_nodes + target, return_index=True)
    types = types[first]
    start, end = np.nonzero(distances > 0)
    node = end.copy()
    while len(node):  # all paths at once, backwards from their ends
        last = before[start, node]
        place = distances[start, node] - 1
        stored = place < longest
        edge = keys.searchsorted(last[stored] * num_nodes + node[stored])
        table[start[stored], end[stored], place[stored]] = types[edge]
        on = place > 0
        start, end, node = start[on], end[on], last[on]
    return torch.from_numpy(table.reshape(-1, longest))


def _find_paths(edges: Array, num_nodes: int) -> tuple[Array, Array]:
    """Return distances, and the node before j on a shortest path from i to j: (N, N), (N, N)."""
    if num_nodes > MAX_NODES:
        raise InputError(
            f"GraphormerBias keeps a number for all pairs of nodes, possible up to {MAX_NODES} nodes, got "
            f"{num_nodes}: set posenc_GraphormerBias.node_degrees_only True"
        )
    adjacency = scipy.sparse.csr_array((np.ones(edges.shape[1]), tuple(edges)), shape=(num_nodes,) * 2)
    adjacency.sum_duplicates()
    distances, before = scipy.sparse.csgraph.shortest_path(
        adjacency, method="D", unweighted=True, return_predecessors=True
    )
    return np.where(np.isinf(distances), UNREACHABLE, distances).astype(np.int16), before.astype(np.int64)


class GraphToken(nn.Module):
    r"""Put one learned node in front of the nodes of each graph: without edges, and with a bias of its own.

    .. math:: x_0 = \mathrm{drop}(t), \qquad b_{0j} = b_{j0} = u

    for all nodes j of the graph and the token itself; u is one number for each head.

    Args:
        dim (int): Width C.
        num_heads (int or None): H, heads of the attention that reads the bias; None: there is no bias.
        dropout (float, optional): Probability to drop a number of t. (default: 0.0)

    Shapes: batch.x (N, C) -> (N + B, C), batch.pair_index (2, P) -> (2, P + 2N + B), batch.pair_attr (P, H) ->
        (P + 2N + B, H); all edge sets get the new numbers of the nodes. Other attributes of nodes stay (N, ...).
    """

    def __init__(self, dim: int, num_heads: int | None, dropout: float = 0.0) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, dim) * INITIAL_STD)
        self.bias = None
        if num_heads is not None:  # (1, H, 1), as in public checkpoints
            self.bias = nn.Parameter(torch.randn(1, num_heads, 1) * INITIAL_STD)
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch: Batch) -> Batch:
        """Insert the nodes; tensors are replaced, none is changed."""
        ptr = first_nodes(batch)
        graphs = torch.arange(len(ptr) - 1, device=ptr.device)
        tokens = ptr[:-1] + graphs  # their numbers, (B,)
        graph = graphs.repeat_interleave(ptr.diff())
        moved = torch.arange(len(graph), device=ptr.device) + graph + 1  # new number of each node, (N,)
        x, values = _spread(batch.x, moved, len(graphs)), self.token.expand(len(graphs), -1)
        batch.x = x.index_copy(0, tokens, self.dropout(values).to(x.dtype))
        if "pe_EquivStableLapPE" in batch:  # gates read it at the ends of edges: never a token's
            batch.pe_EquivStableLapPE = _spread(batch.pe_EquivStableLapPE, moved, len(graphs))
        self._move_edges(batch, moved)
        if self.bias is not None:  # pairs of each token with itself, with every node, and back
            token = tokens[graph]  # of each node
            new = torch.cat([torch.stack(pair) for pair in ((tokens, tokens), (token, moved), (moved, token))], dim=1)
            bias = self.bias.squeeze(2).to(batch.pair_attr.dtype).expand(new.size(1), -1)
            batch.pair_index = torch.cat([moved[batch.pair_index], new], dim=1)
            batch.pair_attr = torch.cat([batch.pair_attr, bias])
        batch.batch, batch.ptr = graphs.repeat_interleave(ptr.diff() + 1), torch.cat([tokens, ptr[-1:] + len(graphs)])
        return batch

    def _move_edges(self, batch: Batch, moved: Tensor) -> None:
        for name in [key for key in batch.keys() if key.endswith("edge_index")]:  # noqa: SIM118 (no mapping)
            batch[name] = moved[batch[name]]


def _spread(rows: Tensor, moved: Tensor, num_tokens: int) -> Tensor:
    return rows.new_zeros(len(rows) + num_tokens, rows.size(1)).index_copy(0, moved, rows)


class GraphormerEncoder(nn.Module):
    r"""Add degree embeddings to the node features, and make the attention bias of all pairs inside graphs.

    .. math::
        x_i' &= \mathrm{drop}(x_i + z^-_{\deg^-(i)} + z^+_{\deg^+(i)}) \\
        b_{ij} &= s_{\phi(i, j)} + \frac{1}{|p_{ij}|} \sum_{l \in p_{ij}} t_{type(l)} W_l

    with phi the length of the shortest path, s one number for each head, p_ij the edges of that path (only where edge
    types are asked for), t their embeddings and W one matrix for each place in a path. Of longer paths the first
    num_spatial_types - 1 edges count; the last matrix is not read: public checkpoints hold it.

    Args:
        encoding (GraphormerBias): Options: how many distances (if reachable), in-degrees and out-degrees are
            distinguished; without a bias with ``node_degrees_only``.
        dim (int): Width C of the result.
        dim_x (int or None): Columns of ``batch.x``, which a linear layer maps to C; None: it is that wide.

    Shapes: batch.x (N, dim_x), batch.in_degrees and batch.out_degrees (N,), batch.spatial_types (P,) and
        batch.path_types (P, num_spatial_types - 1) of the P = sum n^2 pairs of all graphs -> batch.x (N, C),
        batch.pair_index (2, P), the attending node first, and batch.pair_attr (P, H).

    Raises:
        InputError: a table without rows when built; values missing, or not of whole graphs, when called.
    """

    def __init__(self, encoding: GraphormerBias, dim: int, dim_x: int | None) -> None:
        super().__init__()
        biased, heads, types = not encoding.node_degrees_only, encoding.heads, encoding.path_tables
        for key in ("num_in_degrees", "num_out_degrees", *(["num_spatial_types"] if biased else [])):
            if (rows := getattr(encoding, key)) is None or rows < 1:
                raise InputError(f"{GROUP}.{key} must be 1 or more, got {rows}")
        self.linear_x = nn.Identity() if dim_x is None else nn.Linear(dim_x, dim)
        self.in_degree_encoder = _make_table(encoding.num_in_degrees, dim)
        self.out_degree_encoder = _make_table(encoding.num_out_degrees, dim)
        # One row more, for pairs without a path.
        self.spatial_encoder = _make_table(encoding.num_spatial_types + 1, heads) if biased else None
        self.edge_encoder = self.place_encoder = None
        self.reads_paths = bool(types) and biased and encoding.num_spatial_types > 1
        if types is not None and biased:
            self.edge_encoder = _make_table(types, heads)
            # one matrix (H, H) for each place, in the shape that public checkpoints have
            self.place_encoder = nn.Parameter(torch.randn(encoding.num_spatial_types * heads**2, 1) * INITIAL_STD)
        self.input_dropout = nn.Dropout(encoding.input_dropout)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``, and set ``batch.pair_index`` and ``batch.pair_attr``."""
        x = self.linear_x(batch.x.to(self.in_degree_encoder.weight.dtype))
        tables = {"in_degrees": self.in_degree_encoder, "out_degrees": self.out_degree_encoder}
        for name, table in tables.items():
            degrees = read_encoding(batch, "GraphormerBias", name).long()
            x = x + table(degrees.clamp(max=table.num_embeddings - 1))
        batch.x = self.input_dropout(x)
        if self.spatial_encoder is not None:
            batch.pair_index = all_pairs(first_nodes(batch))
            batch.pair_attr = self._bias(batch)
        return batch

    def _bias(self, batch: Batch) -> Tensor:
        distances = read_encoding(batch, "GraphormerBias", "spatial_types").long()
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
        return bias + self._sum_paths(read_encoding(batch, "GraphormerBias", "path_types")) / rows.clamp(min=1)[:, None]

    def _sum_paths(self, types: Tensor) -> Tensor:
        """Return the sum over the edges of each path, (P, L) -> (P, H), without an array (P, L, H)."""
        if types.numel() and int(types.max()) >= self.edge_encoder.num_embeddings:
            raise InputError(
                f"GraphormerBias: a path holds an edge of type {int(types.max())}, but "
                f"dataset.edge_encoder_num_types is {self.edge_encoder.num_embeddings}: raise it"
            )
        heads = self.edge_encoder.embedding_dim
        matrices = self.place_encoder.view(-1, heads, heads)
        tables = (self.edge_encoder.weight @ matrices).to(matrices.dtype)  # (L + 1, types, H)
        total, tables = self._before_edges(tables, types.size(0))
        for place, table in zip(types.unbind(1), tables, strict=False):
            there = (place != NO_EDGE).nonzero().squeeze(1)
            total = total.index_add(0, there, table[place[there].long()])
        return total

    def _before_edges(self, tables: Tensor, num_pairs: int) -> tuple[Tensor, Tensor]:
        """Return the sums (P, H) without any edge, and what each type of edge adds to them at each place."""
        return tables.new_zeros(num_pairs, tables.size(-1)), tables


def _make_table(rows: int, columns: int) -> nn.Embedding:
    table = nn.Embedding(rows, columns)
    nn.init.normal_(table.weight, std=INITIAL_STD)
    return table
