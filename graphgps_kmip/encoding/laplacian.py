"""Laplacian positional encodings LapPE, SignNet and EquivStableLapPE: eigenvectors of Laplacians, random sign flips.

Dwivedi et al. 2020, Kreuzer et al. 2021 (SAN); Lim et al. 2022; Wang et al. 2022. As in GraphGPS, but "rw" has the
eigenvectors of I - D^-1 A, where GraphGPS gives a matrix that is not symmetric to a solver for symmetric ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINConv

from graphgps_kmip.encoding.eigensolver import Blocks, smallest_eigenpairs
from graphgps_kmip.encoding.feature_encoders import LinearNodeEncoder
from graphgps_kmip.encoding.positional_encoding import (
    ColumnEncoder,
    NodeEncoding,
    PositionalEncoding,
    raw_norm,
    read_encoding,
    relu_layers,
)
from graphgps_kmip.errors import InputError
from graphgps_kmip.ranges import WIDTH, Choice, Registered, whole
from graphgps_kmip.registry import register

EPS = 1e-12
LAPLACIAN_NORMS = ("none", "sym", "rw")


def laplacian_eigenpairs(
    edge_index: Tensor, num_nodes: int, max_freqs: int = 10, laplacian_norm: str = "sym"
) -> tuple[Tensor, Tensor]:
    """Return the ``max_freqs`` smallest eigenvalues of a graph's Laplacian and their eigenvectors, trivial ones too.

    Edges count in both directions, once, and self-loops not at all. Eigenvectors are determined up to their sign, and
    where an eigenvalue repeats up to a rotation. No gradients.

    Args:
        edge_index (Tensor): Edges, int64.
        num_nodes (int): N, at least 1; isolated nodes count (eigenvalue 0 with "none", 1 with "sym" and "rw").
        max_freqs (int, optional): K, at least 1; where N < K, the last columns are NaN. (default: 10)
        laplacian_norm (str, optional): "none" D - A, "sym" I - D^-1/2 A D^-1/2, "rw" I - D^-1 A. (default: ``"sym"``)

    Shapes: (2, E) -> (K,), (N, K), float64, on the CPU.

    Raises:
        InputError: num_nodes < 1, or an edge to a node that does not exist.
    """
    return compute_eigenpairs([(edge_index, num_nodes)], max_freqs, laplacian_norm)[0]


def compute_eigenpairs(
    graphs: Sequence[tuple[Tensor, int]], max_freqs: int = 10, laplacian_norm: str = "sym"
) -> list[tuple[Tensor, Tensor]]:
    """Return `laplacian_eigenpairs` of every graph (edge_index, num_nodes), small graphs of one size at once."""
    for edge_index, size in graphs:
        if size < 1:
            raise InputError("a graph without nodes has no Laplacian: drop it from the data set")
        if edge_index.numel() and (int(edge_index.min()) < 0 or int(edge_index.max()) >= size):
            raise InputError(f"edge_index names node {int(edge_index.max())}, but the graph has {size} nodes")
    sizes = np.array([size for _, size in graphs], dtype=np.int64)
    blocks, degree = _laplacians([edges for edges, _ in graphs], sizes, laplacian_norm)
    pairs: list[tuple[Tensor, Tensor] | None] = [None] * len(graphs)
    for chunk, values, vectors in smallest_eigenpairs(blocks, max_freqs):
        if laplacian_norm == "rw":  # similar to "sym": the same eigenvalues, eigenvectors times D^-1/2
            scale = [degree[slice(*blocks.ptr[graph : graph + 2])].clip(1) ** -0.5 for graph in chunk]
            vectors = vectors * np.stack(scale)[..., None]
        scaled = _scale(torch.from_numpy(values), torch.from_numpy(vectors), max_freqs)
        for graph, pair in zip(chunk, zip(*scaled, strict=True), strict=True):
            pairs[graph] = pair
    return pairs


def _laplacians(edges: list[Tensor], sizes: np.ndarray, norm: str) -> tuple[Blocks, np.ndarray]:
    """Return the Laplacians of graphs, those of "sym" for "rw", and the degrees of all nodes."""
    ptr = np.append(0, sizes.cumsum())
    total, graph = ptr[-1], np.repeat(np.arange(len(edges)), [index.size(1) for index in edges])
    source, target = torch.cat([index.cpu() for index in edges], dim=1).numpy() + ptr[graph]
    diagonal = np.arange(total) * (total + 1)  # once, so that self-loops are no more than it
    key = np.concatenate([source * total + target, target * total + source, diagonal])
    key.sort()  # np.unique hashes: ten times slower
    row, col = np.divmod(key[np.append(True, key[1:] != key[:-1])], total)
    indptr = np.append(0, np.bincount(row, minlength=total).cumsum())
    degree = np.diff(indptr) - 1.0
    scale = np.ones(total) if norm == "none" else degree.clip(1) ** -0.5
    value = -scale[row] * scale[col]
    value[row == col] = degree if norm == "none" else 1
    return Blocks(ptr, indptr, col - np.repeat(ptr[:-1], sizes)[row], value), degree


def _scale(values: Tensor, vectors: Tensor, max_freqs: int) -> tuple[Tensor, Tensor]:
    """Clamp eigenvalues (G, k) at 0, scale eigenvectors (G, N, k) to length 1, pad with NaN to max_freqs."""
    pad = partial(nn.functional.pad, pad=(0, max_freqs - values.size(1)), value=torch.nan)
    return pad(values.clamp_min(0)), pad(vectors / vectors.norm(dim=1, keepdim=True).clamp_min(EPS))


@dataclass(frozen=True, kw_only=True)
class Eigen:
    """Which eigenvectors: the config group ``eigen``; see `laplacian_eigenpairs`."""

    laplacian_norm: Annotated[str, Choice(LAPLACIAN_NORMS)] = "sym"
    eigvec_norm: Annotated[str, Choice(("L2",))] = "L2"  # eigenvectors of length 1
    max_freqs: Annotated[int, whole(1, 10_000)] = 10


class EigenvectorEncoding(NodeEncoding):
    """Base class of encodings of Laplacian eigenvectors (N, K), and eigenvalues repeated for each node, (N, K, 1).

    Attributes:
        VECTORS: Attribute that holds the eigenvectors.
        VALUES: Attribute that holds the eigenvalues.
    """

    model: Annotated[str, Registered("of the encoder")] = "none"
    eigen: Eigen = Eigen()
    VECTORS: ClassVar[str] = "EigVecs"
    VALUES: ClassVar[str] = "EigVals"

    def settings(self) -> dict[str, Any]:
        """Return number and norms of the eigenvectors."""
        return vars(self.eigen).copy()

    def attributes(self, graphs: Sequence[Data], settings: Mapping[str, Any]) -> list[dict[str, Tensor]]:
        """Return eigenvectors, and the graph's eigenvalues for each node, small graphs of one size at once."""
        return [
            {self.VECTORS: vectors, self.VALUES: values.repeat(len(vectors), 1)[..., None]}
            for values, vectors in _eigenpairs(graphs, settings)
        ]


