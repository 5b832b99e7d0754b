"""Registry entries of losses (``model.loss_fun``): the function of every task that a loss fits."""

from __future__ import annotations

import torch.nn.functional as F

from graphgps_kmip.registry import register
from graphgps_kmip.task.losses import (
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

register(
    "loss",
    "cross_entropy",
    {
        "classification_multi": cross_entropy_multi,
        "classification_binary": cross_entropy_binary,
        "classification_multilabel": cross_entropy_multilabel,
        "link_ranking": cross_entropy_ranked,
        "link_prediction": cross_entropy_binary,
        "subtoken_prediction": cross_entropy_words,
    },
    summary="cross entropy; several classes, two classes (one logit), several labels (NaN = unknown), pairs or words",
)
register(
    "loss",
    "subtoken_cross_entropy",
    {"subtoken_prediction": cross_entropy_words},
    summary="cross_entropy of words under ogb's name",
)
register(
    "loss",
    "weighted_cross_entropy",
    {
        "classification_multi": weighted_cross_entropy_multi,
        "classification_binary": weighted_cross_entropy_binary,
    },
    summary="cross entropy with class weights (n - n_c) / n from the batch",
)
register(
    "loss",
    "l1",
    {"regression": elementwise(F.l1_loss), "link_ranking": l1_ranked},
    summary="mean absolute error; of pairs, of the score to its label 0 or 1",
)
register("loss", "smoothl1", {"regression": elementwise(F.smooth_l1_loss)}, summary="Huber-like L1, quadratic below 1")
register("loss", "mse", {"regression": elementwise(F.mse_loss)}, summary="mean squared error")
