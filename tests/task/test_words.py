"""Loss and F1 of names as sequences of words, against ogb's evaluator."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from ogb.graphproppred import Evaluator
from torch import Tensor

from graphgps_kmip.data import ogb_tables as syntax_trees
from graphgps_kmip.task import make_task
from graphgps_kmip.task.metrics import END, UNKNOWN

TASK = make_task("subtoken_prediction", 5002, "cross_entropy", "f1")


def names(*rows: list[int]) -> Tensor:
    return torch.tensor([name + [END] * (5 - len(name)) for name in rows])


def f1(predicted: Tensor, true: Tensor) -> float:
    return TASK.metrics["f1"](predicted.float(), true)


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
    draw = torch.Generator().manual_seed(seed)
    few = torch.tensor([0, 1, 2, UNKNOWN, END])  # words repeat, ends come early, unknown ones on both sides
    predicted, true = (few[torch.randint(5, (200, 5), generator=draw)] for _ in range(2))
    assert f1(predicted, true) == pytest.approx(by_ogb(predicted, true))
    assert 0.1 < f1(predicted, true) < 0.9


def test_a_name_without_words_counts_zero_and_no_names_are_undefined() -> None:
    assert f1(names([]), names([])) == 0
    assert math.isnan(f1(names([])[:0], names([])[:0]))


def test_the_score_is_the_most_probable_word_of_each_place() -> None:
    pred = torch.zeros(2, 5, 5002)
    pred[0, 1, 5001] = pred[1, 4, 3] = 1
    score = TASK.score(pred)
    assert score.tolist() == [[0, 5001, 0, 0, 0], [0, 0, 0, 0, 3]]


@pytest.mark.parametrize("loss_fun", ["cross_entropy", "subtoken_cross_entropy"])
def test_the_loss_is_the_mean_cross_entropy_over_the_places(loss_fun: str) -> None:
    pred, true = torch.randn(6, 5, 8, dtype=torch.float64), torch.randint(8, (6, 5))
    total, weight = make_task("subtoken_prediction", 8, loss_fun).loss(pred, true)
    places = [F.cross_entropy(pred[:, place], true[:, place]) for place in range(5)]
    torch.testing.assert_close(total / weight, torch.stack(places).mean())


def test_labels_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(6, 4\).*needs \(6, 5\)"):
        TASK.loss(torch.randn(6, 5, 8), torch.zeros(6, 4).long())


def test_the_vocabulary_ends_as_that_of_the_data() -> None:
    assert (UNKNOWN, END) == (syntax_trees.UNKNOWN, syntax_trees.END)
