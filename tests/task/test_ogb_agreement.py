"""Average precision and AUC over several labels equal those of ogb's evaluator, whatever classes a label has."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ogb.graphproppred import Evaluator

from graphgps_kmip.task import functions_of

MULTILABEL = "classification_multilabel"

LABELS = ("both", "both, some NaN", "positives only", "negatives only", "positives and NaN", "never known")


def column(kind: str, rows: int, generator: np.random.Generator) -> np.ndarray:
    true = generator.integers(0, 2, rows).astype(np.float64)
    true[:2] = 0, 1
    if kind.startswith("positives"):
        true[:] = 1
    if kind == "negatives only":
        true[:] = 0
    if "NaN" in kind:
        true[2 + generator.integers(0, rows - 2, rows // 3)] = np.nan
    if kind == "never known":
        true[:] = np.nan
    return true


@pytest.mark.parametrize(("metric", "data"), [("ap", "ogbg-molpcba"), ("auc", "ogbg-moltox21")])
@pytest.mark.parametrize("seed", range(20))
def test_metrics_over_labels_equal_ogb_on_random_cases(metric: str, data: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    evaluator = Evaluator(data)
    kinds = [LABELS[0], *generator.choice(LABELS, evaluator.num_tasks - 1)]
    true = np.stack([column(kind, 40, generator) for kind in kinds], axis=1)
    score = generator.normal(size=true.shape).round(1)  # with ties
    expected = evaluator.eval({"y_true": true, "y_pred": score})[evaluator.eval_metric]
    ours = functions_of("metric", MULTILABEL)[metric](torch.tensor(score), torch.tensor(true), 0.5)
    assert ours == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", ["positives only", "negatives only", "never known"])
def test_where_no_label_has_both_outcomes_the_metric_is_nan_and_ogb_raises(kind: str) -> None:
    true = np.stack([column(kind, 10, np.random.default_rng(0))] * 128, axis=1)
    with pytest.raises(RuntimeError, match="Cannot compute"):
        Evaluator("ogbg-molpcba").eval({"y_true": true, "y_pred": np.zeros_like(true)})
    ours = functions_of("metric", MULTILABEL)["ap"](torch.zeros(true.shape), torch.tensor(true), 0.5)
    assert np.isnan(ours)
