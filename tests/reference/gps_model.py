"""Reference models on general tools: torch_geometric's GPSConv and MessagePassing, trained by a plain loop.

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
from torch_geometric.nn import BatchNorm, GINEConv, GPSConv, MessagePassing, global_mean_pool
from torch_geometric.utils import scatter
from torchmetrics.functional import r2_score, spearman_corrcoef
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
        mean = self.propagate(edge_index, value=self.B(x), target=self.D(x), other=self.E(x), edge=self.C(edge_attr))
        self.edge_attr = edge_attr + functional.relu(self.edge_norm(self.gate_input))
        return functional.relu(self.node_norm(self.A(x) + mean))

    def message(self, target_i: Tensor, other_j: Tensor, edge: Tensor) -> Tensor:
        """Return the gates (E, C) and keep what they are the sigmoid of."""
        self.gate_input = target_i + other_j + edge
        return torch.sigmoid(self.gate_input)

    def aggregate(self, inputs: Tensor, index: Tensor, value_j: Tensor, dim_size: int | None = None) -> Tensor:
        """Return the mean of the values, weighted by the gates, (N, C)."""
        weighted = scatter(inputs * value_j, index, 0, dim_size, reduce="sum")
        return weighted / (scatter(inputs, index, 0, dim_size, reduce="sum") + 1e-6)


class ReferenceGINE(GINEConv):
    """GINE with the inner network of GraphGPS.

    Shapes: x (N, C), edge_index (2, E), edge_attr (E, C) -> (N, C).
    """

    def __init__(self, dim: int) -> None:
        super().__init__(nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)))
        self.register_buffer("eps", torch.zeros(1), persistent=False)  # ours has none

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Return the update of the nodes; edge features stay."""
        self.edge_attr = edge_attr
        return super().forward(x, edge_index, edge_attr)


class ReferenceExphormer(nn.Module):
    """Exphormer attention as its public code computes it: every edge has queries, keys and edge keys of its own.

    Shapes: x (N, C), edge_index (2, E), edge_attr (E, C) -> (N, C).
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.edge = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.heads = heads

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Return the weighted means of the values."""
        q, k, v = (linear(x).unflatten(1, (self.heads, -1)) for linear in (self.query, self.key, self.value))
        score = k[edge_index[0]] * q[edge_index[1]] / q.size(-1) ** 0.5  # (E, H, D)
        score = score * self.edge(edge_attr).unflatten(1, (self.heads, -1))
        score = torch.exp(score.sum(-1, keepdim=True).clamp(-5, 5))  # (E, H, 1)
        weighted = scatter(v[edge_index[0]] * score, edge_index[1], 0, len(x), reduce="sum")
        return (weighted / (scatter(score, edge_index[1], 0, len(x), reduce="sum") + 1e-6)).flatten(1)


class ReferenceExphormerLayer(nn.Module):
    """GPSConv's layer with Exphormer attention, which reads the edges of the graph and the expander's.

    Shapes: x (N, C), edge_index (2, E), edge_attr (E, C), wider: edges and features of the attention -> (N, C).
    """

    def __init__(self, dim: int, conv: nn.Module, heads: int) -> None:
        super().__init__()
        self.conv, self.attn = conv, ReferenceExphormer(dim, heads)
        self.norm1, self.norm2, self.norm3 = (BatchNorm(dim) for _ in range(3))
        self.mlp = nn.Sequential(
            nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Dropout(0.0), nn.Linear(2 * dim, dim), nn.Dropout(0.0)
        )

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, wider: tuple[Tensor, Tensor]) -> Tensor:
        """Return the new nodes."""
        local = self.norm1(self.conv(x, edge_index, edge_attr) + x)
        out = local + self.norm2(self.attn(x, *wider) + x)
        return self.norm3(out + self.mlp(out))


