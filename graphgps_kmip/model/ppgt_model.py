r"""PPGT (Ma et al.): pre-norm layers for nodes and class tokens, encoder and readout for a `GPSModel`, initial weights.

Initial weights are those of the public code:

* Linear maps: normal, standard deviation 0.02; of the data's own features: torch's default.
* Stems: uniform below :math:`\sqrt{6 / n}` for n inputs in hidden layers, :math:`\sqrt{3 / n}` in the last.
* Embeddings: standard normal. Biases: 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.model.feature_encoding import FeatureEncoder
from graphgps_kmip.model.gps import States
from graphgps_kmip.model.transformer_layers import LayerOutput, attend
from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.ops.row_chunks import RowStage, map_rows
from graphgps_kmip.ops.row_layers import NORM_LAYERS, DropPath


class ResidualBranch(nn.Module):
    r"""Add a branch to the residual stream, :math:`y = x + \gamma \odot \mathrm{droppath}(\mathrm{dropout}(h))`.

    Args:
        dim (int): channels C.
        dropout (float, optional): probability to drop a number of h. (default: 0.0)
        drop_path (float, optional): probability to drop h of a whole graph. (default: 0.0)
        layer_scale (float, optional): start of the vector gamma (Touvron et al. 2021); 0: none. (default: 0.0)

    Shapes: x and h (M, C), ptr (B+1,) or None -> (M, C).
    """

    def __init__(self, dim: int, dropout: float = 0.0, drop_path: float = 0.0, layer_scale: float = 0.0) -> None:
        super().__init__()
        self.dropout, self.drop_path = nn.Dropout(dropout), DropPath(drop_path)
        self.layer_scale = nn.Parameter(torch.full((dim,), float(layer_scale))) if layer_scale else None

    def forward(self, x: Tensor, h: Tensor, ptr: Tensor | None = None) -> Tensor:
        """Return the sum; ptr is the first row of each graph, None: each row is a graph, see `DropPath`."""
        h = self.drop_path(self.dropout(h), ptr)
        return x + h if self.layer_scale is None else torch.addcmul(x, self.layer_scale, h)


@dataclass(frozen=True)
class BranchOptions:
    """Options of the residual branches of a layer (`ResidualBranch`), and of the norm before each (`NORM_LAYERS`)."""

    norm: str = "ada_rms_norm"
    dropout: float = 0.0
    drop_path: float = 0.0
    layer_scale: float = 0.0

    def build(self, dim: int) -> tuple[nn.Module, ResidualBranch]:
        """Return the norm and the branch of C channels."""
        norm = look_up(NORM_LAYERS, self.norm, "ppgt.norm")(dim)
        return norm, ResidualBranch(dim, self.dropout, self.drop_path, self.layer_scale)


def feed_forward(
    dim: int, ratio: float = 2.0, dropout: float = 0.0, act: Callable[[], nn.Module] = nn.GELU
) -> nn.Sequential:
    """Return Linear, activation, dropout, Linear, with ``ratio * dim`` hidden channels: (M, C) -> (M, C)."""
    hidden = int(ratio * dim)
    return nn.Sequential(nn.Linear(dim, hidden), act(), nn.Dropout(dropout), nn.Linear(hidden, dim))


class PPGTLayer(nn.Module):
    r"""One layer of PPGT: attention and a feed-forward network, both normalised before.

    .. math::
        X' &= X + \gamma_1 \odot \mathrm{droppath}(\mathrm{drop}(\mathrm{attention}(\mathrm{norm}(X)))) \\
        X'' &= X' + \gamma_2 \odot \mathrm{droppath}(\mathrm{drop}(\mathrm{FFN}(\mathrm{norm}(X'))))

    The two branches drop graphs independently. Edge features are unchanged.

    Args:
        dim (int): width C.
        attention (Module): ``(x, context) -> x``, or with a state (see `GPSModel`): PPGT's is `SimplifiedL2Attention`.
        ffn (Module): `feed_forward`.
        options (BranchOptions, optional): of both branches. (default: ``BranchOptions()``)

    Shapes: x (N, C), context, states -> (N, C), edge_attr as the context has it, states.
    """

    def __init__(
        self,
        dim: int,
        attention: nn.Module,
        ffn: nn.Module,
        options: BranchOptions = BranchOptions(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__()
        self.attention = nn.ModuleList([attention])  # a list: read by GPSModel
        self.attention_norm, self.attention_branch = options.build(dim)
        self.ffn, (self.ffn_norm, self.ffn_branch) = ffn, options.build(dim)

    def forward(self, x: Tensor, context: GraphContext, states: States = ()) -> LayerOutput:
        """Return new node features, the edge features and the states."""
        h, states = attend(self.attention[0], self.attention_norm(x), context, states)
        x = self.attention_branch(x, h, context.ptr)
        return self.ffn_branch(x, self.ffn(self.ffn_norm(x)), context.ptr), context.edge_attr, states


class ClassAttentionLayer(nn.Module):
    r"""One layer of class attention (Touvron et al. 2021, CaiT): a token of each graph reads the nodes of its graph.

    As `PPGTLayer`; keys and values are the nodes, not normalised. The attention is `ClassAttention`.

    Shapes: token (B, C), x (N, C), context -> (B, C).
    """

    def __init__(
        self,
        dim: int,
        attention: nn.Module,
        ffn: nn.Module,
        options: BranchOptions = BranchOptions(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__()
        self.attention, (self.attention_norm, self.attention_branch) = attention, options.build(dim)
        self.ffn, (self.ffn_norm, self.ffn_branch) = ffn, options.build(dim)

    def forward(self, token: Tensor, x: Tensor, context: GraphContext) -> Tensor:
        """Return the new token of each graph."""
        token = self.attention_branch(token, self.attention(self.attention_norm(token), x, context))
        return self.ffn_branch(token, self.ffn(self.ffn_norm(token)))


class PPGTEncoder(nn.Module):
    """Encode the data's features, add structural ones to the nodes, and make features of all pairs of nodes.

    Args:
        features (FeatureEncoder): the data's own node and edge features; without an edge encoder edges have none.
        node_stems (Sequence[Module]): modules ``batch -> batch`` that change ``batch.x`` or set ``batch.class_token``.
        pair_stems (Sequence[Module]): modules ``batch -> batch`` that set or change ``batch.pair_attr``, or with a
            method ``stage(batch)``, which returns a `RowStage` or None.
        mask (Module, optional): module ``batch -> batch`` between features and stems: `NodeMask`. (default: None)

    Shapes: batch -> with x (N, C), pair_attr (P, C') of all P pairs inside graphs or, with sparse RRWP, of those
        of pair_index (2, P), class_token (B, C) if any.
    """

    def __init__(
        self,
        features: FeatureEncoder,
        node_stems: Sequence[nn.Module],
        pair_stems: Sequence[nn.Module],
        mask: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.features, self.mask = features, mask
        self.node_stems, self.pair_stems = nn.ModuleList(node_stems), nn.ModuleList(pair_stems)

    def forward(self, batch: Any) -> Any:
        """Return the batch with encoded nodes and pairs."""
        batch = self.features(batch)
        batch.pair_attr, batch.pair_index = None, None
        if self.features.edge is None:
            batch.edge_attr = None
        if self.mask is not None:
            batch = self.mask(batch)
        for stem in self.node_stems:
            batch = stem(batch)
        stages: list[RowStage] = []
        for stem in (*self.pair_stems, None):  # neighbours that read single pairs run in one pass, chunk by chunk
            stage = stem.stage(batch) if hasattr(stem, "stage") else None
            if stage is not None:
                stages.append(stage)
                continue
            if stages:
                batch.pair_attr, stages = map_rows(stages, len(batch.rrwp)), []
            batch = batch if stem is None else stem(batch)
        return batch


class PPGTReadout(nn.Module):
    """Normalise the nodes after the last layer, let class tokens (B, C) read them, normalise these, and predict."""

    def __init__(
        self,
        norm: nn.Module,
        head: nn.Module,
        class_layers: Sequence[nn.Module] = (),
        class_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.norm, self.head = norm, head
        self.class_layers, self.class_norm = nn.ModuleList(class_layers), class_norm

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return predictions and labels."""
        batch.x = self.norm(batch.x)
        if len(self.class_layers):
            token, context = batch.class_token, GraphContext.from_data(batch)
            for layer in self.class_layers:
                token = layer(token, batch.x, context)
            batch.class_token = token if self.class_norm is None else self.class_norm(token)
        return self.head(batch)


STD = 0.02
LINEAR_SLOPE = math.sqrt(5)


def initialise_ppgt(network: nn.Module, encoders: Iterable[nn.Module], stems: Iterable[nn.Module]) -> None:
    """Set the initial weights of a network; encoders are those of the data's features, stems chains of linear maps."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=STD)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)
    for encoder in encoders:
        for linear in linear_maps(encoder):
            nn.init.kaiming_uniform_(linear.weight, a=LINEAR_SLOPE)
    for stem in stems:
        *hidden, last = linear_maps(stem)
        for linear in hidden:
            nn.init.kaiming_uniform_(linear.weight, a=0)
        nn.init.kaiming_uniform_(last.weight, a=1)


def linear_maps(module: nn.Module) -> list[nn.Linear]:
    """Return the linear maps of a module, itself included, in the order in which they were defined."""
    return [linear for linear in module.modules() if isinstance(linear, nn.Linear)]
