"""The fused C search: each of its shortcuts on data that is made to mislead it, on every kind of vector unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from graphgps_kmip.ops.native import unavailable_reason
from graphgps_kmip.search import SearchProblem, choose
from graphgps_kmip.search import fused_cpu as cpu

pytestmark = pytest.mark.skipif(unavailable_reason("kmip_search") is not None, reason="no C compiler")


def check(q: Tensor, k: Tensor, num_keys: int, **options: Any) -> cpu.ScanCounts:
    """Scores as by float64 brute force, to the rounding that the issue of an exact search allows; indices belong."""
    q, k = (tensor if tensor.dim() == 3 else tensor[None] for tensor in (q, k))
    index, score, counts = cpu.scan(SearchProblem.of(q, k, None, None, num_keys), **options)
    products = q.double() @ k.double().mT
    best = products.topk(min(num_keys, k.size(-2))).values
    norms = q.double().norm(dim=-1, keepdim=True) * k.double().norm(dim=-1).max()
    bound = 4 * q.size(-1) * torch.finfo(q.dtype).eps * norms
    assert ((score[..., : best.size(-1)].double() - best).abs() <= bound).all()
    assert (index[..., best.size(-1) :] == -1).all()
    keys = index[..., : best.size(-1)]
    assert ((products.gather(-1, keys) - best).abs() <= bound).all()
    assert (keys.sort(-1).values.diff(dim=-1) > 0).all()
    return counts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("queries", "keys", "dim", "num_keys"),
    [
        (1, 1, 1, 1),
        (9, 47, 5, 3),  # less than a panel of 48 keys
        (17, 48, 3, 10),
        (130, 97, 4, 24),  # two groups of queries, two panels and one key
        (30, 500, 7, 25),  # two sets of groups, a list that is put in order at the end
        (5, 300, 2, 40),
        (9, 30, 2, 30),  # all keys of less than a panel
        (3, 1400, 4, 210),  # too many for thresholds from group maxima
        (40, 1500, 10, 10),  # norm order, integer screen
        (40, 1500, 33, 17),
        (20, 3200, 8, 1),
    ],
)
def test_the_answer_is_exact_at_every_size_that_takes_another_way(
    instruction_set: str, dtype: torch.dtype, queries: int, keys: int, dim: int, num_keys: int
) -> None:
    q, k = torch.randn(1, queries, dim, dtype=dtype), torch.randn(1, keys, dim, dtype=dtype)
    for order in cpu.ORDERS:
        for screen in (False, True):
            check(q, k, num_keys, order=order, screen=screen)
    assert instruction_set in (cpu.instruction_set(), "auto")


def descending(count: int = 3000, dim: int = 8) -> tuple[Tensor, Tensor]:
    """Keys of descending norm whose score increases for every query: the worst case of the norm order."""
    q = torch.zeros(64, dim)
    q[:, 0] = 1
    part = torch.linspace(0.1, 0.6, count)
    k = torch.zeros(count, dim)
    k[:, 0], k[:, 1] = part, (torch.linspace(2, 1, count) ** 2 - part**2).sqrt()
    return q, k


def some_zero() -> tuple[Tensor, Tensor]:
    q, k = torch.randn(24, 10), torch.randn(3000, 10)
    q[::3], k[:2990] = 0, 0
    return q, k


SETS: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "descending": descending,
    "duplicated": lambda: (torch.randn(24, 10), torch.randn(40, 10)[torch.randint(40, (3000,))]),
    "heavy tails": lambda: (
        torch.randn(24, 10) / torch.rand(24, 10),
        torch.randn(3000, 10) / torch.rand(3000, 10) ** 2,
    ),
    "one direction": lambda: (torch.rand(24, 10) + 5, torch.rand(3000, 10) + 5),
    "some zero": some_zero,
    "negative scores": lambda: (-torch.rand(24, 10), torch.rand(3000, 10)),
    "on a line": lambda: (torch.randn(24, 10), torch.randn(10) * torch.randn(3000, 1).exp()),
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("scale", [1.0, 1e-18, 1e18])
@pytest.mark.parametrize("order", ["norm", "tree"])
@pytest.mark.parametrize("screen", [False, True])
def test_data_that_mislead_the_shortcuts_do_not_change_the_answer(
    name: str, scale: float, order: str, screen: bool
) -> None:
    q, k = SETS[name]()
    check(q * scale, k, 10, order=order, screen=screen)
    check(q.double() * scale, k.double(), 10, order=order, screen=screen)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("name", SETS)
def test_every_instruction_set_screens_misleading_data_without_a_loss(name: str) -> None:
    q, k = SETS[name]()
    counts = check(q, k, 10, screen=True)
    assert bool(counts.screened) == (cpu.instruction_set() in cpu.SCREEN_FROM)
    check(q.double() * 1e18, k.double(), 10, screen=True)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dim", [2, 3, 16, 64, 700])
def test_byte_sums_at_the_ends_of_their_range_neither_saturate_nor_wrap_around(dim: int) -> None:
    signs = torch.randn(4, dim).sign()
    unit, pair = torch.eye(dim)[:1], torch.eye(dim)[:2].sum(0, keepdim=True)
    q = torch.cat([signs, signs.abs(), unit, pair, -pair, torch.arange(1, dim + 1)[None] / dim])
    near = [(3 * x + 0.05 * torch.randn(12, 1, dim)).flatten(0, 1) for x in (q, -q)]
    k = torch.cat([torch.randn(2000, dim), *near])[torch.randperm(2000 + 24 * len(q))]
    for order in ("given", "norm"):
        counts = check(q, k, 10, order=order, screen=True)
        assert bool(counts.screened) == (cpu.instruction_set() in cpu.SCREEN_FROM)


def test_equal_scores_do_not_enter_again_and_again() -> None:
    q, k = torch.randn(16, 10), torch.randn(1, 10).expand(5000, 10)
    counts = check(q, k, 10)
    assert counts.inserted < 16 * 100
    assert counts.survived < 16 * 1000  # the screen cannot tell them apart, and is left


def test_norm_order_ends_rows_early_and_not_for_keys_of_equal_norm() -> None:
    q, k = torch.randn(64, 4), torch.randn(20_000, 4)
    pairs = 64 * 20_000
    assert check(q, k, 5).scored < 0.3 * pairs
    assert check(q, k / k.norm(dim=-1, keepdim=True), 5, screen=False).scored >= pairs


@pytest.mark.parametrize("order", cpu.ORDERS)
def test_any_number_of_threads_gives_the_same_answer(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ptr = torch.tensor([0, 3, 3, 1700, 1800, 4000])
    problem = SearchProblem.of(torch.randn(2, 4000, 6), torch.randn(2, 4000, 6), ptr, ptr, 9)
    answers = []
    for count in (1, 2, 5):
        monkeypatch.setattr(cpu, "num_threads", lambda _, count=count: count)
        answers.append(cpu.scan(problem, order))
    assert all(torch.equal(answer[0], answers[0][0]) for answer in answers)
    assert all(torch.equal(answer[1], answers[0][1]) for answer in answers)


@pytest.mark.usefixtures("instruction_set")
def test_auto_takes_the_tree_for_as_many_keys_and_as_few_dimensions_as_pay_and_like_norms() -> None:
    most = cpu.TREE_DIM.get(cpu.instruction_set(), 5)
    fewest = 4000 if "avx512" in cpu.instruction_set() else 2000
    x = torch.randn(1, fewest, most)
    unit = x / x.norm(dim=-1, keepdim=True)
    assert choose(SearchProblem.of(x, unit, None, None, 10)).name == "tree"
    assert choose(SearchProblem.of(x, unit[:, 1:], None, None, 10)).name == "cpu"
    wide, long = torch.ones(1, fewest, most + 1), torch.randn(1, fewest, 3) ** 5
    assert choose(SearchProblem.of(wide, wide, None, None, 10)).name == "cpu"
    assert choose(SearchProblem.of(long, long, None, None, 10)).name == "cpu"  # norm order prunes as much
