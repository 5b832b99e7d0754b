"""Laplacian positional encodings, LapPE and EquivStableLapPE: eigenvectors of graph Laplacians, random sign flips.

LapPE: Dwivedi et al. 2020 ("Benchmarking Graph Neural Networks") and Kreuzer et al. 2021 (SAN); EquivStableLapPE: Wang
et al. 2022. Eigenvectors have no sign: in training, LapPE flips the sign of each column at random (`random_signs`).

Definitions are those of the public GraphGPS code, with one exception: its "rw" gives a matrix that is not symmetric to
a solver for symmetric ones and so depends on the order of the nodes; ours are the eigenvectors of I - D^-1 A.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import pi
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding.eigensolver import Blocks, smallest_eigenpairs
from graphgps_kmip.encoding.feature_encoders import LinearNodeEncoder
from graphgps_kmip.encoding.kernel_encoder import append_columns, check_width, precomputed, raw_norm, relu_layers
from graphgps_kmip.encoding.positional_encoding import NodeEncoding, PositionalEncoding
from graphgps_kmip.errors import InputError
from graphgps_kmip.ranges import Choice, Registered, whole
from graphgps_kmip.registry import register

EPS = 1e-12
LAPLACIAN_NORMS = ("none", "sym", "rw")


def laplacian_eigenpairs(
    edge_index: Tensor, num_nodes: int, max_freqs: int = 10, laplacian_norm: str = "sym", eigvec_norm: str = "L2"
) -> tuple[Tensor, Tensor]:
    """Return the ``max_freqs`` smallest eigenvalues of a graph's Laplacian and their eigenvectors, trivial ones too.

    Edges count in both directions, once, and self-loops not at all. Eigenvectors are determined up to their sign, and
    where an eigenvalue repeats up to a rotation. No gradients.

    Args:
        edge_index (Tensor): Edges, int64.
        num_nodes (int): N, at least 1; isolated nodes count (eigenvalue 0 with "none", 1 with "sym" and "rw").
        max_freqs (int, optional): K, at least 1; where N < K, the last columns are NaN. (default: 10)
        laplacian_norm (str, optional): "none" D - A, "sym" I - D^-1/2 A D^-1/2, "rw" I - D^-1 A. (default: ``"sym"``)
        eigvec_norm (str, optional): Key of `EIGVEC_NORMS`: how eigenvectors are scaled. (default: ``"L2"``)

    Shapes: (2, E) -> (K,), (N, K), float64, on the CPU.

    Raises:
        InputError: an unknown norm, max_freqs or num_nodes < 1, or an edge to a node that does not exist.
    """
    return laplacian_eigenpairs_of([(edge_index, num_nodes)], max_freqs, laplacian_norm, eigvec_norm)[0]


def laplacian_eigenpairs_of(
    graphs: Sequence[tuple[Tensor, int]], max_freqs: int = 10, laplacian_norm: str = "sym", eigvec_norm: str = "L2"
) -> list[tuple[Tensor, Tensor]]:
    """Return `laplacian_eigenpairs` of every graph (edge_index, num_nodes), small graphs of one size at once."""
    _check(graphs, max_freqs, laplacian_norm, eigvec_norm)
    sizes = np.array([size for _, size in graphs], dtype=np.int64)
    blocks, degree = _laplacians([edges for edges, _ in graphs], sizes, laplacian_norm)
    found: list[tuple[Tensor, Tensor] | None] = [None] * len(graphs)
    for chunk, values, vectors in smallest_eigenpairs(blocks, max_freqs):
        if laplacian_norm == "rw":  # similar to "sym": the same eigenvalues, eigenvectors times D^-1/2
            scale = [degree[slice(*blocks.ptr[graph : graph + 2])].clip(1) ** -0.5 for graph in chunk]
            vectors = vectors * np.stack(scale)[..., None]
        found_here = _scaled(torch.from_numpy(values), torch.from_numpy(vectors), max_freqs, eigvec_norm)
        for graph, one in zip(chunk, zip(*found_here, strict=True), strict=True):
            found[graph] = one
    return found


def _check(graphs: Sequence[tuple[Tensor, int]], max_freqs: int, laplacian_norm: str, eigvec_norm: str) -> None:
    if max_freqs < 1:
        raise InputError(f"eigen.max_freqs must be at least 1, got {max_freqs}")
    if laplacian_norm not in LAPLACIAN_NORMS:
        raise InputError(f"eigen.laplacian_norm must be one of {', '.join(LAPLACIAN_NORMS)}, got {laplacian_norm!r}")
    if eigvec_norm not in EIGVEC_NORMS:
        raise InputError(f"eigen.eigvec_norm must be one of {', '.join(EIGVEC_NORMS)}, got {eigvec_norm!r}")
    for edge_index, size in graphs:
        if size < 1:
            raise InputError("a graph without nodes has no Laplacian: drop it from the data set")
        if edge_index.numel() and (int(edge_index.min()) < 0 or int(edge_index.max()) >= size):
            raise InputError(f"edge_index names node {int(edge_index.max())}, but the graph has {size} nodes")


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


def _scaled(values: Tensor, vectors: Tensor, max_freqs: int, norm: str) -> tuple[Tensor, Tensor]:
    """Clamp eigenvalues at 0, scale eigenvectors, pad with NaN.

    Shapes: (G, k), (G, N, k) -> (G, max_freqs), (G, N, max_freqs).
    """
    values = values.clamp_min(0)
    root = torch.where(values < EPS, 1.0, values.sqrt())[:, None]  # (G, 1, k)
    padding = (0, max_freqs - values.size(1))
    pad = torch.nn.functional.pad
    return pad(values, padding, value=torch.nan), pad(EIGVEC_NORMS[norm](vectors, root), padding, value=torch.nan)


def _over(vectors: Tensor, size: Tensor) -> Tensor:
    return vectors / size.clamp_min(EPS)


def _largest(vectors: Tensor) -> Tensor:
    return vectors.abs().amax(dim=1, keepdim=True)


def _soft_largest(vectors: Tensor) -> Tensor:
    return (vectors.abs().softmax(dim=1) * vectors.abs()).sum(dim=1, keepdim=True)


# Of eigenvectors (G, N, k) and square roots of eigenvalues (G, 1, k), 1 for the eigenvalue 0.
EIGVEC_NORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "L1": lambda vectors, _: _over(vectors, vectors.abs().sum(dim=1, keepdim=True)),
    "L2": lambda vectors, _: _over(vectors, vectors.norm(dim=1, keepdim=True)),
    "abs-max": lambda vectors, _: _over(vectors, _largest(vectors)),
    "wavelength": lambda vectors, root: _over(vectors, _largest(vectors) * root * 2 / pi),
    "wavelength-asin": lambda vectors, root: _over(_over(vectors, _largest(vectors)).asin(), root),
    "wavelength-soft": lambda vectors, root: _over(vectors, _soft_largest(vectors) * root),
}


@dataclass(frozen=True, kw_only=True)
class Eigen:
    """Which eigenvectors: the config group ``eigen``; see `laplacian_eigenpairs`."""

    laplacian_norm: Annotated[str, Choice(LAPLACIAN_NORMS)] = "sym"
    eigvec_norm: Annotated[str, Choice(EIGVEC_NORMS)] = "L2"
    max_freqs: Annotated[int, whole(1, 10_000)] = 10


class EigenvectorEncoding(NodeEncoding):
    """Base class of encodings of Laplacian eigenvectors (N, K), and eigenvalues repeated for each node, (N, K, 1).

    Attributes:
        VECTORS: Attribute that holds the eigenvectors.
        VALUES: Attribute that holds the eigenvalues; empty: they are not kept.
    """

    model: Annotated[str, Registered("of the encoder")] = "none"
    eigen: Eigen = Eigen()
    VECTORS: ClassVar[str] = "EigVecs"
    VALUES: ClassVar[str] = "EigVals"

    def settings(self) -> dict[str, Any]:
        """Return number and norms of the eigenvectors."""
        return vars(self.eigen).copy()

    def attributes(self, graphs: Sequence[Data], settings: Mapping[str, Any]) -> list[dict[str, Tensor]]:
        """Return eigenvectors and eigenvalues, small graphs of one size at once."""
        return eigen_attributes(graphs, settings, self.VECTORS, self.VALUES)


def eigen_attributes(
    graphs: Sequence[Data], settings: Mapping[str, Any], vectors: str, values: str = ""
) -> list[dict[str, Tensor]]:
    """Return eigenvectors, and eigenvalues if they have a name, of each graph."""
    pairs = laplacian_eigenpairs_of([(graph.edge_index, graph.num_nodes) for graph in graphs], **settings)
    found = [{vectors: one} for _, one in pairs]
    # Each node has its graph's eigenvalues, (N, K, 1): a batch needs to know nothing of them.
    for attributes, (known, one) in zip(found, pairs, strict=True) if values else ():
        attributes[values] = known.repeat(len(one), 1)[..., None]
    return found


@register("encoding", "LapPE")
class LapPE(EigenvectorEncoding):
    """Eigenvectors of the Laplacian."""

    def encoder(self, dim: int, dim_x: int | None) -> nn.Module:
        """Return a `LapPEEncoder`."""
        return LapPEEncoder(dim, dim_x, **self.arguments(LapPEEncoder), max_freqs=self.eigen.max_freqs)


@register("encoding", "EquivStableLapPE")
class EquivStableLapPE(PositionalEncoding):
    """Eigenvectors of the Laplacian, for the gates of message passing; takes no columns.

    In the config its Laplacian is that of LapPE, as in the public code.
    """

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
        return eigen_attributes(graphs, settings, "eigvecs_es")

    def encoder(self, dim: int, dim_x: int | None) -> nn.Module:
        """Return an `EquivStableLapPEEncoder` as wide as the layers; behind a linear map if x is raw."""
        given = {"max_freqs": self.eigen.max_freqs, "raw_norm_type": self.raw_norm_type, "vectors": "eigvecs_es"}
        module = EquivStableLapPEEncoder(self.layer_width or dim, **given)
        return module if dim_x is None else nn.Sequential(LinearNodeEncoder(dim_x, dim), module)


class LapPEEncoder(nn.Module):
    """Encode the first eigenvectors of the Laplacian of each graph and append the encoding to the node features.

    p_i = post(sum_k model([v_k(i), lambda_k])) over the eigenpairs a graph has: padding is NaN and left out. In
    training every eigenvector's sign is flipped with probability 1/2 (one draw per batch and column, torch's generator
    of the device), because eigenvectors have no sign.

    The keyword-only arguments are options of the config group ``posenc_LapPE``.

    Args:
        dim, dim_x, dim_pe, pass_as_var: As of `KernelEncoder`.
        model (str, optional): DeepSet (linear layers and ReLU, hidden width 2 dim_pe) or Transformer (among the
            eigenpairs of a node). (default: ``"none"``)
        layers (int, optional): Layers of the model. (default: 3)
        n_heads (int, optional): Attention heads of the Transformer. (default: 4)
        post_layers (int, optional): Linear layers with ReLU after the sum, 0 for none. (default: 0)
        max_freqs (int, optional): Eigenpairs K of a node, the config's ``eigen.max_freqs``. (default: 10)
        raw_norm_type (str, optional): BatchNorm (of eigenpair k over the nodes, padding as zeros) or none. (default:
            ``"none"``)

    Shapes: batch.x (N, dim_x), batch.EigVecs (N, K), batch.EigVals (N, K, 1) -> batch.x (N, C), dtype of the weights.

    Raises:
        InputError: an unknown option, or no room for features when built; eigenvectors missing or not of K columns when
            called.
    """

    name = "LapPE"

    def __init__(
        self,
        dim: int,
        dim_x: int | None = None,
        *,
        model: str = "none",
        dim_pe: int = 16,
        layers: int = 3,
        n_heads: int = 4,
        post_layers: int = 0,
        max_freqs: int = 10,
        raw_norm_type: str = "none",
        pass_as_var: bool = False,
    ) -> None:
        super().__init__()
        if model not in ("DeepSet", "Transformer"):
            raise InputError(f"posenc_LapPE.model must be DeepSet or Transformer, got {model!r}")
        if model == "Transformer" and dim_pe % n_heads:
            raise InputError(f"posenc_LapPE.dim_pe ({dim_pe}) must be a multiple of posenc_LapPE.n_heads ({n_heads})")
        check_width(self.name, dim, dim_x, dim_pe, layers)
        self.max_freqs, self.pass_as_var = max_freqs, pass_as_var
        self.linear_x = nn.Identity() if dim_x is None else nn.Linear(dim_x, dim - dim_pe)
        self.raw_norm = raw_norm("LapPE", raw_norm_type, max_freqs)
        if model == "DeepSet":
            self.pe_encoder = relu_layers([2, *[2 * dim_pe] * (layers - 1), dim_pe])
        else:
            self.linear_in = nn.Linear(2, dim_pe)
            layer = nn.TransformerEncoderLayer(dim_pe, n_heads, batch_first=True)
            # Nested tensors only serve inference, and warn that they are a prototype.
            self.pe_encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.post_mlp = (
            relu_layers([dim_pe, *[2 * dim_pe] * (post_layers - 1), dim_pe]) if post_layers else nn.Identity()
        )

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        dtype = next(self.pe_encoder.parameters()).dtype
        vectors = precomputed(batch, "LapPE", "EigVecs", (self.max_freqs,), "eigen.max_freqs").to(dtype)
        values = precomputed(batch, "LapPE", "EigVals", (self.max_freqs, 1), "eigen.max_freqs").to(dtype)
        empty = vectors.isnan()  # (N, K)
        if self.training:
            vectors = vectors * random_signs(vectors)
        pairs = self.raw_norm(torch.cat([vectors[..., None], values], dim=2).nan_to_num(nan=0.0))  # (N, K, 2)
        if isinstance(self.pe_encoder, nn.TransformerEncoder):
            encoded = self.pe_encoder(self.linear_in(pairs), src_key_padding_mask=empty)
        else:
            encoded = self.pe_encoder(pairs)
        encoding = self.post_mlp(encoded.masked_fill(empty[..., None], 0.0).sum(dim=1))  # (N, dim_pe)
        return append_columns(self, batch, encoding, dtype)


class EquivStableLapPEEncoder(nn.Module):
    """Map the first eigenvectors of each graph's Laplacian to C columns, which layers read beside ``batch.x``.

    Only distances |p_i - p_j| of the result are to be used: they do not change where signs or bases of eigenvectors do,
    up to the linear map. There are no sign flips.

    Args:
        dim (int): Width C.
        max_freqs (int, optional): Eigenvectors K of a node, the config's ``posenc_EquivStableLapPE.eigen.max_freqs``.
            (default: 10)
        raw_norm_type (str, optional): BatchNorm (of the eigenvectors, padding as zeros) or none. (default: ``"none"``)
        vectors (str, optional): The attribute with the eigenvectors. (default: ``"EigVecs"``)

    Shapes: batch.EigVecs (N, K) -> batch.pe_EquivStableLapPE (N, C), in the dtype of the weights.

    Raises:
        InputError: an unknown norm when built; eigenvectors missing or not of K columns when called.
    """

    def __init__(self, dim: int, *, max_freqs: int = 10, raw_norm_type: str = "none", vectors: str = "EigVecs") -> None:
        super().__init__()
        self.max_freqs, self.vectors = max_freqs, vectors
        self.raw_norm = raw_norm("EquivStableLapPE", raw_norm_type, max_freqs)
        self.linear = nn.Linear(max_freqs, dim)

    def forward(self, batch: Batch) -> Batch:
        """Set ``batch.pe_EquivStableLapPE``."""
        vectors = precomputed(batch, "EquivStableLapPE", self.vectors, (self.max_freqs,), "eigen.max_freqs")
        vectors = vectors.to(self.linear.weight.dtype).nan_to_num(nan=0.0)
        batch.pe_EquivStableLapPE = self.linear(self.raw_norm(vectors))
        return batch


def random_signs(vectors: Tensor) -> Tensor:
    """Return -1 or 1 for each column, each with probability 1/2, from the device's generator: (N, K) -> (K,)."""
    return torch.randint(0, 2, vectors.shape[1:], device=vectors.device, dtype=vectors.dtype) * 2 - 1
