"""Metrics equal those of scikit-learn, scipy and ogb, also with absent, unknown or tied classes; pairs, words."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ogb.graphproppred import Evaluator
from ogb.linkproppred import Evaluator as LinkEvaluator
from scipy.stats import spearmanr
from sklearn import metrics as sk
from torch import Tensor

from graphgps_kmip.data import ogb_tables as syntax_trees
from graphgps_kmip.task import make_task
from graphgps_kmip.task.metrics import END, UNKNOWN, area_under_roc, average_precision
from tests.record_files import kind_of_records, record

LOSS = {"regression": "l1"}
FLOAT32 = 1e-6  # the recorded values and torchmetrics' are rounded to float32


def evaluate(name: str, score: Tensor, true: Tensor, thresh: float = 0.5) -> dict[str, float]:
    task = make_task(name, 6, LOSS.get(name, "cross_entropy"), thresh=thresh)
    return {key: metric(score, true) for key, metric in task.metrics.items()}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def scores_for(pred: Tensor, num_classes: int) -> Tensor:
    score = draw(len(pred), num_classes).scatter_(1, pred[:, None], 9.0)
    return score.log_softmax(-1)


NAMES = {"bin": "classification_binary", "reg": "regression", "mul": "classification_multi"}
FILES = [name for name in kind_of_records("E_metrics") if not name.startswith(("sbm", "ogb", "mrr"))]
# Faults of the original on record; the test after the next one shows each for what it is.
FAULTS = {
    **{(file, "auc"): "absent class counts 0" for file in ("multi_absent", "multi_absent_nowhere")},
    **{(file, "auc"): "absent class counts 0" for file in ("miou_absent_nowhere", "miou_mixed")},
    ("multi_absent_nowhere", "accuracy-SBM"): "classes shifted",
    ("kmip_multilabel_nan", "accuracy"): "all called positive",
    ("kmip_multilabel_column_without_positives", "accuracy"): "all called positive",
}


def recorded(file: str) -> tuple[dict[str, float], dict[str, float], Tensor]:
    data = record(f"E_metrics/{file}")
    score, true = torch.from_numpy(data["in/pred"]), torch.from_numpy(data["in/true"])
    name = "classification_multilabel" if "multilabel" in file else NAMES[file[:3].replace("mio", "mul")]
    if file == "multi_full_logits":
        score = score.log_softmax(-1)
    want = {key.removeprefix("out/"): float(data[key]) for key in data if key.startswith("out/")}
    return evaluate(name, score, true), want, true


@pytest.mark.parametrize("file", FILES)
def test_metrics_match_the_recorded_ones(file: str) -> None:
    got, want, _ = recorded(file)
    want = {key: value for key, value in want.items() if (file, key) not in FAULTS}
    assert {key: got[key] for key in want} == pytest.approx(want, abs=FLOAT32)


@pytest.mark.parametrize(("file", "key"), FAULTS)
def test_a_recorded_value_that_differs_is_a_known_fault(file: str, key: str) -> None:
    got, want, true = recorded(file)
    if FAULTS[file, key] == "absent class counts 0":
        assert got[key] * len(true.unique()) / 6 == pytest.approx(want[key], abs=FLOAT32)
    if FAULTS[file, key] == "all called positive":  # logits above 1 pass through a sigmoid, then are compared with 0
        assert true.nanmean(0).mean().item() == pytest.approx(want[key], abs=FLOAT32)
    if FAULTS[file, key] == "classes shifted":  # confusion matrix by rank, labels by value: see accuracy_sbm below
        assert want[key] < got[key]


CLASSES = {
    "all present": ([0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 3, 1, 1, 0, 3]),
    "absent in truth": ([0, 1, 3, 3, 0, 1, 3, 1], [0, 2, 2, 3, 1, 1, 0, 3]),
    "absent in prediction": ([0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 1, 3, 1, 1, 0, 3]),
    "absent in both": ([1, 1, 3, 3, 1, 1], [1, 3, 3, 3, 1, 2]),
    "one class, right": ([2, 2, 2], [2, 2, 2]),
    "one class, wrong": ([2, 2, 2], [0, 1, 0]),
}


@pytest.mark.parametrize("case", CLASSES)
def test_class_metrics_equal_those_of_scikit_learn(case: str) -> None:
    true, pred = (torch.tensor(side) for side in CLASSES[case])
    got = evaluate("classification_multi", scores_for(pred, 4), true)
    want = {
        "accuracy": sk.accuracy_score(true, pred),
        "f1": sk.f1_score(true, pred, average="macro", zero_division=0),
        "accuracy-SBM": sk.recall_score(true, pred, average="macro", zero_division=0),
        "mIoU": sk.jaccard_score(true, pred, average="macro", zero_division=0),
    }
    assert {key: got[key] for key in want} == pytest.approx(want, abs=FLOAT32)


@pytest.mark.parametrize("case", ["all present", "absent in truth", "one class, right"])
def test_auc_of_several_classes_is_the_mean_over_classes_with_both_outcomes(case: str) -> None:
    true = torch.tensor(CLASSES[case][0])
    score = (draw(len(true), 4) * 2).round().log_softmax(-1)
    present = [c for c in range(4) if 0 < (true == c).sum() < len(true)]
    want = np.mean([sk.roc_auc_score(true == c, score[:, c]) for c in present]) if present else np.nan
    got = evaluate("classification_multi", score, true)["auc"]
    np.testing.assert_allclose(got, want, rtol=1e-12)


BINARY = {
    "both": ([0, 1, 1, 0, 1, 0], [0.1, 0.9, 0.4, 0.6, 0.7, 0.2]),
    "ties": ([0, 1, 1, 0, 1, 0], [0.5, 0.5, 0.9, 0.9, 0.1, 0.5]),
    "no positives": ([0, 0, 0], [0.1, 0.9, 0.4]),
    "no negatives": ([1, 1, 1], [0.1, 0.9, 0.4]),
    "nothing predicted": ([0, 1, 1], [0.1, 0.2, 0.4]),
}


@pytest.mark.parametrize("case", BINARY)
@pytest.mark.parametrize("thresh", [0.5, 0.3])
def test_metrics_of_two_classes_equal_those_of_scikit_learn(case: str, thresh: float) -> None:
    true, score = (torch.tensor(side) for side in BINARY[case])
    pred = (score > thresh).long()
    want = {
        "accuracy": sk.accuracy_score(true, pred),
        "precision": sk.precision_score(true, pred, zero_division=0),
        "recall": sk.recall_score(true, pred, zero_division=0),
        "f1": sk.f1_score(true, pred, zero_division=0),
        "accuracy-SBM": sk.recall_score(true, pred, average="macro", zero_division=0),
        "auc": sk.roc_auc_score(true, score) if 0 < true.sum() < len(true) else np.nan,
    }
    assert evaluate("classification_binary", score[:, None], true[:, None], thresh) == pytest.approx(
        want, abs=FLOAT32, nan_ok=True
    )


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("labels", ["known", "some NaN", "without positives", "without negatives", "never known"])
def test_metrics_of_several_labels_equal_those_of_ogb(labels: str, ties: bool) -> None:
    score = (draw(40, 5) * 2).round() if ties else draw(40, 5)
    true = (draw(40, 5, seed=1) > 0.5).float()
    if labels == "some NaN":
        true[draw(40, 5, seed=2) > 0.6] = torch.nan
    if labels.startswith("without") or labels == "never known":
        true[:, 2] = {"without positives": 0, "without negatives": 1, "never known": torch.nan}[labels]
    got = evaluate("classification_multilabel", score, true)
    columns = [c for c in range(5) if not true[:, c].isnan().all()]  # ogb's accuracy is nan with an unknown column
    for dataset, key in (("ogbg-molpcba", "ap"), ("ogbg-moltox21", "rocauc")):
        evaluator = Evaluator(dataset)
        evaluator.num_tasks = 5
        want = evaluator.eval({"y_true": true, "y_pred": score})[key]
        assert got["auc" if key == "rocauc" else key] == pytest.approx(want, abs=1e-12)
    decided = Evaluator("ogbg-molpcba")._eval_acc(true[:, columns].numpy(), (score.sigmoid() > 0.5)[:, columns].numpy())
    assert got["accuracy"] == pytest.approx(decided["acc"], abs=FLOAT32)


@pytest.mark.parametrize("file", ["ogb_nan", "ogb_ties"])
def test_several_labels_match_the_recorded_values_of_ogb(file: str) -> None:
    data = record(f"E_metrics/{file}")
    got = evaluate("classification_multilabel", torch.from_numpy(data["in/pred"]), torch.from_numpy(data["in/true"]))
    for key, ogb_key in (("ap", "ap"), ("auc", "rocauc")):
        np.testing.assert_allclose(got[key], data[f"out/{ogb_key}"], rtol=1e-12)


def test_without_any_positive_ap_and_auc_are_undefined() -> None:
    got = evaluate("classification_multilabel", draw(6, 3), torch.zeros(6, 3))
    assert np.isnan([got["ap"], got["auc"]]).all()
    assert 0 <= got["accuracy"] <= 1


def test_confident_logits_are_not_tied_by_a_float32_sigmoid() -> None:
    score, true = torch.tensor([30.0, 40.0, 50.0, 60.0]), torch.tensor([0, 0, 1, 1])
    assert (score.sigmoid() == 1).all()
    assert area_under_roc(score, true) == average_precision(score, true) == 1


def test_ranking_metrics_equal_those_of_scikit_learn_on_many_tied_rows() -> None:
    score, true = (draw(20_000) * 10).round(), draw(20_000, seed=1) > 1
    assert area_under_roc(score, true) == pytest.approx(sk.roc_auc_score(true, score), abs=1e-12)
    assert average_precision(score, true) == pytest.approx(sk.average_precision_score(true, score), abs=1e-12)


@pytest.mark.parametrize("shape", [(30,), (30, 1), (30, 3), (2, 3)])
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1e-4, 0.0), (1.0, 1000.0)])
def test_metrics_of_real_targets_equal_those_of_scikit_learn(
    shape: tuple[int, ...], scale: float, shift: float
) -> None:
    true = draw(*shape) * scale + shift
    score = true + draw(*shape, seed=1) * scale
    columns = range(1 if len(shape) == 1 else shape[1])
    t, s = true.view(shape[0], -1).double().numpy(), score.view(shape[0], -1).double().numpy()
    want = {
        "mae": sk.mean_absolute_error(t, s),
        "r2": sk.r2_score(t, s),
        "spearmanr": np.mean([spearmanr(t[:, c], s[:, c]).statistic for c in columns]),
        "mse": sk.mean_squared_error(t, s),
        "rmse": sk.root_mean_squared_error(t, s),
    }
    assert evaluate("regression", score, true) == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("error", [0.0, 0.001])
def test_r2_of_a_constant_target_is_that_of_scikit_learn(error: float) -> None:
    true = torch.full((5,), 2.0)
    got = evaluate("regression", true + error, true)
    assert got["r2"] == sk.r2_score(true, true + error)
    assert np.isnan(got["spearmanr"])


def test_r2_of_one_row_is_undefined() -> None:
    assert np.isnan(evaluate("regression", torch.ones(1), torch.ones(1))["r2"])


@pytest.mark.parametrize("file", ["sbm_full", "sbm_absent_top", "sbm_pred_only_class"])
def test_accuracy_sbm_matches_the_recorded_values(file: str) -> None:
    data = record(f"E_metrics/{file}")
    pred = torch.from_numpy(data["in/pred_int"])
    got = evaluate("classification_multi", scores_for(pred, 6), torch.from_numpy(data["in/true"]))["accuracy-SBM"]
    np.testing.assert_allclose(got, data["out/accuracy_SBM"], rtol=FLOAT32)


def test_accuracy_sbm_counts_every_class_where_the_original_shifts_them() -> None:
    # The original reads the confusion matrix by rank but the labels by value: wrong once class 0 occurs nowhere.
    data = record("E_metrics/sbm_absent_low")
    true, pred = torch.from_numpy(data["in/true"]), torch.from_numpy(data["in/pred_int"])
    got = evaluate("classification_multi", scores_for(pred, 6), true)["accuracy-SBM"]
    want = sk.recall_score(true, pred, average="macro", zero_division=0)
    assert got == pytest.approx(want, abs=FLOAT32)
    assert abs(got - float(data["out/accuracy_SBM"])) > 0.1


def test_f1_of_several_labels_pools_the_known_ones() -> None:
    score, true = draw(50, 4), (draw(50, 4) > 0).float()
    true[::7, 1] = float("nan")
    labelled = ~true.isnan()
    expected = sk.f1_score(true[labelled].numpy(), (score[labelled] > 0).numpy())
    assert evaluate("classification_multilabel", score, true)["f1"] == pytest.approx(expected, abs=1e-6)


RANKING = make_task("link_ranking", 1, "cross_entropy", "mrr")
PREDICTION = make_task("link_prediction", 1, "cross_entropy", "hits@50")


def rows(*graphs: tuple[list[float], int]) -> tuple[Tensor, Tensor]:
    """Return scores and labels of graphs of ranks (filtered ones are half as far from 1) and numbers of negatives."""
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
@pytest.mark.parametrize("k", [10, 20, 50, 100])
def test_hits_among_all_negatives_are_ogbs(k: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    true = (torch.rand(400, generator=generator) < 0.3).long()
    score = (torch.randn(400, 1, generator=generator) + true[:, None]).round(decimals=1)  # with ties
    judge = LinkEvaluator("ogbl-collab")
    judge.K = k
    positive, negative = score[true == 1, 0], score[true == 0, 0]
    expected = judge.eval({"y_pred_pos": positive, "y_pred_neg": negative})[f"hits@{k}"]
    assert PREDICTION.metrics[f"hits@{k}"](PREDICTION.score(score), true) == pytest.approx(expected)
    assert 0 < expected < 1
    every = {"y_pred_pos": positive, "y_pred_neg": negative.expand(len(positive), -1)}
    mrr = LinkEvaluator("ogbl-citation2").eval(every)["mrr_list"].mean()
    assert PREDICTION.metrics["mrr"](PREDICTION.score(score), true) == pytest.approx(float(mrr))


def test_hits_are_all_with_few_negatives_and_undefined_without_positives() -> None:
    hits = PREDICTION.metrics["hits@50"]
    assert hits(torch.randn(60, 1), torch.cat([torch.ones(20), torch.zeros(40)]).long()) == 1
    for name in ("hits@50", "mrr"):
        assert math.isnan(PREDICTION.metrics[name](torch.randn(60, 1), torch.zeros(60).long()))


def test_a_metric_selects_the_epoch_of_the_best_ranks() -> None:
    assert (RANKING.metric_best, RANKING.maximize) == ("mrr", True)
    assert list(RANKING.metrics) == [
        f"{name}{suffix}" for suffix in ("", "_filt", "_filt_self") for name in ("hits@1", "hits@3", "hits@10", "mrr")
    ]
    with pytest.raises(ValueError, match="hits@50.*does not fit"):
        make_task("link_ranking", 1, "cross_entropy", "hits@50")


WORDS = make_task("subtoken_prediction", 5002, "cross_entropy", "f1")


def names(*rows: list[int]) -> Tensor:
    return torch.tensor([name + [END] * (5 - len(name)) for name in rows])


def f1(predicted: Tensor, true: Tensor) -> float:
    return WORDS.metrics["f1"](predicted.float(), true)


def by_ogb(predicted: Tensor, true: Tensor) -> float:
    """Judge as ogb does; a word that the vocabulary lacks is a word of its own in a true name."""

    def cut(name: list[int]) -> list[int]:
        return name[: name.index(END)] if END in name else name

    truth = [
        [f"unknown {i}" if word == UNKNOWN else str(word) for i, word in enumerate(cut(name))] for name in true.tolist()
    ]
    guess = [["__UNK__" if word == UNKNOWN else str(word) for word in cut(name)] for name in predicted.tolist()]
    return Evaluator("ogbg-code2").eval({"seq_ref": truth, "seq_pred": guess})["F1"]


@pytest.mark.parametrize("seed", range(4))
def test_f1_of_words_is_ogbs(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    few = torch.tensor([0, 1, 2, UNKNOWN, END])  # words repeat, ends come early, unknown ones on both sides
    predicted, true = (few[torch.randint(5, (200, 5), generator=generator)] for _ in range(2))
    assert f1(predicted, true) == pytest.approx(by_ogb(predicted, true))
    assert 0.1 < f1(predicted, true) < 0.9


def test_a_name_without_words_counts_zero_and_no_names_are_undefined() -> None:
    assert f1(names([]), names([])) == 0
    assert math.isnan(f1(names([])[:0], names([])[:0]))


def test_the_score_is_the_most_probable_word_of_each_place() -> None:
    pred = torch.zeros(2, 5, 5002)
    pred[0, 1, 5001] = pred[1, 4, 3] = 1
    score = WORDS.score(pred)
    assert score.tolist() == [[0, 5001, 0, 0, 0], [0, 0, 0, 0, 3]]


@pytest.mark.parametrize("loss_fun", ["cross_entropy", "subtoken_cross_entropy"])
def test_the_loss_is_the_mean_cross_entropy_over_the_places(loss_fun: str) -> None:
    pred, true = torch.randn(6, 5, 8, dtype=torch.float64), torch.randint(8, (6, 5))
    total, weight = make_task("subtoken_prediction", 8, loss_fun).loss(pred, true)
    places = [F.cross_entropy(pred[:, place], true[:, place]) for place in range(5)]
    torch.testing.assert_close(total / weight, torch.stack(places).mean())


def test_labels_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(6, 4\).*needs \(6, 5\)"):
        WORDS.loss(torch.randn(6, 5, 8), torch.zeros(6, 4).long())


def test_the_vocabulary_ends_as_that_of_the_data() -> None:
    assert (UNKNOWN, END) == (syntax_trees.UNKNOWN, syntax_trees.END)
