"""BigBird against a brute-force form, the random blocks of its blocks, and those of the public code."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import bigbird as blockwise
from graphgps_kmip.attention.bigbird import BigBirdAttention, random_blocks
from graphgps_kmip.compat.public_faults import FAULTS, draw_with_seed_0, repeat_faults
from tests.attention.contexts import context_of
from tests.attention.largest import largest_tensor
from tests.recorded import load
from tests.reference.attention_formulas import bigbird

CONTEXT = context_of([26, 0, 1, 5, 13, 7])
EXACT = {"rtol": 1e-11, "atol": 1e-11}  # float64 sums in another order

PATTERNS = FAULTS["gt.bigbird.pattern"].rule.names


def make_bigbird(*sizes: int, pattern: str, **options: Any) -> BigBirdAttention:
    return repeat_faults(BigBirdAttention(*sizes, **options), {"gt.bigbird.pattern": pattern})


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("block_size", "num_random"), [(3, 3), (2, 1), (1, 0), (5, 2)])
def test_output_and_gradients_equal_dense_attention_under_the_mask_in_each_graph(
    block_size: int, num_random: int, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fused:
        monkeypatch.setattr(blockwise, "cpu_can_run", lambda *_: False)
    options = {"block_size": block_size, "num_random_blocks": num_random, "use_bias": fused}
    attention = BigBirdAttention(8, 2, **options).double()
    x = torch.randn(52, 8, dtype=torch.float64, requires_grad=True)
    dense = [bigbird(attention, graph) for graph in x.split(CONTEXT.sizes.tolist()) if len(graph)]
    outputs = attention(x, CONTEXT), torch.cat(dense)
    torch.testing.assert_close(*outputs, **EXACT)
    leaves, cotangent = [x, *attention.parameters()], torch.randn_like(x)
    torch.testing.assert_close(*(torch.autograd.grad(out, leaves, cotangent) for out in outputs), **EXACT)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_graphs_of_any_size_are_taken(pattern: str) -> None:
    attention = make_bigbird(8, 2, pattern=pattern)
    for num_nodes in range(1, 16):
        x = torch.randn(num_nodes, 8, requires_grad=True)
        attention(x).square().sum().backward()
        assert x.grad.isfinite().all()


def test_layers_draw_different_blocks_and_the_state_dict_carries_them() -> None:
    first, second, x = BigBirdAttention(8, 2), BigBirdAttention(8, 2), torch.randn(90, 8)
    seed = second.seed.clone()
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))
    second.seed.copy_(seed)
    assert (first(x) - second(x)).abs().max() > 1e-3


def test_numpys_global_random_state_is_reset_only_where_that_is_asked_for() -> None:
    x = torch.randn(40, 8)
    outputs = {}
    for pattern in PATTERNS:
        attention = make_bigbird(8, 2, pattern=pattern)
        torch.manual_seed(0)
        for parameter in attention.parameters():
            torch.nn.init.normal_(parameter)
        np.random.seed(7)
        before = np.random.get_state()[1].copy()
        outputs[pattern] = attention(x)
        assert (np.random.get_state()[1] == before).all() == (pattern != "public_global_rng")
    assert torch.equal(outputs["public"], outputs["public_global_rng"])


def test_memory_is_linear_in_the_nodes() -> None:
    attention, inputs = BigBirdAttention(8, 2), [torch.randn(size, 8) for size in (240, 480)]
    small, large = (largest_tensor(lambda x=x: attention(x)) for x in inputs)
    assert large <= 2.1 * small


def drawn(num_blocks: int, num_heads: int = 2, num_random: int = 3, seed: int = 0) -> Tensor:
    block = torch.arange(num_blocks)
    return random_blocks(block, torch.full_like(block, num_blocks - 1), num_heads, num_random, torch.tensor(seed))


@pytest.mark.parametrize("num_random", [0, 1, 3, 6])
@pytest.mark.parametrize("num_blocks", [3, 5, 6, 8, 11, 40])
def test_random_blocks_are_distinct_and_new_and_all_there_are_where_few(num_blocks: int, num_random: int) -> None:
    table = drawn(num_blocks, 4, num_random)
    assert table.shape == (num_blocks, 4, num_random)
    for block in range(1, num_blocks - 1):
        choices = set(range(num_blocks)) - {0, block - 1, block, block + 1, num_blocks - 1}
        for row in table[block].tolist():
            blocks = [other for other in row if other >= 0]
            assert len(blocks) == len(set(blocks)) == min(num_random, len(choices))
            assert set(blocks) <= choices


def test_every_set_of_random_blocks_is_as_likely() -> None:
    rows = drawn(11, 20_000, 3)[4]
    sets, count = rows.sort(dim=1).values.unique(dim=0, return_counts=True)
    assert sets.tolist() == [list(blocks) for blocks in combinations((1, 2, 6, 7, 8, 9), 3)]
    assert (count - 1000).abs().max() < 123  # four standard deviations


@pytest.mark.parametrize("name", ["CustomGatedGCN_BigBird_batch_norm_relu_b1n15", "None_BigBird_batch_norm_relu_b3"])
def test_the_draw_with_seed_0_is_that_of_the_record(name: str) -> None:
    recorded = load(f"B_layers/gps_{name}")["eval/extra/bigbird_rand_attn"].long()  # (H, P - 2, R)
    blocks = draw_with_seed_0(recorded.size(1) + 2, 2, 1)
    assert torch.equal(blocks[1:-1].transpose(0, 1), recorded)


def test_the_public_draw_follows_numpys_generator_row_by_row_and_head_by_head() -> None:
    rng = np.random.RandomState(0)
    expected = [[rng.permutation(7)[:3].tolist() for _ in range(2)] for _ in range(6)]
    assert draw_with_seed_0(7, 2, 3)[1:].tolist() == expected
    rng = np.random.RandomState(0)
    halves = [
        [[rng.permutation(np.arange(*span))[:count].tolist() for _ in range(2)] for _ in rows]
        for rows in (range(1, 9), range(9, 11))
        for span, count in (((0, 9), 2), ((9, 11), 2))
    ]
    near, far, later_near, later_far = halves
    expected = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(near, far, strict=True)]
    expected += [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(later_near, later_far, strict=True)]
    assert draw_with_seed_0(11, 2, 4)[1:].tolist() == expected
