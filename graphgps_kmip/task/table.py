"""The table of losses: ``model.loss_fun`` -> the loss of every task it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch.nn.functional as F

from graphgps_kmip.task.losses import (
    Loss,
    cross_entropy_binary,
    cross_entropy_multi,
    cross_entropy_multilabel,
    cross_entropy_ranked,
    elementwise,
    l1_ranked,
    weighted_cross_entropy_binary,
    weighted_cross_entropy_multi,
)
from graphgps_kmip.task.word_sequences import cross_entropy_words


@dataclass(frozen=True)
class LossRecord:
    """One row of `LOSSES`: a name (`model.loss_fun`), the loss of every task it fits, and one line of help."""

    name: str
    forms: Mapping[str, Loss]
    summary: str


LOSSES = {
    record.name: record
    for record in (
        LossRecord(
            "cross_entropy",
            {
                "classification_multi": cross_entropy_multi,
                "classification_binary": cross_entropy_binary,
                "classification_multilabel": cross_entropy_multilabel,
                "link_ranking": cross_entropy_ranked,
                "link_prediction": cross_entropy_binary,
                "subtoken_prediction": cross_entropy_words,
            },
            "cross entropy; several classes, two classes (one logit), several labels (NaN = unknown), pairs or words",
        ),
        LossRecord(
            "subtoken_cross_entropy",
            {"subtoken_prediction": cross_entropy_words},
            "cross_entropy of words under ogb's name",
        ),
        LossRecord(
            "weighted_cross_entropy",
            {
                "classification_multi": weighted_cross_entropy_multi,
                "classification_binary": weighted_cross_entropy_binary,
            },
            "cross entropy with class weights (n - n_c) / n from the batch",
        ),
        LossRecord(
            "l1",
            {"regression": elementwise(F.l1_loss), "link_ranking": l1_ranked},
            "mean absolute error; of pairs, of the score to its label 0 or 1",
        ),
        LossRecord("smoothl1", {"regression": elementwise(F.smooth_l1_loss)}, "Huber-like L1, quadratic below 1"),
        LossRecord("mse", {"regression": elementwise(F.mse_loss)}, "mean squared error"),
    )
}