def _eigenpairs(graphs: Sequence[Data], settings: Mapping[str, Any]) -> list[tuple[Tensor, Tensor]]:
    edges = [(graph.edge_index, graph.num_nodes) for graph in graphs]
    return compute_eigenpairs(edges, settings["max_freqs"], settings["laplacian_norm"])


@register("encoding", "LapPE")
class LapPE(EigenvectorEncoding):
    """Eigenvectors of the Laplacian."""

    def encoder(self, dim: int, dim_x: int | None) -> nn.Module:
        """Return a `LapPEEncoder`."""
        return LapPEEncoder(self, dim, dim_x)


@register("encoding", "SignNet")
class SignNet(EigenvectorEncoding):
    """Eigenvectors of the Laplacian, invariant to their signs."""

    phi_out_dim: Annotated[int, WIDTH] = 4
    phi_hidden_dim: Annotated[int, WIDTH] = 64
    VECTORS: ClassVar[str] = "eigvecs_sn"
    VALUES: ClassVar[str] = "eigvals_sn"

    def encoder(self, dim: int, dim_x: int | None) -> nn.Module:
        """Return a `SignNetEncoder`."""
        return SignNetEncoder(self, dim, dim_x)


@register("encoding", "EquivStableLapPE")
class EquivStableLapPE(PositionalEncoding):
    """Eigenvectors of the Laplacian (that of LapPE), for the gates of message passing; takes no columns."""

    FROM_CONFIG: ClassVar[Mapping[str, str]] = {
        "laplacian_norm": "posenc_LapPE.eigen.laplacian_norm",
        "layer_width": "gnn.dim_inner",
    }
    raw_norm_type: Annotated[str, Registered("BatchNorm or none")] = "none"
    eigen: Eigen = Eigen()
    laplacian_norm: str | None = None
    layer_width: int | None = None

    def settings(self) -> dict[str, Any]:
        """Return number and norms of the eigenvectors."""
        norm = self.laplacian_norm or self.eigen.laplacian_norm
        if norm != self.eigen.laplacian_norm:
            logging.info("EquivStableLapPE takes posenc_LapPE.eigen.laplacian_norm (%s) instead of its own", norm)
        return {**vars(self.eigen), "laplacian_norm": norm}

    def attributes(self, graphs: Sequence[Data], settings: Mapping[str, Any]) -> list[dict[str, Tensor]]:
        """Return the eigenvectors, of which a node may have another number than those of LapPE."""
        return [{"eigvecs_es": vectors} for _, vectors in _eigenpairs(graphs, settings)]

    def encoder(self, dim: int, dim_x: int | None) -> nn.Module:
        """Return an `EquivStableLapPEEncoder` as wide as the layers; after a linear map if x is raw."""
        module = EquivStableLapPEEncoder(self, self.layer_width or dim)
        return module if dim_x is None else nn.Sequential(LinearNodeEncoder(dim_x, dim), module)


