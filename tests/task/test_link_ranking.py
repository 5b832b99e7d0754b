"""Losses and metrics of labelled pairs of nodes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from ogb.linkproppred import Evaluator
from torch import Tensor

from graphgps_kmip.task import make_task

RANKING = make_task("link_ranking", 1, "cross_entropy", "mrr")
PREDICTION = make_task("link_prediction", 1, "cross_entropy", "hits@50")


def rows(*graphs: tuple[list[float], int]) -> tuple[Tensor, Tensor]:
    """Return scores and labels of graphs, each given by the ranks of its positive pairs and a number of negatives.

    Filtered ranks are half as far from 1, those without the node itself all 1.
    """
    score, true = [], []
    for ranks, negatives in graphs:
        score += [[0.0, len(ranks), rank, (rank + 1) / 2, 1.0] for rank in ranks] + [[0.0] * 5] * negatives
        true += [1] * len(ranks) + [0] * negatives
    return torch.tensor(score).reshape(-1, 5), torch.tensor(true)


def values(score: Tensor, true: Tensor) -> dict[str, float]:
    return {name: metric(score, true) for name, metric in RANKING.metrics.items()}


def test_ranks_are_averaged_over_pairs_and_then_over_graphs() -> None:
    got = values(*rows(([1, 4], 2), ([2], 0), ([11, 3, 1, 1], 1)))
    assert got["mrr"] == pytest.approx(((1 + 1 / 4) / 2 + 1 / 2 + (1 / 11 + 1 / 3 + 2) / 4) / 3)
    assert got["hits@1"] == pytest.approx((1 / 2 + 0 + 2 / 4) / 3)
    assert got["hits@3"] == pytest.approx((1 / 2 + 1 + 3 / 4) / 3)
    assert got["hits@10"] == pytest.approx((1 + 1 + 3 / 4) / 3)
    assert got["mrr_filt"] == pytest.approx(((1 + 2 / 5) / 2 + 2 / 3 + (1 / 6 + 1 / 2 + 2) / 4) / 3)
    assert got["hits@1_filt_self"] == got["mrr_filt_self"] == pytest.approx(1)


def test_graphs_without_positive_pairs_are_left_out() -> None:
    with_empty = values(*rows(([2], 1), ([], 3), ([], 0)))
    assert with_empty == values(*rows(([2], 0)))
    assert all(math.isnan(value) for value in values(*rows(([], 2))).values())


def test_the_loss_is_binary_cross_entropy_of_the_logits_of_all_labelled_pairs() -> None:
    pred, true = torch.randn(6, 5, dtype=torch.float64), torch.tensor([1, 0, 1, 1, 0, 0])
    for task, output in ((RANKING, pred), (PREDICTION, pred[:, :1])):
        total, weight = task.loss(output, true)
        torch.testing.assert_close(total / weight, F.binary_cross_entropy_with_logits(pred[:, 0], true.double()))


def test_the_l1_loss_is_the_distance_of_score_and_label() -> None:
    pred = torch.tensor([[0.5, 1.0], [-2.0, 1.0], [3.0, 1.0]], dtype=torch.float64)
    total, weight = make_task("link_ranking", 1, "l1", "mrr").loss(pred, torch.tensor([1, 0, 1]))
    torch.testing.assert_close(total / weight, torch.tensor((0.5 + 2 + 2) / 3, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("k", [20, 50, 100])
def test_hits_among_all_negatives_are_ogbs(k: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    true = (torch.rand(400, generator=draw) < 0.3).long()
    score = (torch.randn(400, 1, generator=draw) + true[:, None]).round(decimals=1)  # with ties
    judge = Evaluator("ogbl-collab")
    judge.K = k
    positive, negative = score[true == 1, 0], score[true == 0, 0]
    expected = judge.eval({"y_pred_pos": positive, "y_pred_neg": negative})[f"hits@{k}"]
    assert PREDICTION.metrics[f"hits@{k}"](PREDICTION.score(score), true) == pytest.approx(expected)
    assert 0 < expected < 1


def test_hits_are_all_with_few_negatives_and_undefined_without_positives() -> None:
    hits = PREDICTION.metrics["hits@50"]
    assert hits(torch.randn(60, 1), torch.cat([torch.ones(20), torch.zeros(40)]).long()) == 1
    assert math.isnan(hits(torch.randn(60, 1), torch.zeros(60).long()))


def test_a_metric_selects_the_epoch_of_the_best_ranks() -> None:
    assert (RANKING.metric_best, RANKING.maximize) == ("mrr", True)
    assert list(RANKING.metrics) == [
        f"{name}{suffix}" for suffix in ("", "_filt", "_filt_self") for name in ("hits@1", "hits@3", "hits@10", "mrr")
    ]
    with pytest.raises(ValueError, match="hits@50.*does not fit"):
        make_task("link_ranking", 1, "cross_entropy", "hits@50")
