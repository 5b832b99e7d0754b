"""k that falls while a model is trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Data

from graphgps_kmip.attention import AnnealedKeys, DiverseKeys, GraphContext, KMIPAttention
from graphgps_kmip.attention.kmip import annealed, build_kmip
from graphgps_kmip.compat.public_faults import repeat_faults


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
    attention = build_kmip(8, 2, k=3, k_start=12).double().train(training)
    plain = KMIPAttention(8, 2, k=k).double()
    plain.load_state_dict(attention.state_dict())
    x = torch.randn(20, 8, dtype=torch.float64)
    context = replace(GraphContext.of(None, x), progress=progress)
    assert torch.equal(attention(x, context), plain(x, context))
    assert attention.attention_graph(x, context).index.size(-1) == k


def test_with_padding_among_the_keys_k_falls_too() -> None:
    pad_keys = {"gt.kmip.pad_keys": True}
    attention = repeat_faults(build_kmip(8, 2, k=1, k_start=4, anneal_until=1.0), pad_keys)
    x = torch.randn(6, 8)
    context = replace(GraphContext.of(torch.tensor([0, 0, 1, 1, 1, 1]), x), progress=1.0)
    plain = repeat_faults(build_kmip(8, 2, k=1), pad_keys)
    plain.load_state_dict(attention.state_dict())
    assert torch.equal(attention(x, context), plain(x, context))


@pytest.mark.parametrize(("training", "k"), [(True, 12), (False, 3)])
def test_where_nobody_sets_the_progress_a_trained_module_has_its_final_k_and_one_in_training_its_first(
    training: bool, k: int
) -> None:
    attention, x = KMIPAttention(8, 2, k=3, selection=AnnealedKeys(12)).train(training), torch.randn(20, 8)
    plain = KMIPAttention(8, 2, k=k)
    plain.load_state_dict(attention.state_dict())
    for context in (None, torch.arange(20) // 15, GraphContext.from_data(Data(x=x))):
        assert torch.equal(attention(x, context), plain(x, context))
        assert attention.attention_graph(x, context).index.size(-1) == k


def test_an_annealed_choice_anneals_inside_of_another_one_too() -> None:
    attention, x = KMIPAttention(8, 2, k=3, selection=DiverseKeys(0.5, AnnealedKeys(12))), torch.randn(40, 8)
    assert [attention.train(mode).attention_graph(x).index.size(-1) for mode in (True, False)] == [12, 3]


def test_a_start_below_k_is_refused_in_python_too() -> None:
    with pytest.raises(ValueError, match="k_start must be 0 .* or at least k, got 4 and k 5"):
        KMIPAttention(8, 2, k=5, selection=AnnealedKeys(4))(torch.randn(20, 8))


def test_without_a_start_k_does_not_change() -> None:
    attention, x = KMIPAttention(8, 2, k=3), torch.randn(20, 8)
    outputs = [attention(x, replace(GraphContext.of(None, x), progress=progress)) for progress in (0.0, 0.2, 1.0)]
    assert all(torch.equal(out, outputs[0]) for out in outputs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 5, "k_start": 4}, r"k_start must be 0 \(constant k\) or at least k, got 4 and k 5"),
        ({"k_start": -1}, "k_start must be 0"),
        ({"anneal_until": 0.0}, r"anneal_until must be in \(0, 1\], got 0.0"),
        ({"anneal_until": 1.5}, r"anneal_until must be in \(0, 1\], got 1.5"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_kmip(8, 2, **options)
