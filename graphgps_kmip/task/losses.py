"""Losses (registry kind ``loss``, ``model.loss_fun``) as (total, weight), which several processes reduce exactly."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.host_copies import counts, host_copy
from graphgps_kmip.registry import register

Reduce = Callable[[Tensor], Tensor]  # sums a tensor over the processes; only class weights need it
Terms = tuple[Tensor, Tensor]  # (total, weight)
Loss = Callable[..., Terms]

HALF = (torch.float16, torch.bfloat16)
NO_WEIGHT = 1e-30  # where nothing counts: 0 / 1e-30 is a finite 0 with finite gradients, and 1e-30 + 1 == 1


def identity(tensor: Tensor) -> Tensor:
    """Return the tensor itself: the sum over the processes of a run that has only one."""
    return tensor


def squeeze(tensor: Tensor) -> Tensor:
    """Drop a trailing dimension of 1, as GraphGym does: `(N, 1) -> (N,)`."""
    return tensor.squeeze(-1) if tensor.ndim > 1 else tensor


def full_precision(pred: Tensor) -> Tensor:
    """Squeeze the model output and raise half precision to float32 (what autocast leaves behind)."""
    return squeeze(pred.float() if pred.dtype in HALF else pred)


def _finish(value: Tensor, weight: Tensor) -> Terms:
    return value.sum(), weight.sum().to(value.dtype).clamp(min=NO_WEIGHT).detach()


def check_shape(true: Tensor, expected: tuple[int, ...], fix: str) -> None:
    """Raise an `InputError` with the fix if labels have another shape than the model output needs."""
    if tuple(true.shape) != expected:
        raise InputError(
            f"The labels have shape {tuple(true.shape)}; this output of the model needs {expected}; {fix}."
        )


def _class_labels(pred: Tensor, true: Tensor, num_classes: int) -> Tensor:
    """Return the labels as int64 `(N,)`, or say what is wrong with them (out of range would crash a GPU)."""
    here, true = squeeze(host_copy(true)), squeeze(true)
    if true.is_floating_point():
        raise InputError(
            f"The labels are {true.dtype}; classification needs integers 0..{num_classes - 1}; convert them with "
            ".long(), or set dataset.task_type to regression or classification_multilabel."
        )
    check_shape(true, (len(pred),), "give one class index a row, and one label a graph or node as the head predicts")
    if ((here < 0) | (here >= num_classes)).any():
        raise InputError(
            f"The labels run from {int(here.min())} to {int(here.max())}; allowed are 0..{num_classes - 1}; renumber "
            "them, or correct the number of classes (the output width of the model)."
        )
    return true.long()


def _check_multi(pred: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    pred = full_precision(pred)
    if pred.ndim != 2:
        raise InputError(
            f"The model gives {tuple(pred.shape)}; several classes need (rows, classes) with at least 2 classes; "
            "set the output width to the number of classes."
        )
    return pred, _class_labels(pred, true, pred.shape[1])


def _check_binary(pred: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    pred = full_precision(pred)
    if pred.ndim != 1:
        raise InputError(f"The model gives {tuple(pred.shape)}; two classes need one logit a row; set its width to 1.")
    return pred, _class_labels(pred, true, 2)


def _check_real(pred: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    pred, true = full_precision(pred), squeeze(true)
    check_shape(true, tuple(pred.shape), "store y as (rows, targets), as wide as the output of the model")
    return pred, true.to(pred.dtype)


def class_weights(true: Tensor, num_classes: int, all_reduce: Reduce = identity) -> Tensor:
    """Weigh the classes by their share of the global batch: `w_c = (n - n_c) / n`, 0 for a class that is absent.

    Shapes: true `(N,)` in 0..C-1 -> `(C,)` float64.
    """
    count = all_reduce(counts(true, num_classes)).double()
    total = count.sum().clamp(min=1)
    return (total - count) / total * (count > 0)


def cross_entropy_multi(pred: Tensor, true: Tensor, all_reduce: Reduce = identity) -> Terms:  # noqa: ARG001
    """Negative log-likelihood of the log-softmax: pred `(N, C)`, true `(N,)` in 0..C-1."""
    pred, true = _check_multi(pred, true)
    return _finish(F.cross_entropy(pred, true, reduction="none"), torch.ones_like(true))


def cross_entropy_binary(pred: Tensor, true: Tensor, all_reduce: Reduce = identity) -> Terms:  # noqa: ARG001
    """Binary cross entropy of one logit a row: pred `(N,)` or `(N, 1)`, true 0 or 1."""
    pred, true = _check_binary(pred, true)
    value = F.binary_cross_entropy_with_logits(pred, true.to(pred.dtype), reduction="none")
    return _finish(value, torch.ones_like(true))


def cross_entropy_ranked(pred: Tensor, true: Tensor, all_reduce: Reduce = identity) -> Terms:
    """Binary cross entropy of the first column, the logits; the others hold ranks: pred `(L, 5)`, true 0 or 1."""
    return cross_entropy_binary(pred[:, 0], true, all_reduce)


def l1_ranked(pred: Tensor, true: Tensor, all_reduce: Reduce = identity) -> Terms:  # noqa: ARG001
    """Distance of the first column to the label, 0 or 1, as Exphormer's file of PCQM-Contact asks: pred `(L, 5)`."""
    pred, true = _check_binary(pred[:, 0], true)
    return _finish((pred - true).abs(), torch.ones_like(true))


