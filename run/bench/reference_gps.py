"""A stand-in for the stock code: the GPS layer on torch_geometric's MessagePassing and a dense batch, trained plainly.

It is what the recipe of GraphGPS (Rampášek et al. 2022) becomes when written with the general tools: messages of every
edge are tensors of their own, summed by aggregation; graphs are padded for `nn.MultiheadAttention`; a plain loop trains
and judges all predictions at the end of the epoch. Names of parameters are those of our modules, so that weights of one
model load into the other (`load_ours`). Never to be improved: it is what `epoch.py` compares with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from sklearn.metrics import accuracy_score, f1_score
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import MessagePassing, global_mean_pool
from torch_geometric.utils import scatter, to_dense_batch
from torchmetrics.functional.classification import multiclass_auroc


class StockGatedGCN(MessagePassing):
    """GatedGCN (see `mpnn.GatedGCN`): gates and messages of the edges, two sums, both updates.

    Shapes: x (N, C), edge_index (2, E), edge_attr (E, C) -> (N, C), (E, C).
    """

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__(aggr="add")
        self.A, self.B, self.C, self.D, self.E = (nn.Linear(dim, dim) for _ in range(5))
        self.node_norm, self.edge_norm = nn.BatchNorm1d(dim), nn.BatchNorm1d(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> tuple[Tensor, Tensor]:
        """Return the updated node and edge features."""
        mean = self.propagate(edge_index, value=self.B(x), own=self.D(x), other=self.E(x), edge=self.C(edge_attr))
        x_new = self.dropout(functional.relu(self.node_norm(self.A(x) + mean)))
        edge_new = self.dropout(functional.relu(self.edge_norm(self.kept)))
        return x + x_new, edge_attr + edge_new

    def message(self, own_i: Tensor, other_j: Tensor, edge: Tensor) -> Tensor:
        """Return the gates (E, C) and keep what they are the sigmoid of."""
        self.kept = own_i + other_j + edge
        return torch.sigmoid(self.kept)

    def aggregate(self, inputs: Tensor, index: Tensor, value_j: Tensor, dim_size: int | None = None) -> Tensor:
        """Return the mean of the values, weighted by the gates, (N, C)."""
        weighted = scatter(inputs * value_j, index, 0, dim_size, reduce="sum")
        return weighted / (scatter(inputs, index, 0, dim_size, reduce="sum") + 1e-6)


class StockLayer(nn.Module):
    """GatedGCN and full attention side by side, each with residual and norm, then the feed-forward network.

    Shapes: batch.x (N, C), batch.edge_attr (E, C), replaced by as many.
    """

    def __init__(self, dim: int, heads: int, dropout: float, attn_dropout: float) -> None:
        super().__init__()
        self.local = StockGatedGCN(dim, dropout)
        self.attention = nn.MultiheadAttention(dim, heads, attn_dropout, batch_first=True)
        self.local_norm, self.attention_norm, self.ffn_norm = (nn.BatchNorm1d(dim) for _ in range(3))
        self.dropout = nn.Dropout(dropout)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, batch: Any) -> Any:
        """Replace node and edge features."""
        x = batch.x
        local, batch.edge_attr = self.local(x, batch.edge_index, batch.edge_attr)
        dense, mask = to_dense_batch(x, batch.batch)  # (B, Nmax, C), (B, Nmax)
        attended = self.attention(dense, dense, dense, key_padding_mask=~mask, need_weights=False)[0][mask]
        h = self.local_norm(local) + self.attention_norm(x + self.dropout(attended))
        h = h + self.dropout(self.down(self.dropout(functional.relu(self.up(h)))))
        batch.x = self.ffn_norm(h)
        return batch


class StockModel(nn.Module):
    """Linear encoders, layers, and a linear head for each node or for the mean of a graph's nodes.

    Args:
        dims: columns of nodes and of edges; no columns of edges: one learned vector.
        classes: outputs.
        dim: width C.
        heads: attention heads.
        layers: how many.
        dropouts: of channels, of attention weights.
        per_graph: one prediction for each graph.
    """

    def __init__(
        self,
        dims: tuple[int, int],
        classes: int,
        dim: int,
        heads: int,
        layers: int,
        dropouts: tuple[float, float],
        per_graph: bool,
    ) -> None:
        super().__init__()
        self.node = nn.Linear(dims[0], dim)
        self.edge = nn.Linear(dims[1], dim) if dims[1] else nn.Embedding(1, dim)
        self.layers = nn.ModuleList(StockLayer(dim, heads, *dropouts) for _ in range(layers))
        self.head, self.per_graph = nn.Linear(dim, classes), per_graph

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return predictions and labels."""
        batch.x = self.node(batch.x)
        linear = isinstance(self.edge, nn.Linear)
        raw = batch.edge_attr if linear else batch.edge_index.new_zeros(batch.edge_index.size(1))
        batch.edge_attr = self.edge(raw)
        for layer in self.layers:
            batch = layer(batch)
        return self.head(global_mean_pool(batch.x, batch.batch) if self.per_graph else batch.x), batch.y


# part of a name in our model -> in the stand-in
RENAMED = {
    "encoder.node.encoder.": "node.",
    "encoder.edge.encoder.": "edge.",
    "head.mlp.0.": "head.",
    ".local.0.": ".local.",
    ".attention.0.qkv.": ".attention.in_proj_",
    ".attention.0.out.": ".attention.out_proj.",
    ".local_norm.0.": ".local_norm.",
    ".attention_norm.0.": ".attention_norm.",
    "norm.norm.module.": "norm.",
    "norm.module.": "norm.",
    ".ffn.0.": ".up.",
    ".ffn.3.": ".down.",
}


def load_ours(model: StockModel, ours: nn.Module) -> None:
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
    chosen = score.argmax(-1)
    return {
        "loss": sum(losses) / len(losses),
        "accuracy": accuracy_score(true, chosen),
        "f1": f1_score(true, chosen, average="macro", zero_division=0),
        "auc": float(multiclass_auroc(score.exp(), true, score.size(1), average="macro")),
    }


def weighted_cross_entropy(pred: Tensor, true: Tensor) -> Tensor:
    """Cross entropy with classes weighed by how rare they are in the batch, as GraphGPS does."""
    count = torch.bincount(true, minlength=pred.size(1))
    weight = (len(true) - count).to(pred.dtype) / len(true) * (count > 0)
    return functional.cross_entropy(pred, true, weight)
