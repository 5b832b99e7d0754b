"""DIFFormer and NodeFormer against their formulas, one graph and one query at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import DIFFormerAttention, NodeFormerAttention
from tests.attention.contexts import context_of
from tests.reference.attention_formulas import performer

SIZES = [5, 0, 1, 7]
CONTEXT = context_of(SIZES)
EXACT = {"rtol": 1e-11, "atol": 1e-11}


def difformer(attention: DIFFormerAttention, x: Tensor) -> Tensor:
    """One graph (n, C)."""
    q, k, v = (
        linear(x).unflatten(1, (attention.num_heads, -1))
        for linear in (attention.query, attention.key, attention.value)
    )
    q, k = q / q.norm(), k / k.norm()
    rows = []
    for query in q:  # (H, C)
        weight = 1 + torch.stack([(query * key).sum(-1) for key in k])  # (n, H)
        rows.append(((weight / weight.sum(0))[..., None] * v).sum(0).mean(0))
    return torch.stack(rows)


def test_difformer_is_its_formula_in_each_graph() -> None:
    attention = DIFFormerAttention(6, 2).double()
    x = 3 * torch.randn(13, 6, dtype=torch.float64)
    expected = torch.cat([difformer(attention, graph) for graph in x.split(SIZES) if len(graph)])
    torch.testing.assert_close(attention(x, CONTEXT), expected, **EXACT)


def test_queries_of_zeros_get_the_mean_of_the_values() -> None:
    attention = DIFFormerAttention(6, 2).double()
    torch.nn.init.zeros_(attention.query.weight)
    torch.nn.init.zeros_(attention.query.bias)
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    out = attention(x)
    torch.testing.assert_close(out, attention.value(x).unflatten(1, (2, 6)).mean((0, 1)).expand(4, -1), **EXACT)
    out.square().sum().backward()
    assert x.grad.isfinite().all()


def test_nodeformer_without_noise_is_performer_at_a_temperature() -> None:
    attention = NodeFormerAttention(8, 2, dim_head=4, num_features=11, tau=0.5).double().eval()
    x = torch.randn(13, 8, dtype=torch.float64)
    out = attention(x, CONTEXT)
    with torch.no_grad():
        for parameter in (*attention.query.parameters(), *attention.key.parameters()):
            parameter /= 0.5**0.5
    expected = torch.cat([performer(attention, graph) for graph in x.split(SIZES) if len(graph)])
    torch.testing.assert_close(out, expected, **EXACT)


@pytest.mark.parametrize("num_samples", [1, 3])
def test_in_training_keys_are_weighted_by_gumbel_noise(num_samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = NodeFormerAttention(8, 2, dim_head=4, num_features=11, tau=0.5, num_samples=num_samples).double()
    x, draws = torch.randn(13, 8, dtype=torch.float64), torch.rand(num_samples, 13, 2, 1, dtype=torch.float64) + 0.1
    samples = iter(draws)
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda _: next(samples))
    out = attention(x, CONTEXT)
    monkeypatch.undo()
    q, k, v = (
        linear(x).unflatten(1, (2, 4)) / 0.5**0.5 for linear in (attention.query, attention.key, attention.value)
    )
    v = v * 0.5**0.5
    for start, size in ((0, 5), (5, 1), (6, 7)):
        part = slice(start, start + size)
        features = attention._features(q[part], lambda top: top), attention._features(k[part], lambda top: top.amax(0))
        kernel = torch.einsum("nhf,mhf->nmh", *features)
        heads = 0
        for draw in draws[:, part, :, 0]:
            weight = kernel * draw.pow(-1 / 0.5)  # exp(-log(E) / tau), E exponential: -log(E) is Gumbel
            heads = heads + torch.einsum("nmh,mhd->nhd", weight / weight.sum(1, keepdim=True), v[part]) / num_samples
        torch.testing.assert_close(out[part], attention.out(heads.flatten(1)), **EXACT)