def cross_entropy_multilabel(pred: Tensor, true: Tensor, all_reduce: Reduce = identity) -> Terms:  # noqa: ARG001
    """Binary cross entropy over all labels but the unknown: pred `(N, L)`, true `(N, L)` in {0, 1, NaN = unknown}."""
    here = host_copy(true)
    pred, true = _check_real(pred, true)
    is_labelled = ~true.isnan()
    if ((here != 0) & (here != 1) & ~here.isnan()).any():
        raise InputError("A label is neither 0, 1 nor NaN (unknown); classification_multilabel allows these only.")
    value = F.binary_cross_entropy_with_logits(pred, true.where(is_labelled, torch.zeros_like(true)), reduction="none")
    return _finish(value * is_labelled, is_labelled)


def weighted_cross_entropy_multi(pred: Tensor, true: Tensor, all_reduce: Reduce = identity) -> Terms:
    """Cross entropy with `class_weights` of the batch, divided by the sum of the weights of its rows."""
    pred, true = _check_multi(pred, true)
    weight = class_weights(true, pred.shape[1], all_reduce).to(pred.dtype)[true]
    return _finish(weight * F.cross_entropy(pred, true, reduction="none"), weight)


def weighted_cross_entropy_binary(pred: Tensor, true: Tensor, all_reduce: Reduce = identity) -> Terms:
    """Binary cross entropy times `class_weights[true]`, divided by the number of rows (not by the weights)."""
    pred, true = _check_binary(pred, true)
    weight = class_weights(true, 2, all_reduce).to(pred.dtype)[true]
    value = F.binary_cross_entropy_with_logits(pred, true.to(pred.dtype), reduction="none")
    return _finish(weight * value, torch.ones_like(true))


def cross_entropy_words(pred: Tensor, true: Tensor, all_reduce: Reduce = identity) -> Terms:
    """Mean cross entropy of all places of all names: pred `(N, L, V)`, true `(N, L)` in 0..V-1."""
    check_shape(true, tuple(pred.shape[:2]), "give one word a place, as the head ogb_code_graph predicts")
    return cross_entropy_multi(pred.flatten(0, 1), true.flatten(), all_reduce)


def elementwise(function: Callable[..., Tensor]) -> Loss:
    """Turn a function of predicted and true targets into a loss: the mean over all entries."""

    def loss(pred: Tensor, true: Tensor, all_reduce: Reduce = identity) -> Terms:  # noqa: ARG001
        value = function(*_check_real(pred, true), reduction="none")
        return _finish(value, torch.ones_like(value))

    return loss


def summed(loss: Loss) -> Loss:
    """Turn a mean into a sum (`model.size_average: sum`): the weights of all processes together are 1."""

    def sum_loss(pred: Tensor, true: Tensor, all_reduce: Reduce = identity) -> Terms:
        total, weight = loss(pred, true, all_reduce)
        return total, 1 / all_reduce(torch.ones_like(weight))

    return sum_loss


# Name -> forms by task, summary.
LOSSES: dict[str, tuple[dict[str, Loss], str]] = {
    "cross_entropy": (
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
    "subtoken_cross_entropy": ({"subtoken_prediction": cross_entropy_words}, "cross_entropy of words under ogb's name"),
    "weighted_cross_entropy": (
        {"classification_multi": weighted_cross_entropy_multi, "classification_binary": weighted_cross_entropy_binary},
        "cross entropy with class weights (n - n_c) / n from the batch",
    ),
    "l1": (
        {"regression": elementwise(F.l1_loss), "link_ranking": l1_ranked},
        "mean absolute error; of pairs, of the score to its label 0 or 1",
    ),
    "smoothl1": ({"regression": elementwise(F.smooth_l1_loss)}, "Huber-like L1, quadratic below 1"),
    "mse": ({"regression": elementwise(F.mse_loss)}, "mean squared error"),
}
for _name, (_forms, _summary) in LOSSES.items():
    register("loss", _name, _forms, summary=_summary)
