"""Reference GPS model on general tools: torch_geometric's GPSConv and MessagePassing, trained by a plain loop.

It is what the recipe of GraphGPS (Rampášek et al. 2022) becomes with torch_geometric's tools: messages of every edge
are tensors of their own, summed by aggregation; graphs are padded for `nn.MultiheadAttention`; metrics are computed
from all predictions at the end of the epoch. Weights of our model load into it (`load_ours`). Never to be improved: it
is what `epochs.py` compares with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from sklearn.metrics import accuracy_score, f1_score
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import BatchNorm, GPSConv, MessagePassing, global_mean_pool
from torch_geometric.utils import scatter
from torchmetrics.functional.classification import multiclass_auroc


class ReferenceGatedGCN(MessagePassing):
    """GatedGCN (see `mpnn.GatedGCN`) without the residual of nodes, which GPSConv adds; keeps the edges' update.

    Shapes: x (N, C), edge_index (2, E), edge_attr (E, C) -> (N, C).
    """

    def __init__(self, dim: int) -> None:
        super().__init__(aggr="add")
        self.A, self.B, self.C, self.D, self.E = (nn.Linear(dim, dim) for _ in range(5))
        self.node_norm, self.edge_norm = BatchNorm(dim), BatchNorm(dim)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Return the update of the nodes."""
        mean = self.propagate(edge_index, value=self.B(x), own=self.D(x), other=self.E(x), edge=self.C(edge_attr))
        self.edge_attr = edge_attr + functional.relu(self.edge_norm(self.kept))
        return functional.relu(self.node_norm(self.A(x) + mean))

    def message(self, own_i: Tensor, other_j: Tensor, edge: Tensor) -> Tensor:
        """Return the gates (E, C) and keep what they are the sigmoid of."""
        self.kept = own_i + other_j + edge
        return torch.sigmoid(self.kept)

    def aggregate(self, inputs: Tensor, index: Tensor, value_j: Tensor, dim_size: int | None = None) -> Tensor:
        """Return the mean of the values, weighted by the gates, (N, C)."""
        weighted = scatter(inputs * value_j, index, 0, dim_size, reduce="sum")
        return weighted / (scatter(inputs, index, 0, dim_size, reduce="sum") + 1e-6)


class ReferenceGPS(nn.Module):
    """Linear encoders, layers, and a linear head for each node or for the mean of a graph's nodes.

    Args:
        columns: of nodes and of edges; no columns of edges: one learned vector.
        classes: outputs.
        sizes: width C, attention heads, number of layers.
        attn_dropout: of attention weights; channels are not dropped.
        per_graph: one prediction for each graph.
    """

    def __init__(
        self, columns: tuple[int, int], classes: int, sizes: tuple[int, int, int], attn_dropout: float, per_graph: bool
    ) -> None:
        super().__init__()
        dim, heads, layers = sizes
        self.node = nn.Linear(columns[0], dim)
        self.edge = nn.Linear(columns[1], dim) if columns[1] else nn.Embedding(1, dim)
        self.layers = nn.ModuleList(
            GPSConv(dim, ReferenceGatedGCN(dim), heads, attn_kwargs={"dropout": attn_dropout}) for _ in range(layers)
        )
        self.head, self.per_graph = nn.Linear(dim, classes), per_graph

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return predictions and labels."""
        linear = isinstance(self.edge, nn.Linear)
        x, edges = self.node(batch.x), self.edge(batch.edge_attr if linear else torch.zeros_like(batch.edge_index[0]))
        for layer in self.layers:
            x = layer(x, batch.edge_index, batch.batch, edge_attr=edges)
            edges = layer.conv.edge_attr
        return self.head(global_mean_pool(x, batch.batch) if self.per_graph else x), batch.y


# part of a name in our model -> in this one
RENAMED = {
    "encoder.node.encoder.": "node.",
    "encoder.edge.encoder.": "edge.",
    "head.mlp.0.": "head.",
    ".local.0.": ".conv.",
    ".attention.0.qkv.": ".attn.in_proj_",
    ".attention.0.out.": ".attn.out_proj.",
    ".local_norm.0.norm.": ".norm1.",
    ".attention_norm.0.norm.": ".norm2.",
    ".ffn_norm.norm.": ".norm3.",
    ".ffn.": ".mlp.",
}


def load_ours(model: ReferenceGPS, ours: nn.Module) -> None:
    """Take over the weights of our model; every name must fit."""
    state = {}
    for name, value in ours.state_dict().items():
        for part, other in RENAMED.items():
            name = name.replace(part, other)
        state[name] = value
    model.load_state_dict(state)


def train_epoch(
    model: nn.Module, loader: Iterable, loss: Callable[[Tensor, Tensor], Tensor], optimizer: torch.optim.Optimizer
) -> dict[str, float]:
    """Train on every batch once, and judge all predictions of the epoch together."""
    model.train()
    scores, labels, losses = [], [], []
    for batch in loader:
        optimizer.zero_grad()
        pred, true = model(batch)
        value = loss(pred, true)
        value.backward()
        optimizer.step()
        scores.append(functional.log_softmax(pred, dim=-1).detach().cpu())
        labels.append(true.detach().cpu())
        losses.append(value.item())
    score, true = torch.cat(scores), torch.cat(labels)
    chosen, auc = score.argmax(-1), multiclass_auroc(score.exp(), true, score.size(1), average="macro")
    f1 = f1_score(true, chosen, average="macro", zero_division=0)
    return {"loss": sum(losses) / len(losses), "accuracy": accuracy_score(true, chosen), "f1": f1, "auc": float(auc)}


def weighted_cross_entropy(pred: Tensor, true: Tensor) -> Tensor:
    """Cross entropy with classes weighed by how rare they are in the batch, as GraphGPS does."""
    count = torch.bincount(true, minlength=pred.size(1))
    weight = (len(true) - count).to(pred.dtype) / len(true) * (count > 0)
    return functional.cross_entropy(pred, true, weight)
