"""SignNet positional encoding (Lim et al. 2022): Laplacian eigenvectors, encoded invariant to their signs."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import GINConv

from graphgps_kmip.encoding.kernel_encoder import append_columns, precomputed
from graphgps_kmip.encoding.laplacian import EigenvectorEncoding
from graphgps_kmip.errors import InputError
from graphgps_kmip.ranges import WIDTH
from graphgps_kmip.registry import register


@register("encoding", "SignNet")
class SignNet(EigenvectorEncoding):
    """Eigenvectors of the Laplacian, invariant to their signs."""

    phi_out_dim: Annotated[int, WIDTH] = 4
    phi_hidden_dim: Annotated[int, WIDTH] = 64
    VECTORS: ClassVar[str] = "eigvecs_sn"
    VALUES: ClassVar[str] = "eigvals_sn"

    def encoder(self, dim: int, dim_x: int | None) -> nn.Module:
        """Return a `SignNetEncoder`."""
        return SignNetEncoder(dim, dim_x, **self.arguments(SignNetEncoder), max_freqs=self.eigen.max_freqs)


class SignNetEncoder(nn.Module):
    """Encode the first eigenvectors of the Laplacian of each graph and append the encoding to the node features.

    p = rho(phi(v_k) + phi(-v_k), k = 1..K) with a GIN phi over the graph's edges. Both signs are separate runs of phi,
    each with its own batch statistics, as in the public code: exactly invariant in evaluation, in training where all
    signs of a batch change together. Eigenvalues are not used.

    The keyword-only arguments are options of the config group ``posenc_SignNet``.

    Args:
        dim, dim_x, dim_pe, pass_as_var: As of `KernelEncoder`.
        model (str, optional): MLP (rho reads K vectors side by side, padding as the eigenvector 0) or DeepSet (rho
            reads their sum over the eigenvectors a graph has). (default: ``"none"``)
        layers (int, optional): GIN layers of phi; 2 are the fewest, also for 1. (default: 3)
        post_layers (int, optional): Linear layers of rho, at least 1. (default: 0)
        max_freqs (int, optional): Eigenvectors K of a node, the config's ``eigen.max_freqs``. (default: 10)
        phi_out_dim (int, optional): Width of phi's result. (default: 4)
        phi_hidden_dim (int, optional): Hidden width of phi and rho. (default: 64)

    Shapes: batch.x (N, dim_x), batch.eigvecs_sn (N, K) -> batch.x (N, C), in the dtype of the weights.

    Raises:
        InputError: an unknown model, too few layers, or no room for features when built; eigenvectors missing or not of
            K columns when called.
    """

    name = "SignNet"

    def __init__(
        self,
        dim: int,
        dim_x: int | None = None,
        *,
        model: str = "none",
        dim_pe: int = 16,
        layers: int = 3,
        post_layers: int = 0,
        max_freqs: int = 10,
        phi_out_dim: int = 4,
        phi_hidden_dim: int = 64,
        pass_as_var: bool = False,
    ) -> None:
        super().__init__()
        if model not in ("MLP", "DeepSet"):
            raise InputError(f"posenc_SignNet.model must be MLP or DeepSet, got {model!r}")
        if post_layers < 1 or layers < 1:
            raise InputError(f"posenc_SignNet needs layers >= 1 and post_layers >= 1, got {layers=}, {post_layers=}")
        if not 1 <= dim_pe < dim:
            raise InputError(f"posenc_SignNet needs 1 <= dim_pe < width {dim}, got {dim_pe=}")
        self.max_freqs, self.pooled, self.pass_as_var = max_freqs, model == "DeepSet", pass_as_var
        self.linear_x = nn.Identity() if dim_x is None else nn.Linear(dim_x, dim - dim_pe)
        self.phi = _GIN(phi_hidden_dim, phi_out_dim, max(layers, 2))
        rho_in = phi_out_dim if self.pooled else phi_out_dim * max_freqs
        self.rho = _mlp([rho_in, *[phi_hidden_dim] * (post_layers - 1), dim_pe])

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        dtype = self.rho[-1].weight.dtype
        vectors = precomputed(batch, "SignNet", "eigvecs_sn", (self.max_freqs,), "eigen.max_freqs").to(dtype)
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
        encoding = self.rho(encoded.reshape(num_nodes, -1))  # (N, dim_pe)
        return append_columns(self, batch, encoding, dtype)


class _GIN(nn.Module):
    """GIN layers with batch norm between them, from one column.

    Shapes: (M, 1) and edges (2, E) -> (M, dim_out).
    """

    def __init__(self, dim: int, dim_out: int, num_layers: int) -> None:
        super().__init__()
        widths = [1, *[dim] * (num_layers - 1), dim_out]
        self.layers = nn.ModuleList(GINConv(_mlp([first, dim, last])) for first, last in pairwise(widths))
        self.norms = nn.ModuleList([nn.Identity(), *[nn.BatchNorm1d(dim) for _ in widths[2:]]])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = layer(norm(x), edge_index)
        return x


def _mlp(widths: list[int]) -> nn.Sequential:
    """Linear layers; ReLU, then batch norm, between them."""
    first = [
        module for one, two in pairwise(widths[:-1]) for module in (nn.Linear(one, two), nn.ReLU(), nn.BatchNorm1d(two))
    ]
    return nn.Sequential(*first, nn.Linear(widths[-2], widths[-1]))
