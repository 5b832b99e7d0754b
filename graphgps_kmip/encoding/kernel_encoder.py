"""Encoder modules of precomputed columns: `KernelEncoder` of nodes (RWSE, HKdiagSE, ...), `OnEdges`, shared layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import BatchNorm

from graphgps_kmip.encoding.feature_encoders import read_features
from graphgps_kmip.errors import InputError

NORMS = {"none": nn.Identity, "batchnorm": nn.BatchNorm1d}


class ColumnEncoder(nn.Module):
    """Base class of encoders that append ``dim_pe`` columns to the node features.

    Args:
        name (str): Name of the encoding, for errors and ``batch.pe_<name>``.
        dim (int): Width C of the result.
        dim_x (int or None): Columns of ``batch.x``, which a linear layer maps to C - dim_pe; None: it is that wide.
        dim_pe (int): Width of the encoding in the result.
        layers (int, optional): Layers of the encoder, to be checked. (default: 1)
        pass_as_var (bool, optional): Keep the encoding as ``batch.pe_<name>``, too. (default: ``False``)

    Raises:
        InputError: no room for raw features (after another encoder it may take all columns, as in GraphGPS), no layer.
    """

    def __init__(
        self, name: str, dim: int, dim_x: int | None, dim_pe: int, *, layers: int = 1, pass_as_var: bool = False
    ) -> None:
        super().__init__()
        room = dim - bool(dim_x)
        if not 1 <= dim_pe <= room or layers < 1:
            raise InputError(f"posenc_{name} needs dim_pe from 1 to {room} and layers >= 1, got {dim_pe=}, {layers=}")
        self.name, self.pass_as_var = name, pass_as_var
        self.linear_x = nn.Identity() if dim_x is None else nn.Linear(dim_x, dim - dim_pe)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return next(self.parameters()).dtype

    def append(self, batch: Batch, encoding: Tensor) -> Batch:
        """Replace ``batch.x`` by the mapped features with the encoding (N, dim_pe) appended."""
        batch.x = torch.cat([self.linear_x(batch.x.to(self.dtype)), encoding], dim=1)
        if self.pass_as_var:
            batch[f"pe_{self.name}"] = encoding
        return batch


class KernelEncoder(ColumnEncoder):
    """Map the precomputed values of a node to ``dim_pe`` numbers and append them to its features.

    Args:
        name (str): Name of the encoding, RWSE for one; the values are read from ``batch.pestat_<name>``.
        num_columns (int): K, their columns.
        dim, dim_x, dim_pe, pass_as_var: As of `ColumnEncoder`.
        model (str): Linear, or mlp (hidden width 2 dim_pe, ReLU after every layer, the last one too).
        layers (int, optional): Linear layers of the MLP. (default: 3)
        raw_norm_type (str, optional): BatchNorm (of the values) or none. (default: ``"none"``)

    Shapes: batch.x (N, dim_x), batch.pestat_<name> (N, K) -> batch.x (N, C), in the dtype of the weights.

    Raises:
        InputError: an unknown option, or no room for features when built; values of other than K columns when called.
    """

    def __init__(
        self,
        name: str,
        num_columns: int,
        dim: int,
        dim_x: int | None = None,
        *,
        model: str = "none",
        dim_pe: int = 16,
        layers: int = 3,
        raw_norm_type: str = "none",
        pass_as_var: bool = False,
    ) -> None:
        if model.lower() not in ("linear", "mlp"):
            raise InputError(f"posenc_{name}.model must be Linear or mlp, got {model!r}")
        super().__init__(name, dim, dim_x, dim_pe, layers=layers, pass_as_var=pass_as_var)
        self.num_columns, self.raw_norm = num_columns, raw_norm(name, raw_norm_type, num_columns)
        hidden = [2 * dim_pe] * (layers - 1)
        linear = model.lower() == "linear"
        self.pe_encoder = nn.Linear(num_columns, dim_pe) if linear else relu_layers([num_columns, *hidden, dim_pe])

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        return self.encode(batch, precomputed(batch, self.name, f"pestat_{self.name}", (self.num_columns,)))

    def encode(self, batch: Batch, values: Tensor) -> Batch:
        """Replace ``batch.x``, with the encoding of values (N, K)."""
        return self.append(batch, self.pe_encoder(self.raw_norm(values.to(self.dtype))))


class OnEdges(nn.Module):
    """Apply a node encoder to edge attributes.

    Args:
        encoder (Module): Reads ``x`` and precomputed values, and replaces ``x``.
        attribute (str): The values that it reads, in the batch ``edge_<attribute>``: torch_geometric goes by names.
        dim_norm (int, optional): Columns of the edge features, which pass a BatchNorm first. (default: ``None``, none)

    Shapes: batch.edge_attr (E, C'), batch.edge_<attribute> (E, K) -> batch.edge_attr (E, C).
    """

    def __init__(self, encoder: nn.Module, attribute: str, dim_norm: int | None = None) -> None:
        super().__init__()
        self.encoder, self.attribute = encoder, attribute
        self.norm = nn.Identity() if dim_norm is None else BatchNorm(dim_norm, allow_single_element=True)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.edge_attr``."""
        edges = Data(x=self.norm(read_features(batch, "edge_attr", self.attribute)))
        if f"edge_{self.attribute}" in batch:
            edges[self.attribute] = batch[f"edge_{self.attribute}"]
        batch.edge_attr = self.encoder(edges).x
        return batch


def precomputed(batch: Batch, name: str, attribute: str, shape: tuple[int, ...] | None = None, key: str = "") -> Tensor:
    """Return the precomputed values of an encoding, checked: the shape is that after the first dimension.

    Raises:
        InputError: they are missing or of another shape; names the encoding, and the option ``key`` for the shape.
    """
    if attribute not in batch:
        raise InputError(f"{name} needs {attribute}, but the graphs do not have it: set posenc_{name}.enable True")
    if shape is not None and tuple(batch[attribute].shape[1:]) != shape:
        expected = ", ".join(map(str, ("nodes", *shape)))
        hint = f": check posenc_{name}.{key}" if key else ""
        raise InputError(f"{attribute} must be ({expected}), got {tuple(batch[attribute].shape)}{hint}")
    return batch[attribute]


def relu_layers(widths: Sequence[int]) -> nn.Sequential:
    """Return linear layers from each width to the next, with ReLU after every one, the last one too."""
    return nn.Sequential(*[module for pair in pairwise(widths) for module in (nn.Linear(*pair), nn.ReLU())])


def raw_norm(name: str, kind: str, num_columns: int) -> nn.Module:
    """Return the norm of the precomputed values of an encoding: ``posenc_<name>.raw_norm_type``, in any capitals."""
    if kind.lower() not in NORMS:
        raise InputError(f"posenc_{name}.raw_norm_type must be BatchNorm or none, got {kind!r}")
    return NORMS[kind.lower()](num_columns)
