"""Metrics (registry kind ``metric``) of a whole split: classification, regression, link ranking (MRR, Hits@k), words.

They equal scikit-learn's (ogb's for several labels). Area under the ROC curve and average precision are not those of
torchmetrics, whose float32 sigmoid of logits ties confident scores.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from graphgps_kmip.registry import register

WORDS = 5_000  # of ogbg-code2's vocabulary, after which come unknown and end
UNKNOWN, END = WORDS, WORDS + 1

Metric = Callable[[Tensor, Tensor, float], float]  # score, labels, threshold -> value over a whole split


def load_torchmetric(name: str, **fixed: Any) -> Callable[..., Tensor]:
    """Return a function of ``torchmetrics.functional``, which is imported at the first call: that takes a second."""

    def metric(*args: Any, **options: Any) -> Tensor:
        import torchmetrics.functional

        return attrgetter(name)(torchmetrics.functional)(*args, **fixed, **options)

    return metric


def _sorted_parts(score: Tensor, true: Tensor) -> tuple[np.ndarray, np.ndarray]:
    score, true = score.cpu().numpy(), true.bool().cpu().numpy()
    return np.sort(score[true]), np.sort(score[~true])


def area_under_roc(score: Tensor, true: Tensor) -> float:
    """Return the probability that a positive is scored above a negative, ties counting a half.

    Shapes: score `(N,)`, true `(N,)` 0 or 1; nan if positives or negatives are absent. O(N log N).
    """
    positive, negative = _sorted_parts(score, true)
    if not (len(positive) and len(negative)):
        return float("nan")
    below = np.searchsorted(negative, positive, "left").sum() + np.searchsorted(negative, positive, "right").sum()
    return float(below / 2 / (len(positive) * len(negative)))


def average_precision(score: Tensor, true: Tensor) -> float:
    """Return the mean over the positives of the precision among all rows scored as high or higher.

    Shapes: score `(N,)`, true `(N,)` 0 or 1; nan if positives or negatives are absent, as ogb has it. O(N log N).
    """
    positive, negative = _sorted_parts(score, true)
    if not (len(positive) and len(negative)):
        return float("nan")
    hits = len(positive) - np.searchsorted(positive, positive, "left")
    misses = len(negative) - np.searchsorted(negative, positive, "left")
    return float((hits / (hits + misses)).mean())


def r2(score: Tensor, true: Tensor) -> float:
    """Share of the variance explained; a constant target gives 1 if it is met exactly, else 0; nan below two rows.

    torchmetrics calls a residual below 1e-4 a perfect fit. Shapes: `(N,)` each.
    """
    if len(true) < 2:
        return float("nan")
    residual, spread = (true - score).square().sum(), (true - true.mean()).square().sum()
    if spread == 0:
        return float(residual == 0)
    return float(1 - residual / spread)


def spearman(score: Tensor, true: Tensor) -> float:
    """Return Spearman's correlation of ranks; nan for a constant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.stats.ConstantInputWarning)  # a constant has no rank order: nan says it
        return float(scipy.stats.spearmanr(true.cpu().numpy(), score.cpu().numpy()).statistic)


def most_probable(pred: Tensor) -> Tensor:
    """Return the number of the most probable word at each place; all probabilities of a split would not fit memory.

    Shapes: (N, L, V) -> (N, L), float32, exact up to 2^24 words.
    """
    return pred.argmax(-1).float()


def f1_of_words(score: Tensor, true: Tensor, _thresh: float) -> float:
    """Return the mean over names of F1 between the set of predicted words and that of true words, as ogb judges.

    Words after the first end do not count. An unknown word is never predicted right, and each unknown one in a true
    name counts as another word. Of true names only the words that the data holds count: ogb counts further ones, too.

    Shapes: (N, L) predicted, (N, L) true -> a number, nan without names.
    """
    predicted, true = _blank_repeats(score.long()), _blank_repeats(true.long(), but=UNKNOWN)
    same = (predicted[:, :, None] == true[:, None, :]) & (predicted < UNKNOWN)[:, :, None]
    total = (predicted < END).sum(1) + (true < END).sum(1)
    return float((2 * same.sum((1, 2)) / total.clamp(min=1)).double().mean())


def _blank_repeats(words: Tensor, but: int = END) -> Tensor:
    """Return the words (N, L) with `END` from the first end on and in place of repeated words other than `but`."""
    words = words.where((words == END).cumsum(1) == 0, END)
    before = (words[:, :, None] == words[:, None, :]).tril(-1).any(2)
    return words.where(~before | (words == but), END)


