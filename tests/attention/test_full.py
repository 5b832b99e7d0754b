"""Full attention against the formula and torch's MultiheadAttention."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from graphgps_kmip.attention import FullAttention, GraphContext, full
from graphgps_kmip.attention.dense import to_padded
from graphgps_kmip.testing.references import full_attention

PTR = torch.tensor([0, 5, 5, 6, 13])  # the second graph has no node
CONTEXT = GraphContext(torch.repeat_interleave(PTR.diff()), PTR)


def test_it_equals_the_formula_in_each_graph() -> None:
    attention = FullAttention(8, 2).double()
    nn.init.normal_(attention.qkv.bias)
    x = torch.randn(13, 8, dtype=torch.float64)
    q, k, v = attention.qkv(x).unflatten(1, (3, 2, 4)).unbind(1)
    expected = attention.out(full_attention(q, k, v, PTR.tolist()).flatten(1))
    torch.testing.assert_close(attention(x, CONTEXT), expected, rtol=1e-12, atol=1e-12)


def test_it_equals_torch_multihead_attention_with_the_same_weights() -> None:
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    nn.init.normal_(theirs.in_proj_bias)
    ours = FullAttention(8, 2).double()
    renamed = {"in_proj_weight": "qkv.weight", "in_proj_bias": "qkv.bias"}
    ours.load_state_dict({renamed.get(n, n.replace("out_proj", "out")): p for n, p in theirs.state_dict().items()})
    x = torch.randn(3 * 4, 8, dtype=torch.float64)
    expected = theirs(*[x.view(3, 4, 8)] * 3)[0].flatten(0, 1)
    torch.testing.assert_close(ours(x, torch.arange(3).repeat_interleave(4)), expected, rtol=1e-12, atol=1e-12)


def test_it_is_initialised_as_torch_multihead_attention() -> None:
    torch.manual_seed(1)
    theirs = nn.MultiheadAttention(64, 2)
    ours = FullAttention(64, 2)
    for expected, found in ((theirs.in_proj_weight, ours.qkv.weight), (theirs.out_proj.weight, ours.out.weight)):
        torch.testing.assert_close(found.abs().max(), expected.abs().max(), rtol=0.01, atol=0)
    assert ours.qkv.bias.abs().max() == ours.out.bias.abs().max() == 0


def test_a_graph_without_nodes_makes_no_nan() -> None:
    attention = FullAttention(8, 2)
    x = torch.randn(13, 8, requires_grad=True)
    out = attention(x, CONTEXT)
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())


@pytest.mark.parametrize(("sizes", "masked"), [([3, 3], False), ([6], False), ([2, 4], True)])
def test_a_mask_is_built_only_where_something_is_padded(
    sizes: list[int], masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full, "can_run", lambda *_: False)  # as on a GPU
    masks = []

    def record(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: object, dropout: float) -> torch.Tensor:
        masks.append(mask)
        return q + k + v + dropout

    monkeypatch.setattr(full, "scaled_dot_product_attention", record)
    FullAttention(8, 2)(torch.randn(6, 8), torch.repeat_interleave(torch.tensor(sizes)))
    assert [mask is not None for mask in masks] == [masked]


def test_every_query_sees_some_key_even_in_a_graph_without_nodes() -> None:
    _, mask = to_padded(torch.randn(13, 8), CONTEXT)
    seen = full._key_mask(mask, CONTEXT)  # (B, 1, 1, Nmax)
    assert seen.any(-1).all()  # a row without any key is NaN in some of torch's kernels
    assert torch.equal(seen[mask.any(1), 0, 0], mask[mask.any(1)])


def test_dropout_acts_in_training_only() -> None:
    attention = FullAttention(8, 2, dropout=0.5)
    x = torch.randn(6, 8)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    assert torch.equal(attention(x), attention(x))


@pytest.mark.parametrize(
    ("dim", "heads", "dropout", "message"),
    [
        (10, 4, 0.0, "got dim 10 and 4 heads: use dim 8 or 12"),
        (3, 4, 0.0, "got dim 3 and 4 heads: use dim 4"),
        (8, 0, 0.0, "num_heads must be >= 1, got 0"),
        (8, 2, 1.0, r"dropout must be in \[0, 1\), got 1.0"),
    ],
)
def test_wrong_arguments_are_refused(dim: int, heads: int, dropout: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FullAttention(dim, heads, dropout)
