"""Network of the low-width method (Shirzad et al.), for both stages: whole graphs, and batches of sampled edges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from graphgps_kmip.errors import InputError
from graphgps_kmip.model.gps import States, checkpoint_layer, copy_batch
from graphgps_kmip.model.norms import NORMS
from graphgps_kmip.model.transformer_layers import LayerOutput
from graphgps_kmip.ops.context import GraphContext


class SpexphormerLayer(nn.Module):
    r"""One layer of the score estimator or of the sparse network.

    .. math::
        Y &= \mathrm{norm}(X + \mathrm{drop}(\mathrm{attention}(X))) \\
        X' &= \mathrm{norm}(Y + \mathrm{drop}(W_2 \, \mathrm{drop}(\mathrm{relu}(W_1 Y))))

    Args:
        dim (int): width C.
        attention (Module): ``(x, context, state) -> (x, state)``, or `SampledEdgeAttention`.
        dropout (float, optional): probability, in all three places. (default: 0.0)
        norm (str, optional): a key of `NORMS`; for one per graph a sparse batch is one graph. (default: "batch")

    Shapes: x (N, C), context, states (one) -> (N, C), edge_attr as the context has it, states.
    """

    def __init__(self, dim: int, attention: nn.Module, dropout: float = 0.0, *, norm: str = "batch") -> None:
        super().__init__()
        self.attention = nn.ModuleList([attention])  # a list: read by GPSModel's stack
        self.dropout = nn.Dropout(dropout)
        self.attention_norm, self.ffn_norm = nn.ModuleList([NORMS[norm](dim)]), NORMS[norm](dim)
        self.ffn = nn.Sequential(
            nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(2 * dim, dim), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor, context: GraphContext, states: States) -> LayerOutput:
        """Return new node features, the edge features and the attention's new state."""
        h, state = self.attention[0](x, context, *states)
        return self._update(x, h, context), context.edge_attr, (state,)

    def along_sampled_edges(self, x: Tensor, edges: Tensor, num_targets: int, types: Tensor) -> Tensor:
        """Return new features of the first ``num_targets`` nodes; arguments as of `SampledEdgeAttention`."""
        h = self.attention[0](x, edges, num_targets, types)
        return self._update(x[:num_targets], h, GraphContext.of(None, h))

    def _update(self, x: Tensor, h: Tensor, context: GraphContext) -> Tensor:
        x = self.attention_norm[0](x + self.dropout(h), context)
        return self.ffn_norm(x + self.ffn(x), context)


class SpexphormerModel(nn.Module):
    """Encoder, optional input layers, `SpexphormerLayer`s, prediction head: ``model(batch) -> (pred, true)``.

    A sparse batch is a `torch_geometric.data.Data` with

    * ``x`` (n_0, F): raw features of the nodes that the first layer reads;
    * ``layer_sizes``: list [n_0, ..., n_L], not increasing; the nodes of a layer are the first of the one before;
    * ``layer_edges``: list of L tensors (3, E_l), source (< n_l), target (< n_{l+1}) and kind of each edge;
    * ``y``, and masks of splits, for the n_L nodes after the last layer;
    * ``num_draws`` D, 1 if missing: the core nodes are repeated D times with other edges; predictions are averaged.

    Args:
        encoder, layers, head, pre_mp, recompute: as of `GPSModel`.
        start (Module): ``context -> state`` of the first layer, with the vectors of the kinds of edges in
            ``start.types``: `TypedEdgeStart`.
        sampled (bool, optional): the layers attend along sampled edges, and batches are sparse. (default: False)
    """

    def __init__(
        self,
        encoder: nn.Module,
        start: nn.Module,
        layers: Sequence[SpexphormerLayer],
        head: nn.Module,
        pre_mp: nn.Module | None = None,
        *,
        sampled: bool = False,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.sampled, self.recompute = sampled, recompute
        self.encoder, self.start, self.pre_mp = encoder, start, pre_mp
        self.layers, self.head = nn.ModuleList(layers), head

    def forward(self, batch: Any, split: str | None = None) -> tuple[Tensor, Tensor]:
        """Return predictions and labels; the batch is not changed. For ``split`` see `GPSModel`."""
        sparse = "layer_edges" in batch
        if sparse != self.sampled:
            kinds = ("sampled edges", "whole graphs")
            raise InputError(
                f"the batch holds {kinds[not sparse]}, and the layers (gt.layer_type) are for {kinds[sparse]}: take "
                "Spexphormer for batches of a LayerLoader, ScoreEstimator or Exphormer for whole graphs"
            )
        batch = self.encoder(copy_batch(batch, split))
        if self.pre_mp is not None:
            batch.x = self.pre_mp(batch.x)
        recompute = self.recompute and torch.is_grad_enabled()
        if sparse:
            types = self.start.types.weight
            for layer, edges, targets in zip(self.layers, batch.layer_edges, batch.layer_sizes[1:], strict=True):
                along: Any = layer.along_sampled_edges
                call = partial(checkpoint_layer, layer, call=along) if recompute else along
                batch.x = call(batch.x, edges, targets, types)
        else:
            context = GraphContext.from_data(batch)
            states = (self.start(context),)
            for layer in self.layers:
                call = partial(checkpoint_layer, layer) if recompute else layer
                batch.x, _, states = call(batch.x, context, states)
        pred, true = self.head(batch)
        draws = getattr(batch, "num_draws", 1)
        if not sparse or draws == 1:
            return pred, true
        return pred.unflatten(0, (draws, -1)).mean(0), true[: len(pred) // draws]
