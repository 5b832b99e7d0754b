"""A search refuses what it cannot answer, in one sentence that names the culprit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphgps_kmip.search import topk_inner_product

X = torch.ones(6, 2)
PTR = torch.tensor([0, 2, 6])

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dims": ({"k": torch.ones(6, 3)}, r"\(6, 2\) and \(6, 3\)"),
    "heads": ({"k": torch.ones(2, 6, 2)}, r"\(6, 2\) and \(2, 6, 2\)"),
    "no rows": ({"q": torch.ones(2)}, r"\(2,\) and \(6, 2\)"),
    "dtypes": ({"k": X.double()}, "torch.float32 and torch.float64"),
    "integers": ({"q": X.long(), "k": X.long()}, "got torch.int64 and torch.int64"),
    "K zero": ({"num_keys": 0}, "num_keys must be an integer >= 1, got 0"),
    "K true": ({"num_keys": True}, "got True"),
    "K float": ({"num_keys": 2.0}, "got 2.0"),
    "one ptr": ({"ptr_k": None}, "got only one of them"),
    "ptr start": (
        {"ptr_q": torch.tensor([1, 2, 6])},
        r"ptr_q must increase from 0 to 6 \(the rows of q\), got \[1, 2, 6\]",
    ),
    "ptr end": ({"ptr_k": PTR[:-1]}, r"ptr_k must increase from 0 to 6 \(the rows of k\), got \[0, 2\]"),
    "ptr falls": ({"ptr_q": torch.tensor([0, 4, 2, 6])}, r"got \[0, 4, 2, 6\]"),
    "ptr empty": ({"ptr_q": PTR[:0]}, r"got \[\]"),
    "ptr dtype": ({"ptr_q": PTR.float()}, "torch.float32"),
    "ptr shape": ({"ptr_q": PTR[None]}, r"got shape \(1, 3\)"),
    "ptr lengths": ({"ptr_q": torch.tensor([0, 6])}, r"\(2,\) and \(3,\)"),
    "NaN in q": ({"q": X * torch.nan}, "^q has NaN"),
    "NaN in k": ({"k": X.index_fill(0, torch.tensor([3]), torch.nan)}, "^k has NaN"),
    "infinite k": ({"k": X * torch.inf}, "^k has NaN or infinite values"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_input_is_refused_by_name(case: str) -> None:
    arguments, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        topk_inner_product(**{"q": X, "k": X, "ptr_q": PTR, "ptr_k": PTR, "num_keys": 2, **arguments})


def test_the_good_input_beside_them_is_answered() -> None:
    index, _ = topk_inner_product(X, X, PTR, PTR, 2)
    assert index.sort().values.tolist()[0] == [0, 1]


@pytest.mark.cuda
def test_tensors_on_two_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="cpu and cuda"):
        topk_inner_product(X, X.cuda())
