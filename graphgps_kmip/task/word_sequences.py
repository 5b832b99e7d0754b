"""Subtoken prediction (ogbg-code2): score and F1 of word sequences; the vocabulary ends with unknown and end."""

from __future__ import annotations

from torch import Tensor

WORDS = 5_000  # of ogbg-code2's vocabulary
UNKNOWN, END = WORDS, WORDS + 1


def most_probable(pred: Tensor) -> Tensor:
    """Return the number of the most probable word at each place; all probabilities of a split would not fit memory.

    Shapes: (N, L, V) -> (N, L), float32, exact up to 2^24 words.
    """
    return pred.argmax(-1).float()


def f1_of_words(score: Tensor, true: Tensor, _thresh: float) -> float:
    """Return the mean over names of F1 between the set of predicted words and that of true words, as ogb judges.

    Words after the first end do not count. An unknown word is never predicted right, and each unknown one in a true
    name counts as a word of its own. True names are known as far as they are long here: ogb counts further words too.

    Shapes: (N, L) predicted, (N, L) true -> a number, nan without names.
    """
    predicted, true = _distinct(score.long()), _distinct(true.long(), but=UNKNOWN)
    same = (predicted[:, :, None] == true[:, None, :]) & (predicted < UNKNOWN)[:, :, None]
    total = (predicted < END).sum(1) + (true < END).sum(1)
    return float((2 * same.sum((1, 2)) / total.clamp(min=1)).double().mean())


def _distinct(words: Tensor, but: int = END) -> Tensor:
    """Return the words with `END` from the first end on and where a word, `but` this one, stood before; (N, L)."""
    words = words.where((words == END).cumsum(1) == 0, END)
    before = (words[:, :, None] == words[:, None, :]).tril(-1).any(2)
    return words.where(~before | (words == but), END)
