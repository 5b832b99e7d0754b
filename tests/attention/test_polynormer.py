"""Polynormer's global attention against all pairs written out, torch_geometric's on one graph, and its gates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.nn.attention import PolynormerAttention as TheirAttention

from graphgps_kmip.attention import GraphContext, PolynormerAttention, linear_attention
from graphgps_kmip.attention.polynormer import ChannelGate

PTR = torch.tensor([0, 5, 5, 6, 13])  # the second graph has no node
CONTEXT = GraphContext(torch.repeat_interleave(PTR.diff()), PTR)
X = torch.randn(13, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def by_the_formula(attention: PolynormerAttention, x: Tensor) -> Tensor:
    """One graph, head by head, with the matrix of all pairs."""
    keys = attention.key(x).sigmoid()
    queries = keys if attention.query is None else attention.query(x).sigmoid()
    attended = torch.zeros_like(x)
    for head in range(attention.num_heads):
        channels = torch.arange(head, x.size(1), attention.num_heads)  # every H-th one
        score = queries[:, channels] @ keys[:, channels].mT
        attended[:, channels] = score / score.sum(1, keepdim=True) @ attention.value(x)[:, channels]
    product = attention.norm(attended) * (attention.factor(x) + attention.gate())
    return torch.relu(attention.out(product))


@pytest.mark.parametrize("tile", [linear_attention.TILE, 2])
@pytest.mark.parametrize("options", [{}, {"qk_shared": False, "beta": 0.3}], ids=str)
def test_it_equals_the_formula_in_each_graph(
    options: dict[str, float], tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_attention, "TILE", tile)
    attention = PolynormerAttention(6, 3, **options).double()
    expected = [by_the_formula(attention, X[start:end]) for start, end in zip(PTR, PTR[1:], strict=False)]
    torch.testing.assert_close(attention(X, CONTEXT), torch.cat(expected), rtol=1e-12, atol=1e-12)


def test_on_one_graph_it_equals_the_module_of_torch_geometric() -> None:
    ours = PolynormerAttention(6, 3, beta=0.9).double()
    theirs = TheirAttention(6, 3, head_channels=2, qkv_bias=True).double()  # whose beta is no parameter
    names = {"h_lins": ours.factor, "k": ours.key, "v": ours.value, "lns": ours.norm, "lin_out": ours.out}
    for name, module in names.items():
        getattr(theirs, name).load_state_dict(module.state_dict())
    torch.testing.assert_close(ours(X), theirs(X[None])[0], rtol=1e-5, atol=1e-5)  # it adds 10^-6 to the sums


def test_keys_whose_sigmoid_is_zero_leave_outputs_and_gradients_finite() -> None:
    attention = PolynormerAttention(6, 3)
    torch.nn.init.constant_(attention.key.bias, -1000)
    x = X.float().requires_grad_()
    out = attention(x, CONTEXT)
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()


def test_a_gate_is_a_sigmoid_or_starts_at_a_number_and_is_learned_either_way() -> None:
    free, started = ChannelGate(4000, num_layers=2000), ChannelGate(3, 0.25)
    assert torch.equal(free(), free.weight.sigmoid())
    assert free.weight.std().item() == pytest.approx((2 / 6000) ** 0.5, rel=0.1)  # Xavier: rows and columns
    assert started().tolist() == [0.25] * 3
    assert started.weight.requires_grad
    with torch.no_grad():
        started.weight.add_(1)
    assert started().tolist() == [1.25] * 3  # no sigmoid
    with pytest.raises(ValueError, match=r"beta must be in \[0, 1\], or None, got -1"):
        PolynormerAttention(6, 3, beta=-1.0)
