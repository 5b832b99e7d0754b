"""Losses: recorded values, exact sums over processes, finite values where nothing counts; tasks; clear errors."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from graphgps_kmip.registry import entries
from graphgps_kmip.task import make_task
from graphgps_kmip.task.losses import class_weights
from tests.processes import HANGS
from tests.record_files import record

RECORDS = {
    "ce_binary": ("classification_binary", "cross_entropy"),
    "ce_multiclass": ("classification_multi", "cross_entropy"),
    "multilabel_bce": ("classification_multilabel", "cross_entropy"),
    "wce_binary": ("classification_binary", "weighted_cross_entropy"),
    "wce_binary_single_class": ("classification_binary", "weighted_cross_entropy"),
    "wce_multiclass_absent": ("classification_multi", "weighted_cross_entropy"),
    "wce_multiclass_all": ("classification_multi", "weighted_cross_entropy"),
    **{f"{loss}_{form}": ("regression", loss) for loss in ("l1", "smoothl1", "mse") for form in ("1d", "multi")},
    "smoothl1_pred_n1_true_n1": ("regression", "smoothl1"),
    "mse_pred_n1_true_n1": ("regression", "mse"),
}
WIDTHS = {"classification_binary": 1, "link_prediction": 1, "link_ranking": 5}
FITTING = [(name, loss.name) for loss in entries("loss").values() for name in loss.component]


def example(name: str, rows: int = 24, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    width = WIDTHS.get(name, 4)
    pred = torch.randn(rows, width, generator=draw, dtype=torch.float64)
    if name == "subtoken_prediction":
        pred = torch.randn(rows, 3, width, generator=draw, dtype=torch.float64)
        return pred, torch.randint(0, width, (rows, 3), generator=draw)
    if name == "regression":
        return pred, torch.randn(rows, width, generator=draw, dtype=torch.float64)
    if name == "classification_multilabel":
        true = torch.randint(0, 2, (rows, width), generator=draw).double()
        return pred, true.masked_fill(torch.rand(rows, width, generator=draw) < 0.3, torch.nan)
    return pred, torch.randint(0, 2 if name in WIDTHS else width, (rows, 1), generator=draw)


def over_processes(loss: Callable, shards: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Call the loss once per shard, each in a thread of its own, with an all_reduce that sums over the threads."""
    barrier, parts, results = threading.Barrier(len(shards)), [None] * len(shards), [None] * len(shards)

    def run(rank: int) -> None:
        def all_reduce(tensor: Tensor) -> Tensor:
            parts[rank] = tensor
            barrier.wait(HANGS)
            total = sum(parts)
            barrier.wait(HANGS)
            return total

        results[rank] = loss(*shards[rank], all_reduce)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(shards))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(total for total, _ in results), sum(weight for _, weight in results)


@pytest.mark.parametrize("file", RECORDS)
@pytest.mark.parametrize(("prefix", "rtol"), [("", 1e-12), ("f32/", 1e-6)])  # rounding of each dtype over 17 rows
def test_loss_gradient_and_score_match_the_recorded_ones(file: str, prefix: str, rtol: float) -> None:
    data = record(f"E_losses/{file}")
    name, loss_fun = RECORDS[file]
    dtype = torch.float32 if prefix else torch.float64
    pred = torch.from_numpy(data["in/pred"]).to(dtype).requires_grad_()
    task = make_task(name, 4, loss_fun)
    total, weight = task.loss(pred, torch.from_numpy(data["in/true"]))
    (total / weight).backward()
    keys = ("out/loss", "grad_in/pred", "out/pred_score")
    want = {key: torch.from_numpy(np.asarray(data[prefix + key])) for key in keys}
    torch.testing.assert_close(total / weight, want["out/loss"], rtol=rtol, atol=rtol)
    torch.testing.assert_close(pred.grad, want["grad_in/pred"], rtol=rtol, atol=rtol)
    torch.testing.assert_close(task.score(pred.detach()), want["out/pred_score"], rtol=rtol, atol=rtol)


@pytest.mark.parametrize(("name", "loss_fun"), FITTING)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("sizes", [[24], [11, 13], [24, 0], [1, 5, 18]])
def test_the_loss_of_shards_is_the_loss_of_their_union(
    name: str, loss_fun: str, reduction: str, sizes: list[int]
) -> None:
    loss = make_task(name, 4, loss_fun, reduction=reduction).loss
    pred, true = example(name)
    pred.requires_grad_()
    total, weight = loss(pred, true)
    want = torch.autograd.grad(total / weight, pred)[0]
    shard_total, shard_weight = over_processes(loss, list(zip(pred.split(sizes), true.split(sizes), strict=True)))
    grad = torch.autograd.grad(shard_total / shard_weight, pred)[0]
    torch.testing.assert_close(shard_total / shard_weight, total / weight, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(grad, want, rtol=1e-12, atol=1e-12)


def test_class_weights_come_from_the_batch_and_are_zero_for_absent_classes() -> None:
    weight = class_weights(torch.tensor([0, 0, 0, 2]), 4)
    torch.testing.assert_close(weight, torch.tensor([0.25, 0.0, 0.75, 0.0], dtype=torch.float64))


def test_unknown_labels_are_left_out_of_the_mean() -> None:
    pred, true = example("classification_multilabel")
    labelled = ~true.isnan()
    total, weight = make_task("classification_multilabel", 4, "cross_entropy").loss(pred, true)
    want = torch.nn.functional.binary_cross_entropy_with_logits(pred[labelled], true[labelled])
    assert 0 < labelled.sum() < labelled.numel()
    torch.testing.assert_close(total / weight, want, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "loss_fun", "rows", "label"),
    [
        ("classification_multilabel", "cross_entropy", 6, float("nan")),
        ("classification_multi", "weighted_cross_entropy", 6, 1),
        ("classification_binary", "weighted_cross_entropy", 6, 1),
        *[(name, loss_fun, 0, 0) for name, loss_fun in FITTING],
    ],
)
def test_where_nothing_counts_the_loss_is_zero_with_zero_gradient(
    name: str, loss_fun: str, rows: int, label: float, dtype: torch.dtype
) -> None:
    pred, true = example(name)
    pred = pred[:rows].to(dtype).requires_grad_()
    total, weight = make_task(name, 4, loss_fun).loss(pred, torch.full_like(true[:rows], label))
    (total / weight).backward()
    assert (total / weight).item() == 0
    torch.testing.assert_close(pred.grad, torch.zeros_like(pred))


