"""The ball tree against brute force, and its nodes against the readable form of the same algorithm."""

from __future__ import annotations

import pytest
import torch
from run.bench.ball_tree import BallTree
from torch import Tensor

from graphgps_kmip.native.compile_kernels import compiler
from tests.reference import ball_tree as reference
from tests.search.problems import Ragged, check_answer

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C compiler")
LEAF_SIZES = [1, 3, 1000]


def check_found(keys: Tensor, q: Tensor, num_keys: int, leaf_size: int) -> None:
    index, score, _ = BallTree(keys, leaf_size).search(q, num_keys)
    check_answer(Ragged(q[None], keys[None], [len(q)], [len(keys)]), num_keys, index[None], score[None])


@needs_compiler
@pytest.mark.parametrize("dim", [1, 2, 4, 11])
@pytest.mark.parametrize("leaf_size", LEAF_SIZES)
def test_the_tree_equals_brute_force_on_graphs_that_are_split_many_times(dim: int, leaf_size: int) -> None:
    check_found(torch.randn(300, dim).double(), torch.randn(40, dim).double(), 10, leaf_size)


@needs_compiler
def test_one_key_is_a_tree_of_one_ball() -> None:
    tree = BallTree(torch.tensor([[3.0, 4.0]]), 1)
    index, score, visited = tree.search(torch.tensor([[1.0, 2.0]]), 2)
    assert (tree.num_nodes, tree.depth) == (1, 0)
    assert (index.tolist(), score.tolist(), visited.tolist()) == ([[0, -1]], [[11.0, -torch.inf]], [1])
    assert score.dtype == torch.float32


@needs_compiler
def test_equal_keys_are_halved_and_not_peeled_off() -> None:
    keys = torch.ones(1024, 2)
    tree = BallTree(keys, 1)
    assert (tree.num_nodes, tree.depth) == (2047, 10)
    index, score, _ = tree.search(keys[:1], 4)
    assert len(set(index[0].tolist())) == 4
    assert score.tolist() == [[2.0] * 4]


@needs_compiler
@pytest.mark.parametrize("leaf_size", [1, 3])
def test_a_tree_as_deep_as_it_has_keys_is_searched(leaf_size: int) -> None:
    keys = 4.0 ** torch.arange(-200, 200, dtype=torch.float64)[:, None]  # the largest is always alone
    assert BallTree(keys, leaf_size).depth == 400 - leaf_size
    check_found(torch.cat([keys, -keys], 1), torch.tensor([[1.0, 0.0], [1.0, 1.0], [-1.0, 2.0]]).double(), 5, leaf_size)


@needs_compiler
@pytest.mark.parametrize("scale", [1e-170, 1e-30, 1.0, 1e30, 1e150])
def test_distances_that_underflow_or_are_lost_in_rounding_prune_nothing_that_counts(scale: float) -> None:
    keys = 1 + 1e-15 * torch.randn(200, 3, dtype=torch.float64)  # the balls are as small as the rounding
    q = torch.randn(30, 3, dtype=torch.float64)
    split, whole = (BallTree(scale * keys, leaf_size).search(q, 5)[1] for leaf_size in (1, 200))
    # to the last bit: this is how far a bound that rounding has put too low would be off
    torch.testing.assert_close(split, whole, rtol=0, atol=0)


@needs_compiler
@pytest.mark.parametrize("seed", [0, 1, 2**63 + 5])
@pytest.mark.parametrize(("dim", "leaf_size"), [(1, 1), (2, 1), (5, 1), (3, 7)])
def test_tree_and_visits_are_those_of_the_readable_form(dim: int, leaf_size: int, seed: int) -> None:
    keys, q = torch.randn(150, dim).double(), torch.randn(20, dim).double()
    tree, expected = BallTree(keys, leaf_size, seed), reference.build(keys, leaf_size, seed)
    assert (tree.num_nodes, tree.depth) == (len(expected.walk()), expected.depth)
    _, score, visited = tree.search(q, 6)
    for row, query in enumerate(q):
        best, entered = reference.search(expected, keys, query, 6)
        assert int(visited[row]) == entered
        torch.testing.assert_close(score[row], query.new_tensor(best), rtol=1e-12, atol=1e-12)


@needs_compiler
def test_another_seed_gives_another_tree_and_the_same_answer() -> None:
    keys, q = torch.randn(200, 3), torch.randn(10, 3)
    first, second = (BallTree(keys, 1, seed).search(q, 4) for seed in (0, 1))
    assert not torch.equal(first[2], second[2])
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


@needs_compiler
def test_a_tree_that_is_one_leaf_is_visited_once_and_one_in_few_dimensions_hardly() -> None:
    keys, q = torch.randn(3000, 1), torch.randn(50, 1)
    assert BallTree(keys, 3000).search(q, 10)[2].tolist() == [1] * 50
    tree = BallTree(keys, 1)
    visited = tree.search(q, 10)[2]
    assert tree.num_nodes == 2 * 3000 - 1
    assert visited.min() >= 2 * 10 - 1  # ten leaves and what lies above them
    assert visited.max() < 100


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_share_the_queries_and_change_nothing(threads: int) -> None:
    keys, q = torch.randn(200, 3), torch.randn(70, 3)
    expected = BallTree(keys, 2).search(q, 4)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = BallTree(keys, 2).search(q, 4)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@needs_compiler
@pytest.mark.parametrize("view", [False, True])
def test_inputs_may_be_views_and_are_left_as_they_are(view: bool) -> None:
    keys, q = torch.randn(3, 50).double().mT, torch.randn(3, 20).double().mT
    keys, q = (keys, q) if view else (keys.contiguous(), q.contiguous())
    before = keys.clone(), q.clone()
    check_found(keys, q, 4, 1)
    torch.testing.assert_close((keys, q), before, rtol=0, atol=0)
