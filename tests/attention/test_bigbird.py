"""BigBird against the record, a brute-force form and itself in its two forms; the blocks that its blocks attend to."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention import bigbird as blockwise
from graphgps_kmip.attention.bigbird import FORMS, BigBirdAttention, fixed_blocks, random_blocks
from graphgps_kmip.compat.public_faults import FAULTS, draw_with_seed_0, repeat_faults
from tests.attention.largest import largest_tensor
from tests.recorded import load

PTR = torch.tensor([0, 26, 26, 27, 32, 45, 52])  # the second graph has no node
CONTEXT = GraphContext(torch.repeat_interleave(PTR.diff()), PTR)
EXACT = {"rtol": 1e-11, "atol": 1e-11}  # float64 sums in another order

PATTERNS = FAULTS["gt.bigbird.pattern"].rule.names


def make_bigbird(*sizes: int, pattern: str, **options: Any) -> BigBirdAttention:
    return repeat_faults(BigBirdAttention(*sizes, **options), {"gt.bigbird.pattern": pattern})


def by_sets(attention: BigBirdAttention, x: Tensor) -> Tensor:
    """One graph, with a dense mask from sets of blocks; only the random draw is the package's own."""
    size, last = attention.block_size, (len(x) - 1) // attention.block_size
    blocks = torch.arange(last + 1)
    drawn = random_blocks(blocks, blocks * 0 + last, attention.num_heads, attention.num_random_blocks, attention.seed)
    linears = attention.query, attention.key, attention.value
    heads = [linear(x).unflatten(1, (attention.num_heads, -1)).transpose(0, 1) for linear in linears]  # (H, N, D)
    seen = torch.zeros(attention.num_heads, len(x), len(x), dtype=torch.bool)
    for head, query, key in product(range(attention.num_heads), range(len(x)), range(len(x))):
        own, other = query // size, key // size
        near = abs(own - other) <= 1 or {own, other} & {0, last}
        seen[head, query, key] = bool(near) or other in drawn[own, head].tolist()
    score = (heads[0] @ heads[1].mT / heads[0].size(-1) ** 0.5).masked_fill(~seen, -torch.inf)
    out = (score.softmax(-1) @ heads[2]).transpose(0, 1).flatten(1)
    h = attention.out_norm(attention.out(out) + x)
    return attention.ffn_norm(attention.ffn(h) + h)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("block_size", "num_random"), [(3, 3), (2, 1), (1, 0), (5, 2)])
def test_it_equals_dense_attention_under_the_mask_in_each_graph(form: str, block_size: int, num_random: int) -> None:
    attention = BigBirdAttention(8, 2, block_size=block_size, num_random_blocks=num_random, form=form).double()
    x = torch.randn(PTR[-1], 8, dtype=torch.float64)
    graphs = [x[start:end] for start, end in zip(PTR, PTR[1:], strict=False) if end > start]
    expected = torch.cat([by_sets(attention, graph) for graph in graphs])
    torch.testing.assert_close(attention(x, CONTEXT), expected, **EXACT)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("use_bias", [False, True])
def test_both_forms_give_the_same_output_and_gradients(
    pattern: str, use_bias: bool, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fused:
        monkeypatch.setattr(blockwise, "cpu_can_run", lambda *_: False)
    blocks, edges = (
        make_bigbird(8, 2, num_random_blocks=2, use_bias=use_bias, form=form, pattern=pattern).double()
        for form in FORMS
    )
    edges.load_state_dict(blocks.state_dict())
    inputs = [torch.randn(PTR[-1], 8, dtype=torch.float64).requires_grad_()]
    inputs.append(inputs[0].detach().clone().requires_grad_())
    outputs = [attention(x, CONTEXT) for attention, x in zip((blocks, edges), inputs, strict=True)]
    torch.testing.assert_close(*outputs, **EXACT)
    cotangent = torch.randn_like(outputs[0])
    for out in outputs:
        (out * cotangent).sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, **EXACT)
    for one, other in zip(blocks.parameters(), edges.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, **EXACT)


@pytest.mark.parametrize("form", FORMS)
def test_a_graph_alone_equals_the_graph_in_a_batch_unless_the_public_pattern_is_asked_for(form: str) -> None:
    x = torch.randn(PTR[-1], 8, dtype=torch.float64)
    for pattern, alike in (("graph", True), ("public", False)):
        attention = make_bigbird(8, 2, form=form, pattern=pattern).double()
        alone = torch.cat([attention(x[a:b]) for a, b in zip(PTR, PTR[1:], strict=False)])
        assert ((attention(x, CONTEXT) - alone).abs().max() < 1e-11) == alike


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_graphs_of_any_size_are_taken(form: str, pattern: str) -> None:
    attention = make_bigbird(8, 2, form=form, pattern=pattern)
    for num_nodes in range(1, 16):
        x = torch.randn(num_nodes, 8, requires_grad=True)
        attention(x).square().sum().backward()
        assert x.grad.isfinite().all()


def test_layers_draw_different_blocks_and_the_state_dict_carries_them() -> None:
    one, other, x = BigBirdAttention(8, 2), BigBirdAttention(8, 2), torch.randn(90, 8)
    assert one.seed != other.seed
    seed = other.seed.clone()
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x), other(x))
    other.seed.copy_(seed)
    assert (one(x) - other(x)).abs().max() > 1e-3


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


@pytest.mark.parametrize(("form", "rest"), [("block_sparse", []), ("edges", []), ("edges", [1] * 60)])
def test_memory_is_linear_in_the_nodes_and_a_list_of_edges_needs_no_padding(form: str, rest: list[int]) -> None:
    attention, found = BigBirdAttention(8, 2, form=form), []
    for sizes in ([240], [480, *rest]):
        x, batch = torch.randn(sum(sizes), 8), torch.repeat_interleave(torch.tensor(sizes))
        found.append(largest_tensor(lambda x=x, batch=batch: attention(x, batch)))
    assert found[1] <= 2.1 * found[0] * sum(sizes) / 480


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


@pytest.mark.parametrize(
    ("num_blocks", "parts"), [(30, [(0, 11)] * 3), (12, [(0, 11)] * 3), (11, [(0, 8), (8, 11), (8, 11)])]
)
def test_the_public_draw_has_its_ranges(num_blocks: int, parts: list[tuple[int, int]]) -> None:
    table = draw_with_seed_0(num_blocks, 40, 3)[1:]  # 12 > 2 * 3 + 5 blocks, 11 > 3 + 5
    for column, (start, end) in enumerate(parts):
        assert table[..., column].unique().tolist() == list(range(start, end))
    assert (table == torch.arange(1, num_blocks)[:, None, None]).any()  # the own block too


@pytest.mark.parametrize("name", ["CustomGatedGCN_BigBird_batch_norm_relu_b1n15", "None_BigBird_batch_norm_relu_b3"])
def test_the_draw_with_seed_0_are_those_of_the_record(name: str) -> None:
    recorded = load(f"B_layers/gps_{name}")["eval/extra/bigbird_rand_attn"].long()  # (H, P - 2, R)
    found = draw_with_seed_0(recorded.size(1) + 2, 2, 1)
    assert torch.equal(found[1:-1].transpose(0, 1), recorded)


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
