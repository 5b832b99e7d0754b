"""Prediction heads of PPGT for graphs and nodes, ``linear_graph`` and ``linear_node``: norm, MLP, norm of outputs.

They differ from `GraphHead` and `NodeHead` in the width of the hidden layers, and in the norms before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import BatchNorm

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.common.row_layers import NORM_LAYERS
from graphgps_kmip.errors import InputError
from graphgps_kmip.registry import lookup

CLASS_TOKEN = "cls_token"  # pooling: the class token of each graph, which class attention has updated


def linear_mlp(
    dim: int,
    dim_out: int,
    num_layers: int,
    dropout: float = 0.0,
    act: Callable[[], nn.Module] = nn.GELU,
    halve_widths: bool = False,
) -> nn.Sequential:
    """Return ``num_layers`` biased linear maps with activation and dropout in between.

    Hidden layers have max(C, dim_out) channels, or with ``halve_widths`` max(C / 2, dim_out), max(C / 4, dim_out), ...

    Raises:
        ValueError: there is no layer.
    """
    if num_layers < 1:
        raise InputError(f"a head needs at least one layer, got gnn.layers_post_mp {num_layers}: set it to 1 or more")
    parts: list[nn.Module] = []
    for _ in range(num_layers - 1):
        hidden = max(dim // 2 if halve_widths else dim, dim_out)
        parts += [nn.Linear(dim, hidden), act(), nn.Dropout(dropout)]
        dim = hidden
    return nn.Sequential(*parts, nn.Linear(dim, dim_out))


class LinearHead(nn.Module):
    """One prediction per graph or per node: norm and dropout, an MLP, optionally a batch norm of the outputs.

    Args:
        dim (int): width C.
        dim_out (int): number of outputs.
        num_layers (int, optional): linear maps of the MLP. (default: 1)
        pooling (str or None, optional): a registered pooling, or "cls_token": ``batch.class_token`` (B, C); None: one
            prediction per node. (default: "mean")
        dropout (float, optional): probability before the MLP and between its layers. (default: 0.0)
        act (callable, optional): builds the MLP's activation. (default: GELU)
        norm (str, optional): a key of `NORM_LAYERS`, before the MLP. (default: "none")
        halve_widths (bool, optional): see `linear_mlp`. (default: False)
        out_bn (bool, optional): batch norm of the outputs. (default: False)

    Shapes: batch.x (N, C) -> (B, dim_out), or (N, dim_out) without pooling; the labels are ``batch.y``, as they are.
        Where ``batch[f"{batch.split}_mask"]`` divides the nodes of one graph, only its nodes are predicted.

    Raises:
        ValueError: no layer, an unknown pooling or norm; when called: there is no class token.
    """

    def __init__(
        self,
        dim: int,
        dim_out: int,
        num_layers: int = 1,
        pooling: str | None = "mean",
        dropout: float = 0.0,
        act: Callable[[], nn.Module] = nn.GELU,
        *,
        norm: str = "none",
        halve_widths: bool = False,
        out_bn: bool = False,
    ) -> None:
        super().__init__()
        self.level = "node" if pooling is None else "graph"
        self.reads_token = pooling == CLASS_TOKEN
        self.pool = None if pooling in (None, CLASS_TOKEN) else lookup("pooling", pooling).component
        self.norm, self.dropout = look_up(NORM_LAYERS, norm, "post_pooling_norm")(dim), nn.Dropout(dropout)
        self.mlp = linear_mlp(dim, dim_out, num_layers, dropout, act, halve_widths)
        self.out_norm = BatchNorm(dim_out, allow_single_element=True) if out_bn else nn.Identity()

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return predictions and labels of the graphs, or of the nodes."""
        rows, mask = self._rows(batch), self._mask(batch)
        rows, label = (rows, batch.y) if mask is None else (rows[mask], batch.y[mask])
        return self.out_norm(self.mlp(self.dropout(self.norm(rows)))), label

    def _mask(self, batch: Any) -> Tensor | None:
        """Return the nodes of the split at hand, where the nodes of one graph are divided by masks."""
        split = batch.get("split") if self.level == "node" else None
        return None if split is None else batch.get(f"{split}_mask")

    def _rows(self, batch: Any) -> Tensor:
        if self.reads_token:
            token = batch.get("class_token")
            if token is None:
                raise InputError(
                    "model.graph_pooling cls_token: the graphs have no class token: add class_token to "
                    "ppgt.node_features, or take another pooling"
                )
            return token
        return batch.x if self.pool is None else self.pool(batch.x, batch.batch, batch.num_graphs)
