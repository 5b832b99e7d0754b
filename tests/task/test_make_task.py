"""From the words of a config to a task, and clear errors for words that do not fit."""

from __future__ import annotations

import pytest

from graphgps_kmip.registry import entries
from graphgps_kmip.task import make_task


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
