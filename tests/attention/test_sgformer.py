"""SGFormer's attention against all pairs written out, and where its norms and its denominator are zero."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import GraphContext, SGFormerAttention, linear_attention

PTR = torch.tensor([0, 5, 5, 6, 13])  # the second graph has no node
CONTEXT = GraphContext(torch.repeat_interleave(PTR.diff()), PTR)
X = torch.randn(13, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def by_the_formula(attention: SGFormerAttention, x: Tensor) -> Tensor:
    """One graph, head by head, with the matrix of all pairs (paper, section 3.1)."""
    q, k = attention.query(x), attention.key(x)
    q, k = (part.unflatten(1, (attention.num_heads, -1)) for part in (q / q.norm(), k / k.norm()))
    v = attention.value(x).unflatten(1, (attention.num_heads, -1)) if attention.value else None
    heads = []
    for head in range(attention.num_heads):
        values = x if v is None else v[:, head]
        score = q[:, head] @ k[:, head].mT
        heads.append((values + score @ values / len(x)) / (1 + score.sum(1, keepdim=True) / len(x)))
    return sum(heads) / len(heads)


@pytest.mark.parametrize("tile", [linear_attention.TILE, 2])
@pytest.mark.parametrize("use_weight", [True, False])
def test_it_equals_the_formula_in_each_graph(use_weight: bool, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_attention, "TILE", tile)
    attention = SGFormerAttention(4, 3, use_weight=use_weight).double()
    graphs = [X[start:end] for start, end in zip(PTR, PTR[1:], strict=False) if end > start]
    expected = torch.cat([by_the_formula(attention, graph) for graph in graphs])
    torch.testing.assert_close(attention(X, CONTEXT), expected, rtol=1e-12, atol=1e-12)


def test_a_node_alone_gets_its_value_even_where_its_query_is_minus_its_key() -> None:
    attention = SGFormerAttention(1, 1).double()
    nn.init.constant_(attention.query.weight, 2.0)
    nn.init.constant_(attention.key.weight, -3.0)
    for linear in (attention.query, attention.key):
        nn.init.zeros_(linear.bias)
    x = torch.tensor([[0.7], [-0.2]], dtype=torch.float64, requires_grad=True)
    out = attention(x, torch.tensor([0, 1]))
    out.sum().backward()
    assert torch.equal(out, attention.value(x))
    assert x.grad.tolist() == [[attention.value.weight.item()]] * 2


def test_queries_of_zeros_leave_the_mean_of_the_values_and_finite_gradients() -> None:
    attention = SGFormerAttention(4, 2)
    for linear in (attention.query, attention.key):
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
    x = X.float().requires_grad_()
    out = attention(x, CONTEXT)
    out.square().sum().backward()
    torch.testing.assert_close(out, attention.value(x).unflatten(1, (2, 4)).mean(1))
    assert all(one.grad.isfinite().all() for one in (x, *attention.parameters()))


def test_no_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="num_heads must be >= 1, got 0"):
        SGFormerAttention(4, 0)
