"""The C loops of drawn edges and layer rows against numpy and torch, number for number."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from graphgps_kmip.data import edge_sampling, layer_loader
from graphgps_kmip.data.edge_sampling import HOW, KERNEL, draw_edges, negative_log, uniform_numbers
from graphgps_kmip.data.layer_loader import with_sources
from graphgps_kmip.ops.native import unavailable_reason
from tests.data.scored import layer_of

NEEDS_C = pytest.mark.skipif(unavailable_reason(*KERNEL) is not None, reason="no C compiler")
GENERATOR = torch.Generator().manual_seed(3)
DEGREES = torch.cat([torch.randint(0, 60, (400,), generator=GENERATOR), torch.tensor([0, 511, 512, 513, 3000, 8, 16])])
KINDS = {
    "random": layer_of(DEGREES),
    "ties": layer_of(DEGREES, torch.randint(1, 3, (int(DEGREES.sum()),), generator=GENERATOR).float()),
    "equal": layer_of(DEGREES, torch.ones(int(DEGREES.sum()))),
    "zeros": layer_of(DEGREES, (torch.rand(int(DEGREES.sum()), generator=GENERATOR) < 0.3).float() + 1e-30),
}
SMALLEST = torch.tensor([0.0, -0.0, 1e-45, 1e-38, 1.0]).repeat(int(DEGREES.sum()))[: int(DEGREES.sum())]
KINDS["smallest numbers"] = replace(KINDS["random"], score=SMALLEST)


@NEEDS_C
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", HOW)
def test_both_draw_the_same_edges(how: str, kind: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    nodes = torch.randperm(len(DEGREES), generator=torch.Generator().manual_seed(1))[:300]
    cases = [
        (k, repeat, selected) for k in (1, 5, 12, 13, 100) for repeat in (False, True) for selected in (None, nodes)
    ]
    try:
        fast = [draw_edges(KINDS[kind], k, how, (4, k, 1), selected, repeat) for k, repeat, selected in cases]
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr(edge_sampling, "unavailable_reason", lambda *_: "no compiler")
    for (k, repeat, selected), (ids, counts) in zip(cases, fast, strict=True):
        slow_ids, slow_counts = draw_edges(KINDS[kind], k, how, (4, k, 1), selected, repeat)
        assert torch.equal(counts, slow_counts)
        assert torch.equal(ids, slow_ids)


@NEEDS_C
@pytest.mark.parametrize("num_nodes", [1, 63, 64, 65, 1000])
def test_both_number_the_rows_of_a_layer_alike(num_nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(num_nodes)
    for num_rows, num_sources in ((1, 0), (0, 5), (num_nodes, 9), (num_nodes // 3, 2 * num_nodes)):
        rows = torch.randperm(num_nodes, generator=generator)[:num_rows]
        source = torch.randint(num_nodes, (num_sources,), generator=generator)
        monkeypatch.setattr(layer_loader, "unavailable_reason", lambda *_: None)
        fast = with_sources(rows, source, num_nodes)
        monkeypatch.setattr(layer_loader, "unavailable_reason", lambda *_: "no compiler")
        for item, other in zip(fast, with_sources(rows, source, num_nodes), strict=True):
            assert torch.equal(item, other)


@pytest.mark.parametrize("reason", [pytest.param(None, marks=NEEDS_C, id="C"), pytest.param("none", id="sorting")])
def test_rows_are_the_targets_then_the_other_sources_in_increasing_order(
    reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_loader, "unavailable_reason", lambda *_: reason)
    rows, place = with_sources(torch.tensor([8, 3]), torch.tensor([5, 3, 9, 5, 0, 8]), 10)
    assert rows.tolist() == [8, 3, 0, 5, 9]
    assert rows[place].tolist() == [5, 3, 9, 5, 0, 8]


def test_the_logarithm_is_exact_to_the_last_digits() -> None:
    u = np.concatenate(
        [np.random.default_rng(0).random(100_000), 2.0 ** -np.arange(1, 55), 1 - 2.0 ** -np.arange(2, 54)]
    )
    exact = np.array([-math.log(value) for value in u])
    assert (np.abs(negative_log(u) - exact) <= 1e-15 * exact).all()


def test_random_numbers_are_never_0_or_1_and_spread_evenly() -> None:
    state = edge_sampling.node_states(12345, np.arange(1000))
    u = uniform_numbers(state[:, None], np.arange(200))
    assert 0 < u.min() < 1e-4
    assert 1 - 1e-4 < u.max() < 1
    counts = np.bincount((u * 100).astype(int).ravel(), minlength=100)
    assert (np.abs(counts - 2000) < 5 * 2000**0.5).all()
    for shifted in (np.corrcoef(u[:, 1:].ravel(), u[:, :-1].ravel()), np.corrcoef(u[1:].ravel(), u[:-1].ravel())):
        assert abs(shifted[0, 1]) < 0.01