class LapPEEncoder(ColumnEncoder):
    """Encode the first eigenvectors of the Laplacian of each graph and append the encoding to the node features.

    p_i = post(sum_k model([v_k(i), lambda_k])) over the eigenpairs a graph has: padding is NaN and left out. In
    training every eigenvector's sign is flipped with probability 1/2, one draw per batch and column.

    Args:
        encoding (LapPE): Options, K in ``eigen.max_freqs``. The model is DeepSet or Transformer (among the eigenpairs
            of a node); post are post_layers linear layers with ReLU, or none; BatchNorm as raw norm is that of each
            eigenpair, padding as zeros.
        dim, dim_x: As of `ColumnEncoder`.

    Shapes: batch.x (N, dim_x), batch.EigVecs (N, K), batch.EigVals (N, K, 1) -> batch.x (N, C), dtype of the weights.

    Raises:
        InputError: an unknown option or no room for features; eigenvectors missing or not of K columns when called.
    """

    def __init__(self, encoding: LapPE, dim: int, dim_x: int | None) -> None:
        model, dim_pe, layers, n_heads = encoding.model, encoding.dim_pe, encoding.layers, encoding.n_heads
        if model not in ("DeepSet", "Transformer"):
            raise InputError(f"posenc_LapPE.model must be DeepSet or Transformer, got {model!r}")
        if model == "Transformer" and dim_pe % n_heads:
            raise InputError(f"posenc_LapPE.dim_pe ({dim_pe}) must be a multiple of posenc_LapPE.n_heads ({n_heads})")
        super().__init__(encoding, dim, dim_x)
        self.max_freqs = encoding.eigen.max_freqs
        self.raw_norm = raw_norm(encoding, self.max_freqs)
        if model == "DeepSet":
            self.pe_encoder = relu_layers([2, *[2 * dim_pe] * (layers - 1), dim_pe])
        else:
            self.linear_in = nn.Linear(2, dim_pe)
            layer = nn.TransformerEncoderLayer(dim_pe, n_heads, batch_first=True)
            # Nested tensors only serve inference, and warn that they are a prototype.
            self.pe_encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        widths = [dim_pe, *[2 * dim_pe] * (encoding.post_layers - 1), dim_pe]
        self.post_mlp = relu_layers(widths) if encoding.post_layers else nn.Identity()

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        vectors = read_encoding(batch, "LapPE", "EigVecs", (self.max_freqs,), "eigen.max_freqs").to(self.dtype)
        values = read_encoding(batch, "LapPE", "EigVals", (self.max_freqs, 1), "eigen.max_freqs").to(self.dtype)
        empty = vectors.isnan()  # (N, K)
        if self.training:
            vectors = vectors * random_signs(vectors)
        pairs = self.raw_norm(torch.cat([vectors[..., None], values], dim=2).nan_to_num(nan=0.0))  # (N, K, 2)
        if isinstance(self.pe_encoder, nn.TransformerEncoder):
            encoded = self.pe_encoder(self.linear_in(pairs), src_key_padding_mask=empty)
        else:
            encoded = self.pe_encoder(pairs)
        return self.append(batch, self.post_mlp(encoded.masked_fill(empty[..., None], 0.0).sum(dim=1)))


def random_signs(vectors: Tensor) -> Tensor:
    """Return -1 or 1 for each column, each with probability 1/2, from the device's generator: (N, K) -> (K,)."""
    return torch.randint(0, 2, vectors.shape[1:], device=vectors.device, dtype=vectors.dtype) * 2 - 1


