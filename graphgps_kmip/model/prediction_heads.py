"""Prediction heads: ``head(batch) -> (pred, true)``, one for each level a label can sit on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import global_add_pool, global_max_pool, global_mean_pool

from graphgps_kmip.errors import InputError
from graphgps_kmip.model.rows import UnitRows


def first_node(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Return the first node of each graph: its token, where it has one."""
    graphs = torch.arange(num_graphs, device=batch.device)
    first, end = torch.searchsorted(batch, graphs), torch.searchsorted(batch, graphs, right=True)
    return torch.cat([x, x.new_zeros(1, x.size(1))])[first.where(first < end, len(x))]


# Each: (x (N, C), batch (N,), number of graphs B) -> (B, C); graphs without nodes give zeros.
POOLINGS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "add": global_add_pool,
    "mean": global_mean_pool,
    "max": global_max_pool,
    "graph_token": first_node,
}


def mlp(
    dim: int,
    dim_out: int,
    num_layers: int,
    dropout: float = 0.0,
    act: Callable[[], nn.Module] = nn.ReLU,
    l2norm: bool = False,
) -> nn.Sequential:
    """``num_layers`` biased linear maps, C -> C -> ... -> dim_out, with activation and dropout in between.

    ``l2norm`` scales each row to length 1 after each activation, as GraphGym's heads always do.
    """
    if num_layers < 1:
        raise InputError(f"a head needs at least one layer, got gnn.layers_post_mp {num_layers}: set it to 1 or more")
    unit = [UnitRows()] if l2norm else []
    hidden = [[nn.Linear(dim, dim), act(), *unit, nn.Dropout(dropout)] for _ in range(num_layers - 1)]
    return nn.Sequential(*(module for block in hidden for module in block), nn.Linear(dim, dim_out))


def _pooling(name: str) -> Callable[[Tensor, Tensor, int], Tensor]:
    if name not in POOLINGS:
        raise InputError(f"unknown model.graph_pooling {name!r}: choose one of {', '.join(POOLINGS)}")
    return POOLINGS[name]


class GraphHead(nn.Module):
    """One prediction per graph: pool the nodes, then an MLP.

    Args:
        dim: width C.
        dim_out: number of outputs.
        num_layers: linear maps of the MLP.
        pooling: a row of `POOLINGS`.
        dropout: probability between the MLP's layers.
        act: builds the MLP's activation.
        input_dropout: dropout before the MLP too, on the pooled nodes.
        l2norm: hidden rows of length 1, see `mlp`.

    Shapes: batch.x (N, C) -> (B, dim_out); the labels are ``batch.y`` as they are.
    """

    level = "graph"

    def __init__(
        self,
        dim: int,
        dim_out: int,
        num_layers: int = 1,
        pooling: str = "mean",
        dropout: float = 0.0,
        act: Callable[[], nn.Module] = nn.ReLU,
        input_dropout: bool = False,
        l2norm: bool = False,
    ) -> None:
        super().__init__()
        self.pool, self.mlp = _pooling(pooling), mlp(dim, dim_out, num_layers, dropout, act, l2norm)
        self.dropout = nn.Dropout(dropout if input_dropout else 0.0)

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return predictions and labels of the graphs."""
        return self.mlp(self.dropout(self.pool(batch.x, batch.batch, batch.num_graphs))), batch.y


class SequenceHead(nn.Module):
    """Several predictions per graph, one for each place of a sequence: pool the nodes, then a linear map per place.

    Args:
        dim: width C.
        dim_out: number V of classes.
        length: number L of places.
        pooling: a row of `POOLINGS`.

    Shapes: batch.x (N, C) -> (B, L, V); the labels are ``batch.y`` (B, L).
    """

    level = "graph"

    def __init__(self, dim: int, dim_out: int, length: int = 5, pooling: str = "mean") -> None:
        super().__init__()
        self.pool = _pooling(pooling)
        self.graph_pred_linear_list = nn.ModuleList(nn.Linear(dim, dim_out) for _ in range(length))  # ogb's name

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return predictions and labels of the graphs."""
        pooled = self.pool(batch.x, batch.batch, batch.num_graphs)
        return torch.stack([linear(pooled) for linear in self.graph_pred_linear_list], dim=1), batch.y


class NodeHead(nn.Module):
    """One prediction per node.

    Args:
        dim: width C.
        dim_out: number of outputs.
        num_layers: linear maps of the MLP.
        dropout: probability between the MLP's layers.
        act: builds the MLP's activation.
        masked: keep the nodes of ``batch[f"{batch.split}_mask"]`` only (one graph whose nodes are divided among
            training, validation and test: the transductive case); False predicts every node (inductive).
        l2norm: hidden rows of length 1, see `mlp`.

    Shapes: batch.x (N, C) -> (N, dim_out), or the masked rows of it; labels alike.
    """

    level = "node"

    def __init__(
        self,
        dim: int,
        dim_out: int,
        num_layers: int = 1,
        dropout: float = 0.0,
        act: Callable[[], nn.Module] = nn.ReLU,
        masked: bool = False,
        l2norm: bool = False,
    ) -> None:
        super().__init__()
        self.mlp, self.masked = mlp(dim, dim_out, num_layers, dropout, act, l2norm), masked

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return predictions and labels of the nodes."""
        if not self.masked:
            return self.mlp(batch.x), batch.y
        mask = batch[f"{batch.split}_mask"]
        return self.mlp(batch.x[mask]), batch.y[mask]
