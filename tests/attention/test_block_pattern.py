"""Blocks that BigBird's blocks attend to: what may be drawn, how often, by which seed."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention.bigbird import fixed_blocks, random_blocks
from graphgps_kmip.compat.public_faults import draw_public, public_random_blocks
from tests.recorded import load


def drawn(num_blocks: int, num_heads: int = 2, num_random: int = 3, seed: int = 0) -> Tensor:
    """Random blocks of each block of one graph, (num_blocks, H, R)."""
    block = torch.arange(num_blocks)
    return random_blocks(block, torch.full_like(block, num_blocks - 1), num_heads, num_random, torch.tensor(seed))


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 4, 5, 9])
def test_fixed_blocks_are_window_and_ends_each_once(num_blocks: int) -> None:
    block = torch.arange(num_blocks)
    for own, row in enumerate(fixed_blocks(block, torch.full_like(block, num_blocks - 1)).tolist()):
        found = sorted(other for other in row if other >= 0)
        wanted = {0, own - 1, own, own + 1, num_blocks - 1} & set(range(num_blocks))
        assert found == sorted(wanted)


@pytest.mark.parametrize("num_random", [0, 1, 3, 6])
@pytest.mark.parametrize("num_blocks", [*range(3, 12), 40])
def test_random_blocks_are_distinct_and_new_and_all_there_are_where_few(num_blocks: int, num_random: int) -> None:
    table = drawn(num_blocks, 4, num_random)
    assert table.shape == (num_blocks, 4, num_random)
    for own in range(1, num_blocks - 1):
        choices = set(range(num_blocks)) - {0, own - 1, own, own + 1, num_blocks - 1}
        for row in table[own].tolist():
            found = [other for other in row if other >= 0]
            assert len(found) == len(set(found)) == min(num_random, len(choices))
            assert set(found) <= choices


def test_every_set_of_random_blocks_is_as_likely() -> None:
    rows = drawn(11, 20_000, 3)[4]
    sets, count = rows.sort(dim=1).values.unique(dim=0, return_counts=True)
    assert sets.tolist() == [list(chosen) for chosen in combinations((1, 2, 6, 7, 8, 9), 3)]
    assert (count - 1000).abs().max() < 123  # four standard deviations


def test_random_blocks_of_neighbours_heads_and_seeds_are_independent() -> None:
    table = drawn(2000, 2, 1)[2:-2, :, 0].double()
    other = drawn(2000, 2, 1, seed=1)[2:-2, :, 0].double()
    pairs = (
        (table[1:, 0], table[:-1, 0]),
        (table[:, 0], table[:, 1]),
        (table[:, 0], other[:, 0]),
        (table[1:, 0], other[:-1, 0]),
    )
    for one, two in pairs:
        assert torch.corrcoef(torch.stack([one, two]))[0, 1].abs() < 0.09  # four standard deviations


def test_the_draw_depends_on_seed_and_graph_size_and_on_nothing_around() -> None:
    assert torch.equal(drawn(30), drawn(30))
    assert not torch.equal(drawn(30), drawn(30, seed=1))
    assert (drawn(31)[1:-2] == drawn(30)[1:-1]).float().mean() < 0.5
    sizes = torch.tensor([30, 31])
    block = torch.cat([torch.arange(30), torch.arange(31)])
    both = random_blocks(block, (sizes - 1).repeat_interleave(sizes), 2, 3, torch.tensor(0))
    assert torch.equal(both, torch.cat([drawn(30), drawn(31)]))


def test_no_global_random_state_is_touched_unless_asked() -> None:
    np.random.seed(5)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    drawn(30)
    public_random_blocks.__wrapped__(30, 2, 3)
    assert (np.random.get_state()[1] == before[0]).all()
    assert torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.parametrize(
    ("num_blocks", "parts"), [(30, [(0, 11)] * 3), (12, [(0, 11)] * 3), (11, [(0, 8), (8, 11), (8, 11)])]
)
def test_the_public_draw_has_its_ranges(num_blocks: int, parts: list[tuple[int, int]]) -> None:
    table = public_random_blocks(num_blocks, 40, 3)[1:]  # 12 > 2 * 3 + 5 blocks, 11 > 3 + 5
    for column, (start, end) in enumerate(parts):
        assert table[..., column].unique().tolist() == list(range(start, end))
    assert (table == torch.arange(1, num_blocks)[:, None, None]).any()  # the own block too


@pytest.mark.parametrize("name", ["CustomGatedGCN_BigBird_batch_norm_relu_b1n15", "None_BigBird_batch_norm_relu_b3"])
def test_the_public_random_blocks_are_those_of_the_record(name: str) -> None:
    recorded = load(f"B_layers/gps_{name}")["eval/extra/bigbird_rand_attn"].long()  # (H, P - 2, R)
    found = public_random_blocks(recorded.size(1) + 2, 2, 1)
    assert torch.equal(found[1:-1].transpose(0, 1), recorded)


def test_the_public_draw_follows_numpys_generator_row_by_row_and_head_by_head() -> None:
    rng = np.random.RandomState(0)
    expected = [[rng.permutation(7)[:3].tolist() for _ in range(2)] for _ in range(6)]
    assert public_random_blocks(7, 2, 3)[1:].tolist() == expected
    rng = np.random.RandomState(0)
    halves = [
        [[rng.permutation(np.arange(*span))[:count].tolist() for _ in range(2)] for _ in rows]
        for rows in (range(1, 9), range(9, 11))
        for span, count in (((0, 9), 2), ((9, 11), 2))
    ]
    near, far, later_near, later_far = halves
    expected = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(near, far, strict=True)]
    expected += [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(later_near, later_far, strict=True)]
    assert public_random_blocks(11, 2, 4)[1:].tolist() == expected


def test_the_public_draw_repeats_blocks_where_there_are_too_few() -> None:
    assert public_random_blocks(2, 1, 3)[1, 0].unique().tolist() == [0, 1]
    assert public_random_blocks(9, 1, 3)[1:, 0, 1:].unique().tolist() == [8]  # the only one of the second part
    assert draw_public(np.random.RandomState(1), 1, 2, 3).tolist() == [[[0] * 3] * 2]