class EquivStableLapPEEncoder(nn.Module):
    """Map the first eigenvectors of each graph's Laplacian to C columns, of which layers read distances |p_i - p_j|.

    Args:
        encoding (EquivStableLapPE): Options; BatchNorm as raw norm takes padding as zeros.
        dim (int): Width C.

    Shapes: batch.eigvecs_es (N, K) -> batch.pe_EquivStableLapPE (N, C), in the dtype of the weights.

    Raises:
        InputError: an unknown norm when built; eigenvectors missing or not of K columns when called.
    """

    def __init__(self, encoding: EquivStableLapPE, dim: int) -> None:
        super().__init__()
        self.max_freqs = encoding.eigen.max_freqs
        self.raw_norm, self.linear = raw_norm(encoding, self.max_freqs), nn.Linear(self.max_freqs, dim)

    def forward(self, batch: Batch) -> Batch:
        """Set ``batch.pe_EquivStableLapPE``."""
        vectors = read_encoding(batch, "EquivStableLapPE", "eigvecs_es", (self.max_freqs,), "eigen.max_freqs")
        vectors = vectors.to(self.linear.weight.dtype).nan_to_num(nan=0.0)
        batch.pe_EquivStableLapPE = self.linear(self.raw_norm(vectors))
        return batch


class SignNetEncoder(ColumnEncoder):
    """Encode the first eigenvectors of the Laplacian of each graph and append the encoding to the node features.

    p = rho(phi(v_k) + phi(-v_k), k = 1..K) with a GIN phi over the graph's edges. Both signs are separate runs of phi,
    each with its own batch statistics, as in the public code.

    Args:
        encoding (SignNet): Options, K in ``eigen.max_freqs``. The model is MLP (rho reads K vectors side by side,
            padding as the eigenvector 0) or DeepSet (rho reads their sum over the eigenvectors a graph has); phi has
            ``layers`` layers, 2 at least, rho post_layers, 1 at least.
        dim, dim_x: As of `ColumnEncoder`.

    Shapes: batch.x (N, dim_x), batch.eigvecs_sn (N, K) -> batch.x (N, C), in the dtype of the weights.

    Raises:
        InputError: an unknown option or no room for features; eigenvectors missing or not of K columns when called.
    """

    def __init__(self, encoding: SignNet, dim: int, dim_x: int | None) -> None:
        model, post_layers = encoding.model, encoding.post_layers
        if model not in ("MLP", "DeepSet"):
            raise InputError(f"posenc_SignNet.model must be MLP or DeepSet, got {model!r}")
        if post_layers < 1:
            raise InputError(f"posenc_SignNet needs post_layers >= 1, got {post_layers}")
        super().__init__(encoding, dim, dim_x)
        self.max_freqs, self.pooled = encoding.eigen.max_freqs, model == "DeepSet"
        self.phi = _GIN(encoding.phi_hidden_dim, encoding.phi_out_dim, max(encoding.layers, 2))
        rho_in = encoding.phi_out_dim * (1 if self.pooled else self.max_freqs)
        self.rho = _norm_layers([rho_in, *[encoding.phi_hidden_dim] * (post_layers - 1), encoding.dim_pe])

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        vectors = read_encoding(batch, "SignNet", "eigvecs_sn", (self.max_freqs,), "eigen.max_freqs").to(self.dtype)
        empty = vectors.isnan()  # (N, K)
        num_nodes, num_freqs = vectors.shape
        # All eigenvectors at once: K copies of the graph, one below the other.
        rows = vectors.nan_to_num(nan=0.0).T.reshape(-1, 1)  # (K * N, 1)
        offset = torch.arange(num_freqs, device=rows.device).repeat_interleave(batch.edge_index.size(1)) * num_nodes
        edge_index = batch.edge_index.repeat(1, num_freqs) + offset
        encoded = self.phi(rows, edge_index) + self.phi(-rows, edge_index)
        encoded = encoded.view(num_freqs, num_nodes, -1).transpose(0, 1)  # (N, K, phi_out_dim)
        if self.pooled:
            encoded = encoded.masked_fill(empty[..., None], 0.0).sum(dim=1)
        return self.append(batch, self.rho(encoded.reshape(num_nodes, -1)))


class _GIN(nn.Module):
    """GIN layers with batch norm between them, from one column: (M, 1) and edges (2, E) -> (M, dim_out)."""

    def __init__(self, dim: int, dim_out: int, num_layers: int) -> None:
        super().__init__()
        widths = [1, *[dim] * (num_layers - 1), dim_out]
        self.layers = nn.ModuleList(GINConv(_norm_layers([first, dim, last])) for first, last in pairwise(widths))
        self.norms = nn.ModuleList([nn.Identity(), *[nn.BatchNorm1d(dim) for _ in widths[2:]]])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = layer(norm(x), edge_index)
        return x


def _norm_layers(widths: list[int]) -> nn.Sequential:
    hidden = [(nn.Linear(*pair), nn.ReLU(), nn.BatchNorm1d(pair[1])) for pair in pairwise(widths[:-1])]
    return nn.Sequential(*chain(*hidden), nn.Linear(widths[-2], widths[-1]))
