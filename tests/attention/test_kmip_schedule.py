"""k that falls while a model is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import GraphContext, KMIPAttention, kmip
from graphgps_kmip.attention.halo import Halo
from graphgps_kmip.attention.schedule import annealed


@pytest.mark.parametrize(
    ("progress", "expected"), [(0.0, 80), (0.1, 40), (0.2, 20), (0.3, 10), (0.4, 5), (0.7, 5), (1.0, 5)]
)
def test_the_number_halves_in_equal_times(progress: float, expected: int) -> None:
    assert annealed(80, 5, progress, 0.4) == expected


def test_it_never_rises_and_stays_between_its_ends() -> None:
    found = [annealed(33, 4, step / 100, 0.7) for step in range(101)]
    assert found == sorted(found, reverse=True)
    assert (found[0], found[70:]) == (33, [4] * 31)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("progress", "k"), [(0.0, 12), (0.25, 6), (0.5, 3), (1.0, 3)])
def test_attention_has_the_k_of_the_progress(progress: float, k: int, training: bool) -> None:
    attention = KMIPAttention(8, 2, k=3, k_start=12).double().train(training)
    plain = KMIPAttention(8, 2, k=k).double()
    plain.load_state_dict(attention.state_dict())
    x = torch.randn(20, 8, dtype=torch.float64)
    context = replace(GraphContext.of(None, x), progress=progress)
    assert torch.equal(attention(x, context), plain(x, context))
    assert attention.attention_graph(x, context).index.size(-1) == k


def test_with_padding_among_the_keys_k_falls_too() -> None:
    attention = KMIPAttention(8, 2, k=1, k_start=4, anneal_until=1.0, pad_keys=True)
    x = torch.randn(6, 8)
    context = replace(GraphContext.of(torch.tensor([0, 0, 1, 1, 1, 1]), x), progress=1.0)
    plain = KMIPAttention(8, 2, k=1, pad_keys=True)
    plain.load_state_dict(attention.state_dict())
    assert torch.equal(attention(x, context), plain(x, context))


def test_without_a_start_k_does_not_change() -> None:
    attention, x = KMIPAttention(8, 2, k=3), torch.randn(20, 8)
    outputs = [attention(x, replace(GraphContext.of(None, x), progress=progress)) for progress in (0.0, 0.2, 1.0)]
    assert all(torch.equal(out, outputs[0]) for out in outputs)


def test_over_several_processes_k_falls_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def attend(_q: Tensor, _k: Tensor, v: Tensor, num_keys: int, **_options: Any) -> Tensor:
        asked.append(num_keys)
        return v

    monkeypatch.setattr(kmip, "sharded_kmip_attention", attend)
    attention, x = KMIPAttention(8, 2, k=3, k_start=12, shard=True), torch.randn(6, 8)
    for progress in (0.0, 1.0):
        attention(x, replace(GraphContext.of(None, x), halo=Halo(torch.arange(0), (0,), (0,)), progress=progress))
    assert asked == [12, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 5, "k_start": 4}, r"k_start must be 0 \(k stays as it is\) or at least k, got 4 and k 5"),
        ({"k_start": -1}, "k_start must be 0"),
        ({"anneal_until": 0.0}, r"anneal_until must be in \(0, 1\], got 0.0"),
        ({"anneal_until": 1.5}, r"anneal_until must be in \(0, 1\], got 1.5"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KMIPAttention(8, 2, **options)