# Name -> function of a rank, summary.
OF_RANK: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "hits@1": (lambda rank: rank <= 1, "share of positive pairs of rank 1"),
    "hits@3": (lambda rank: rank <= 3, "share of positive pairs of rank 3 or better"),
    "hits@10": (lambda rank: rank <= 10, "share of positive pairs of rank 10 or better"),
    "mrr": (lambda rank: 1 / rank, "mean reciprocal rank of the positive pairs"),
}
# Suffix of the metric's name, column of the score that holds the rank, summary; see EdgeHead.
CANDIDATES = (
    ("", 2, "among all nodes of the graph"),
    ("_filt", 3, "other positive pairs left out"),
    ("_filt_self", 4, "other positive pairs and the node itself left out"),
)


def mean_over_graphs(column: int, value: Callable[[Tensor], Tensor]) -> Metric:
    """Return the metric: mean over graphs of the mean over their positive pairs of ``value(rank)``.

    The rank is in this column of the score, the number of positive pairs of the graph in column 1. Graphs without
    positive pairs are left out (GraphGPS lets them count 0).

    Shapes: score (L, 5), true (L,) 0 or 1 -> a number, nan without positive pairs.
    """

    def metric(score: Tensor, true: Tensor, _thresh: float) -> float:
        positive = score[true == 1].double()
        weight = 1 / positive[:, 1]  # the positive pairs of a graph weigh 1 together
        return float((weight * value(positive[:, column])).sum() / weight.sum())

    return metric


def hits_above(k: int) -> Metric:
    """Return ogb's hits@k: share of the positive pairs that score above the k-th best negative pair of the split.

    It is 1 if there are fewer than k negative pairs, nan without positive ones. Shapes: score (L,), true (L,) 0 or 1.
    """

    def metric(score: Tensor, true: Tensor, _thresh: float) -> float:
        positive, negative = score[true == 1], score[true == 0]
        if not len(positive):
            return float("nan")
        bar = torch.topk(negative, k).values[-1] if len(negative) >= k else score.new_tensor(-torch.inf)
        return float((positive > bar).double().mean())

    return metric


def mrr_among_negatives(score: Tensor, true: Tensor, _thresh: float) -> float:
    """Mean reciprocal rank of each positive pair among it and all negative pairs of the split, ties sharing their mean.

    Shapes: score (L,), true (L,) 0 or 1 -> a number, nan without positive pairs.
    """
    positive, negative = _sorted_parts(score, true)
    above = len(negative) - np.searchsorted(negative, positive, "right")
    ties = np.searchsorted(negative, positive, "right") - np.searchsorted(negative, positive, "left")
    return float((1 / (1 + above + ties / 2)).mean()) if len(positive) else float("nan")


# GraphGPS's rule too: sorting every class of 1e7 rows takes longer than the epoch.
AUC_MAX_ROWS = 10_000_000


def mean_over_labels(metric: Callable[[Tensor, Tensor], float]) -> Metric:
    """Average over the labels for which the metric is defined, each over the rows whose label is not NaN."""

    def mean(score: Tensor, true: Tensor, _thresh: float) -> float:
        values = []
        for column, label in zip(score.reshape(len(score), -1).T, true.reshape(len(true), -1).T, strict=True):
            is_labelled = ~label.isnan()
            if is_labelled.any():
                values.append(metric(column[is_labelled], label[is_labelled].long()))
        return float(torch.tensor(values, dtype=torch.float64).nanmean())

    return mean


def auc_one_vs_rest(score: Tensor, true: Tensor, _thresh: float) -> float:
    """Return the mean over classes of the area under the ROC curve of each one against the rest."""
    if len(score) >= AUC_MAX_ROWS:
        return float("nan")
    values = [area_under_roc(column, true == c) for c, column in enumerate(score.T)]
    return float(torch.tensor(values, dtype=torch.float64).nanmean())


def judge_class(name: str, **options: str) -> Metric:
    """Judge the most probable class by a function of torchmetrics."""
    metric = load_torchmetric(f"classification.{name}", **options)
    return lambda score, true, _thresh: float(
        metric(score.argmax(-1), true, num_classes=score.shape[-1], validate_args=False)
    )


def judge_decision(name: str, **options: Any) -> Metric:
    """Judge the decision `probability > thresh` between two classes by a function of torchmetrics."""
    metric = load_torchmetric(f"classification.{name}", **options)
    return lambda score, true, thresh: float(metric((score > thresh).long(), true, validate_args=False))


