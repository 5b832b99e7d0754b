"""BigBird against the recorded original layers, a brute-force form, and itself in its two forms."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import GraphContext, bigbird
from graphgps_kmip.attention import bigbird as blockwise
from graphgps_kmip.attention.bigbird import FORMS, BigBirdAttention, random_blocks
from graphgps_kmip.compat.public_faults import FAULTS, repeat_faults
from tests.attention.largest import largest_tensor
from tests.attention.recorded_gps import check_layer

PTR = torch.tensor([0, 26, 26, 27, 32, 45, 52])  # the second graph has no node
CONTEXT = GraphContext(torch.repeat_interleave(PTR.diff()), PTR)
EXACT = {"rtol": 1e-11, "atol": 1e-11}  # float64 sums in another order
RECORDS = [
    "gps_CustomGatedGCN_BigBird_batch_norm_relu_b1n15",
    "gps_CustomGatedGCN_BigBird_batch_norm_relu_b3",
    "gps_None_BigBird_batch_norm_relu_b3",
]
NAMES = {
    "encoder.layers.0.attention.self.": "",
    "encoder.layers.0.attention.output.dense.": "out.",
    "encoder.layers.0.attention.output.LayerNorm.": "out_norm.",
    "encoder.layers.0.intermediate.dense.": "ffn.0.",
    "encoder.layers.0.output.dense.": "ffn.2.",
    "encoder.layers.0.output.LayerNorm.": "ffn_norm.",
}

PATTERNS = FAULTS["gt.bigbird.pattern"].rule.names


def make_bigbird(*sizes: int, pattern: str, **options: Any) -> BigBirdAttention:
    return repeat_faults(BigBirdAttention(*sizes, **options), {"gt.bigbird.pattern": pattern})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", RECORDS)
def test_a_layer_matches_the_recorded_original_with_its_faults_on(name: str, form: str) -> None:
    attention = make_bigbird(8, 2, num_random_blocks=1, form=form, pattern="public")
    check_layer(name, attention, NAMES, {"seed": torch.tensor(0)})


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


def test_each_form_is_computed_in_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for form, other in zip(FORMS, ("edge_attention", "block_attention"), strict=True):
        with monkeypatch.context() as patch:
            patch.delattr(bigbird, other)
            assert BigBirdAttention(8, 2, form=form)(torch.randn(30, 8)).shape == (30, 8)


@pytest.mark.parametrize("form", FORMS)
def test_a_graph_alone_equals_the_graph_in_a_batch_unless_the_public_pattern_is_asked_for(form: str) -> None:
    x = torch.randn(PTR[-1], 8, dtype=torch.float64)
    for pattern, alike in (("graph", True), ("public", False)):
        attention = make_bigbird(8, 2, form=form, pattern=pattern).double()
        alone = torch.cat([attention(x[a:b]) for a, b in zip(PTR, PTR[1:], strict=False)])
        assert ((attention(x, CONTEXT) - alone).abs().max() < 1e-11) == alike


def test_every_query_sees_some_key_even_where_all_is_padding() -> None:
    seen = torch.tensor([[False, False], [True, False]])  # a row without any key is NaN in some of torch's kernels
    assert blockwise._visible(seen).tolist() == [[True, True], [True, False]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_graphs_of_any_size_are_taken(form: str, pattern: str) -> None:
    attention = make_bigbird(8, 2, form=form, pattern=pattern)
    for num_nodes in range(1, 16):
        x = torch.randn(num_nodes, 8, requires_grad=True)
        attention(x).square().sum().backward()
        assert x.grad.isfinite().all()


def test_the_order_of_nodes_matters() -> None:
    attention, x, order = BigBirdAttention(8, 2).double(), torch.randn(60, 8).double(), torch.randperm(60)
    assert (attention(x)[order] - attention(x[order])).abs().max() > 1e-3


def test_where_all_blocks_are_attended_to_the_order_does_not_matter() -> None:
    attention, x, order = BigBirdAttention(8, 2).double(), torch.randn(21, 8).double(), torch.randperm(21)
    torch.testing.assert_close(attention(x)[order], attention(x[order]), **EXACT)


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


def test_options_and_sizes_reach_the_layer() -> None:
    assert sum(parameter.numel() for parameter in BigBirdAttention(8, 2).parameters()) == 3 * 64 + 3 * (64 + 8) + 2 * 16
    attention = BigBirdAttention(8, 2, use_bias=True, hidden_act="sigmoid", layer_norm_eps=0.5)
    assert sum(parameter.numel() for parameter in attention.parameters()) == 6 * (64 + 8) + 2 * 16
    assert isinstance(attention.ffn[1], torch.nn.Sigmoid)
    assert attention.out_norm.eps == attention.ffn_norm.eps == 0.5


@pytest.mark.parametrize("silent", ["out", "ffn"])
def test_dropout_acts_before_each_residual_in_training_only(silent: str) -> None:
    attention, x = BigBirdAttention(8, 2, dropout=0.5), torch.randn(6, 8)
    for parameter in getattr(attention, silent).parameters():  # what drops zeros shows nothing
        torch.nn.init.zeros_(parameter)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    assert torch.equal(attention(x), attention(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3}, "got dim 8 and 3 heads: use dim 6 or 9"),
        ({"block_size": 0}, "block_size must be >= 1, got 0"),
        ({"num_random_blocks": -1}, "num_random_blocks must be >= 0, got -1"),
        ({"hidden_act": "swish"}, "hidden_act must be one of relu, sigmoid, got 'swish'"),
        ({"form": "dense"}, "form must be one of block_sparse, edges, got 'dense'"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BigBirdAttention(**({"dim": 8, "num_heads": 2} | options))
