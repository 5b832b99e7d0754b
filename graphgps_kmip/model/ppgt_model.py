"""Encoder and readout of PPGT (Ma et al.), which stand around the layers of a `GPSModel`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.common.row_chunks import RowStage, map_rows
from graphgps_kmip.model.feature_encoding import FeatureEncoder


class PPGTEncoder(nn.Module):
    """Encode the data's features, add structural ones to the nodes, and make features of all pairs of nodes.

    Args:
        features (FeatureEncoder): the data's own node and edge features; without an edge encoder edges have none.
        node_stems (Sequence[Module]): modules ``batch -> batch`` that change ``batch.x`` or set ``batch.class_token``.
        pair_stems (Sequence[Module]): modules ``batch -> batch`` that set or change ``batch.pair_attr``; of one with a
            method ``stage(batch)`` this is called instead, which gives a `RowStage`, or None where there is none.
        mask (Module, optional): module ``batch -> batch`` between features and stems, such as `NodeMask`; it has no
            parameters. (default: None)

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
        return self._with_pairs(batch)

    def _with_pairs(self, batch: Any) -> Any:
        """Run the stems of pairs: those next to each other that read single pairs in one pass, chunk by chunk."""
        stages: list[RowStage] = []
        for stem in self.pair_stems:
            stage = stem.stage(batch) if hasattr(stem, "stage") else None
            if stage is not None:
                stages.append(stage)
                continue
            if stages:
                batch.pair_attr, stages = map_rows(stages, len(batch.rrwp)), []
            batch = stem(batch)
        if stages:
            batch.pair_attr = map_rows(stages, len(batch.rrwp))
        return batch


class PPGTReadout(nn.Module):
    """Normalise the nodes behind the last layer, let class tokens read them, and predict.

    Args:
        norm (Module): of nodes, (N, C) -> (N, C).
        head (Module): ``(batch) -> (prediction, label)``.
        class_layers (Sequence[Module], optional): `ClassAttentionLayer`, first layer first; they read
            ``batch.class_token``. (default: ())
        class_norm (Module, optional): of the tokens behind the last of these layers; None: none. (default: None)

    Shapes: batch.x (N, C), batch.class_token (B, C) -> what the head returns.
    """

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