def accuracy_multilabel(score: Tensor, true: Tensor, thresh: float) -> float:
    """Return the mean over labels of the share of right decisions."""
    mean = mean_over_labels(lambda s, t: float(((s.sigmoid() > thresh) == t.bool()).float().mean()))
    return mean(score, true, thresh)


def f1_multilabel(score: Tensor, true: Tensor, thresh: float) -> float:
    """Pool the decisions on all labels that are not NaN (micro average), as GraphSAINT does for Yelp."""
    is_labelled, f1 = ~true.isnan(), load_torchmetric("classification.binary_f1_score")
    decision = (score.sigmoid() > thresh)[is_labelled]
    return float(f1(decision.long(), true[is_labelled].long(), validate_args=False))


def mean_over_targets(metric: Callable[[Tensor, Tensor], Tensor | float]) -> Metric:
    """Average over the targets, in float64: the difference of large sums ruins r2 in float32."""

    def mean(score: Tensor, true: Tensor, _thresh: float) -> float:
        columns = zip(score.double().reshape(len(score), -1).T, true.double().reshape(len(true), -1).T, strict=True)
        return float(torch.tensor([float(metric(s, t)) for s, t in columns], dtype=torch.float64).mean())

    return mean


MULTI, BINARY, LABELS = "classification_multi", "classification_binary", "classification_multilabel"
# Name -> forms by task, summary; of all of them larger is better.
METRICS: dict[str, tuple[dict[str, Metric], str]] = {
    "accuracy": (
        {
            MULTI: judge_class("multiclass_accuracy", average="micro"),
            BINARY: judge_decision("binary_accuracy"),
            LABELS: accuracy_multilabel,
        },
        "share of rows that are right (several labels: mean over labels)",
    ),
    "f1": (
        {
            MULTI: judge_class("multiclass_f1_score", average="macro"),
            BINARY: judge_decision("binary_f1_score"),
            LABELS: f1_multilabel,
            "subtoken_prediction": f1_of_words,
        },
        "harmonic mean of precision and recall: macro over classes; of class 1 of two; micro over labels; of words",
    ),
    "precision": ({BINARY: judge_decision("binary_precision")}, "precision of class 1"),
    "recall": ({BINARY: judge_decision("binary_recall")}, "recall of class 1"),
    "auc": (
        {
            MULTI: auc_one_vs_rest,
            BINARY: lambda score, true, _thresh: area_under_roc(score, true),
            LABELS: mean_over_labels(area_under_roc),
            "link_prediction": lambda score, true, _thresh: area_under_roc(score, true),
        },
        "area under the ROC curve: mean over classes (one against the rest) or labels that have both outcomes",
    ),
    "ap": (
        {LABELS: mean_over_labels(average_precision)},
        "exact average precision, mean over labels that have both outcomes",
    ),
    "accuracy-SBM": (
        {
            MULTI: judge_class("multiclass_recall", average="macro"),
            BINARY: judge_decision("multiclass_recall", num_classes=2, average="macro"),
        },
        "mean recall of the classes in labels or predictions",
    ),
    "mIoU": (
        {MULTI: judge_class("multiclass_jaccard_index", average="macro")},
        "mean over the classes in labels or predictions of TP / (TP + FP + FN)",
    ),
}
for _name, (_forms, _summary) in METRICS.items():
    register("metric", _name, _forms, summary=_summary)
for _name, _metric, _maximize, _summary in (
    ("mae", load_torchmetric("mean_absolute_error"), False, "mean absolute error"),
    ("r2", r2, True, "coefficient of determination, mean over targets"),
    ("spearmanr", spearman, True, "Spearman correlation of ranks"),
    ("mse", load_torchmetric("mean_squared_error"), False, "mean squared error"),
    ("rmse", load_torchmetric("mean_squared_error", squared=False), False, "root of mse, mean over targets"),
):
    register("metric", _name, {"regression": mean_over_targets(_metric)}, maximize=_maximize, summary=_summary)
for _suffix, _column, _among in CANDIDATES:
    for _name, (_value, _what) in OF_RANK.items():
        _forms, _here = {"link_ranking": mean_over_graphs(_column, _value)}, ""
        if not _suffix:
            _k = _name.removeprefix("hits@")
            _forms["link_prediction"] = hits_above(int(_k)) if _k.isdecimal() else mrr_among_negatives
            _here = "; of link_pred among the negative pairs of the split"
        register("metric", _name + _suffix, _forms, summary=f"{_what}, {_among}{_here}")
for _k in (20, 50, 100):
    register(
        "metric", f"hits@{_k}", {"link_prediction": hits_above(_k)}, summary=f"positive pairs above {_k - 1} negatives"
    )