@pytest.mark.parametrize(("name", "loss_fun"), FITTING)
def test_a_half_precision_output_gives_a_float32_loss_and_score(name: str, loss_fun: str) -> None:
    task = make_task(name, 4, loss_fun)
    pred, true = example(name)
    total, weight = task.loss(pred.bfloat16(), true)
    want, want_weight = task.loss(pred.bfloat16().float(), true)
    assert total.dtype == weight.dtype == task.score(pred.bfloat16()).dtype == torch.float32
    torch.testing.assert_close(total / weight, want / want_weight)


@pytest.mark.parametrize(
    ("name", "pred", "true", "message"),
    [
        ("classification_multi", torch.zeros(3, 4), torch.tensor([0, 1, 4]), r"from 0 to 4; allowed are 0\.\.3"),
        ("classification_multi", torch.zeros(3, 4), torch.tensor([0, -1, 2]), "from -1 to 2"),
        ("classification_multi", torch.zeros(3, 4), torch.zeros(3), r"float32.*integers 0\.\.3.*\.long"),
        ("classification_multi", torch.zeros(3, 4), torch.tensor([0, 1]), r"\(2,\).*needs \(3,\)"),
        ("classification_multi", torch.zeros(3), torch.tensor([0, 1, 1]), "at least 2 classes"),
        ("classification_binary", torch.zeros(3, 2), torch.tensor([0, 1, 1]), "set its width to 1"),
        ("classification_binary", torch.zeros(3, 1), torch.tensor([0, 1, 2]), r"from 0 to 2; allowed are 0\.\.1"),
        ("classification_multilabel", torch.zeros(2, 2), torch.tensor([[0, 1], [2, 0]]), "neither 0, 1 nor NaN"),
        ("classification_multilabel", torch.zeros(2, 2), torch.zeros(2, 3), r"\(2, 3\).*needs \(2, 2\)"),
        ("regression", torch.zeros(4, 2), torch.zeros(8), r"\(8,\).*needs \(4, 2\).*store y as"),
    ],
)
def test_labels_that_do_not_fit_are_refused_with_the_repair(
    name: str, pred: Tensor, true: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_task(name, 4, "l1" if name == "regression" else "cross_entropy").loss(pred, true)


@pytest.mark.parametrize(
    ("task_type", "dim_out", "name"),
    [
        ("classification", 1, "classification_binary"),
        ("classification", 2, "classification_binary"),
        ("classification", 3, "classification_multi"),
        ("classification_multi", 2, "classification_multi"),
        ("classification_multilabel", 10, "classification_multilabel"),
        ("regression", 11, "regression"),
    ],
)
def test_task_type_and_width_decide_the_task(task_type: str, dim_out: int, name: str) -> None:
    task = make_task(task_type, dim_out, "mse" if task_type == "regression" else "cross_entropy")
    assert task.name == name
    assert list(task.metrics) == [key for key, record in entries("metric").items() if name in record.component]


def test_auto_selects_the_lowest_loss_and_a_named_metric_its_best_value() -> None:
    for task_type, loss, metric, agg in (
        ("classification", "cross_entropy", "f1", "argmax"), ("regression", "l1", "mae", "argmin")
    ):  # fmt: skip
        task = make_task(task_type, 3, loss, metric, agg)
        assert (task.metric_best, task.maximize) == (metric, agg == "argmax")
    task = make_task("classification", 10, "cross_entropy", "auto", "argmax")
    assert (task.metric_best, task.maximize) == ("loss", False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task_type": "clasification"}, r"dataset.task_type is 'clasification'.*Did you mean classification"),
        ({"loss_fun": "cross_entrpy"}, "loss_fun.*is 'cross_entrpy'.*Did you mean cross_entropy"),
        ({"loss_fun": "l1"}, r"loss_fun \(task classification_multi\) is 'l1'.*Allowed: cross_entropy, weighted_cross"),
        ({"task_type": "regression"}, r"loss_fun \(task regression\).*Allowed: l1, mse, smoothl1"),
        ({"metric_best": "acuracy"}, "metric_best is 'acuracy'.*Did you mean accuracy"),
        ({"metric_best": "mae"}, "metric_best is 'mae'.*Allowed: accuracy, accuracy-SBM, auc, auto, f1, loss, mIoU"),
        ({"metric_best": "f1", "metric_agg": "argmin"}, "keep the worst f1; set metric_agg to 'argmax'"),
        ({"metric_best": "f1", "metric_agg": "max"}, "metric_agg is 'max'.*argmax"),
        ({"reduction": "average"}, "model.size_average is 'average'.*Allowed: mean, sum"),
    ],
)
def test_a_word_that_does_not_fit_is_refused_with_what_is_allowed(change: dict[str, str], message: str) -> None:
    arguments = {"task_type": "classification", "dim_out": 5, "loss_fun": "cross_entropy"} | change
    with pytest.raises(ValueError, match=message):
        make_task(**arguments)