class ReferenceConvLayer(nn.Module):
    """A convolution alone, with the residual of nodes.

    Shapes: x (N, C), edge_index (2, E), edge_attr (E, C) -> (N, C).
    """

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Return the new nodes."""
        return x + self.conv(x, edge_index, edge_attr)


CONVOLUTIONS = {"GatedGCN": ReferenceGatedGCN, "GINE": ReferenceGINE}


class ReferenceModel(nn.Module):
    """Linear encoders, layers, and a linear head for each node or for the mean of a graph's nodes.

    Args:
        columns: of nodes and of edges; no columns of edges: one learned vector.
        classes: outputs.
        layer: branches as in gt.layer_type: a message passing layer, alone or with Transformer or Exphormer.
        sizes: width C, attention heads, number of layers.
        attn_dropout: of full attention's weights; channels are not dropped.
        per_graph: one prediction for each graph.
    """

    def __init__(
        self,
        columns: tuple[int, int],
        classes: int,
        layer: str,
        sizes: tuple[int, int, int],
        attn_dropout: float,
        per_graph: bool,
    ) -> None:
        super().__init__()
        dim, heads, layers = sizes
        local, _, self.attention = layer.partition("+")
        self.node = nn.Linear(columns[0], dim)
        self.edge = nn.Linear(columns[1], dim) if columns[1] else nn.Embedding(1, dim)
        self.expander = nn.Embedding(1, dim) if self.attention == "Exphormer" else None
        convolutions = (CONVOLUTIONS[local](dim) for _ in range(layers))
        make = {
            "": ReferenceConvLayer,
            "Transformer": lambda conv: GPSConv(dim, conv, heads, attn_kwargs={"dropout": attn_dropout}),
            "Exphormer": lambda conv: ReferenceExphormerLayer(dim, conv, heads),
        }[self.attention]
        self.layers = nn.ModuleList(map(make, convolutions))
        self.head, self.per_graph = nn.Linear(dim, classes), per_graph

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return predictions and labels."""
        linear = isinstance(self.edge, nn.Linear)
        x, edges = self.node(batch.x), self.edge(batch.edge_attr if linear else torch.zeros_like(batch.edge_index[0]))
        wider = self._wider(batch, edges)
        for layer in self.layers:
            last = {"Transformer": (batch.batch,), "Exphormer": (edges, wider), "": (edges,)}[self.attention]
            options = {"edge_attr": edges} if self.attention == "Transformer" else {}
            x = layer(x, batch.edge_index, *last, **options)
            edges = layer.conv.edge_attr
        return self.head(global_mean_pool(x, batch.batch) if self.per_graph else x), batch.y

    def _wider(self, batch: Any, edges: Tensor) -> tuple[Tensor, Tensor] | None:
        if self.expander is None:
            return None
        more = batch.expander_edge_index
        features = torch.cat([edges, self.expander(torch.zeros_like(more[0]))])
        return torch.cat([batch.edge_index, more], dim=1), features


# part of a name in our model -> in this one
RENAMED = {
    "encoder.node.encoder.": "node.",
    "encoder.edge.encoder.": "edge.",
    "head.mlp.0.": "head.",
    ".local.0.inner.": ".conv.nn.",
    ".local.0.": ".conv.",
    "layers.0.attention.0.initial_state.": "",
    ".attention.0.qkv.": ".attn.in_proj_",
    ".attention.0.out.": ".attn.out_proj.",
    ".attention.0.": ".attn.",
    ".local_norm.0.norm.": ".norm1.",
    ".attention_norm.0.norm.": ".norm2.",
    ".ffn_norm.norm.": ".norm3.",
    ".ffn.": ".mlp.",
}


def load_ours(model: ReferenceModel, ours: nn.Module) -> None:
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
        score = pred if true.is_floating_point() else functional.log_softmax(pred, dim=-1)
        scores.append(score.detach().cpu())
        labels.append(true.detach().cpu())
        losses.append(value.item())
    return {"loss": sum(losses) / len(losses)} | metrics_of(torch.cat(scores), torch.cat(labels))


def metrics_of(score: Tensor, true: Tensor) -> dict[str, float]:
    """Return GraphGPS's metrics of classes, or of numbers."""
    if true.is_floating_point():
        metrics = {"mae": functional.l1_loss, "r2": r2_score, "spearmanr": spearman_corrcoef}
        metrics["mse"] = functional.mse_loss
        return {name: float(metric(score.flatten(), true.flatten())) for name, metric in metrics.items()}
    predicted, auc = score.argmax(-1), multiclass_auroc(score.exp(), true, score.size(1), average="macro")
    f1 = f1_score(true, predicted, average="macro", zero_division=0)
    return {"accuracy": accuracy_score(true, predicted), "f1": f1, "auc": float(auc)}


def weighted_cross_entropy(pred: Tensor, true: Tensor) -> Tensor:
    """Cross entropy with classes weighed by how rare they are in the batch, as GraphGPS does."""
    count = torch.bincount(true, minlength=pred.size(1))
    weight = (len(true) - count).to(pred.dtype) / len(true) * (count > 0)
    return functional.cross_entropy(pred, true, weight)
