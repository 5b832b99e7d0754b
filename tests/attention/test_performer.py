"""Performer against the kernel written out, full attention, and the recorded original layers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import GraphContext, performer
from graphgps_kmip.attention import performer as random_features
from graphgps_kmip.attention.performer import PerformerAttention, orthogonal_projection
from graphgps_kmip.compat.public_faults import repeat_faults
from graphgps_kmip.testing.references import full_attention
from tests.attention.largest import largest_tensor
from tests.attention.recorded_gps import check_layer
from tests.recorded import load

PTR = torch.tensor([0, 5, 5, 6, 13])  # the second graph has no node
CONTEXT = GraphContext(torch.repeat_interleave(PTR.diff()), PTR)
EXACT = {"rtol": 1e-11, "atol": 1e-11}  # float64 sums of 266 features in another order


@pytest.mark.parametrize("local", ["CustomGatedGCN", "GINE", "None"])
def test_a_layer_matches_the_recorded_original_with_its_faults_on(local: str) -> None:
    faults = {"gt.performer.mask_keys": False, "gt.performer.detach_stabiliser": True}
    attention = repeat_faults(PerformerAttention(8, 2), faults)
    names = {"to_q.": "query.", "to_k.": "key.", "to_v.": "value.", "to_out.": "out."}
    projection = load("B_layers/performer_projection")["projection_matrix"]
    check_layer(f"gps_{local}_Performer_batch_norm_relu_b3", attention, names, {"projection": projection})


def by_the_formula(attention: PerformerAttention, x: Tensor) -> Tensor:
    """One graph, every (query, key) pair by itself, as the paper writes it (F features, eps = 1e-4)."""
    w, dim = attention.projection, attention.projection.size(1)
    heads = [linear(x).unflatten(1, (attention.num_heads, dim)).transpose(0, 1) for linear in projections(attention)]
    out = []
    for q, k, v in zip(*heads, strict=True):  # (N, D), of a head
        largest = (k @ w.mT).max() / dim**0.25
        rows = []
        for query in q:
            top = (w @ query).max() / dim**0.25
            phi = (w @ query / dim**0.25 - query @ query / (2 * math.sqrt(dim)) - top).exp() + 1e-4
            phi_k = [(w @ key / dim**0.25 - key @ key / (2 * math.sqrt(dim)) - largest).exp() + 1e-4 for key in k]
            score = torch.stack([phi @ features for features in phi_k]) / len(w)
            rows.append((score / score.sum()) @ v)
        out.append(torch.stack(rows))
    return attention.out(torch.cat(out, dim=1))


def projections(attention: PerformerAttention) -> tuple[nn.Module, ...]:
    return attention.query, attention.key, attention.value


@pytest.mark.parametrize(("tile", "chunk"), [(performer.TILE, performer.CHUNK), (2, 1), (2, 6)])
def test_it_equals_the_formula_in_each_graph(tile: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performer, "TILE", tile)
    monkeypatch.setattr(performer, "CHUNK", chunk)
    attention = PerformerAttention(8, 2, dim_head=4, num_features=11).double()
    x = 3 * torch.randn(13, 8, dtype=torch.float64)
    graphs = [x[start:end] for start, end in zip(PTR, PTR[1:], strict=False) if end > start]
    expected = torch.cat([by_the_formula(attention, graph) for graph in graphs])
    torch.testing.assert_close(attention(x, CONTEXT), expected, **EXACT)


def test_with_many_features_it_approaches_full_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_features, "EPS", 0.0)  # it does not vanish with many features: a bias of the reference
    x, errors = torch.randn(13, 8, dtype=torch.float64), []
    for num_features in (32, 8192):
        attention = PerformerAttention(8, 2, dim_head=4, num_features=num_features).double()
        torch.manual_seed(1)  # the same weights for both, whatever the projection drew
        for parameter in attention.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
        q, k, v = (linear(x).unflatten(1, (2, 4)) for linear in projections(attention))
        expected = attention.out(full_attention(q, k, v, PTR.tolist()).flatten(1))
        errors.append((attention(x, CONTEXT) - expected).abs().mean().item())
    assert errors[1] < 0.2 * errors[0]  # 1 / 16 in theory, for independent vectors
    assert errors[1] < 0.02


def test_the_sizes_are_those_of_the_reference() -> None:
    attention = PerformerAttention(8, 2)
    assert attention.projection.shape == (266, 64)
    shapes = {name: tuple(parameter.shape) for name, parameter in attention.named_parameters()}
    inward = dict.fromkeys(("query.weight", "key.weight", "value.weight"), (128, 8))
    assert shapes == inward | {"out.weight": (8, 128), "out.bias": (8,)}


def test_random_vectors_are_orthogonal_in_groups_and_as_long_as_gaussian_ones() -> None:
    w = orthogonal_projection(4000, 16, torch.Generator().manual_seed(0)).double()
    direction = torch.nn.functional.normalize(w, dim=1).unflatten(0, (250, 16))
    torch.testing.assert_close(direction @ direction.mT, torch.eye(16).double().expand(250, 16, 16), rtol=0, atol=1e-5)
    moments = torch.stack([w.mean(), w.square().mean(), w.pow(4).mean(), w.norm(dim=1).var()])
    torch.testing.assert_close(moments, torch.tensor([0.0, 1.0, 3.0, 0.5]).double(), rtol=0.1, atol=0.02)
    assert orthogonal_projection(37, 16).shape == (37, 16)


def test_bases_are_uniform() -> None:
    first = orthogonal_projection(4000, 4, torch.Generator().manual_seed(0)).unflatten(0, (1000, 4))[:, 0]
    assert ((first > 0).float().mean(0) - 0.5).abs().max() < 0.08  # a plain QR has one sign on its diagonal


def test_redrawing_by_seed_repeats_and_changes_the_output() -> None:
    attention, x = PerformerAttention(8, 2).eval(), torch.randn(6, 8)
    first = attention(x)
    attention.redraw(torch.Generator().manual_seed(5))
    second = attention(x)
    attention.redraw(torch.Generator().manual_seed(6))
    third = attention(x)
    attention.redraw(torch.Generator().manual_seed(5))
    assert torch.equal(attention(x), second)
    assert (first - second).abs().max() > 1e-4
    assert (third - second).abs().max() > 1e-4


def test_the_random_vectors_travel_in_the_state_dict() -> None:
    attention, other, x = PerformerAttention(8, 2), PerformerAttention(8, 2), torch.randn(6, 8)
    other.load_state_dict(attention.state_dict())
    assert torch.equal(other(x), attention(x))
    other.redraw()
    assert not torch.equal(other(x), attention(x))


@pytest.mark.parametrize("num_features", [1, 11])  # with one, the padding often holds the largest projection
def test_without_the_key_mask_each_graph_is_computed_with_its_padding(num_features: int) -> None:
    attention = PerformerAttention(8, 2, dim_head=4, num_features=num_features).double()
    repeat_faults(attention, {"gt.performer.mask_keys": False})
    x = torch.randn(13, 8, dtype=torch.float64)
    padding = torch.zeros(7, 8, dtype=torch.float64)
    graphs = [x[start:end] for start, end in zip(PTR, PTR[1:], strict=False)]
    padded = [by_the_formula(attention, torch.cat([graph, padding])[:7])[: len(graph)] for graph in graphs]
    torch.testing.assert_close(attention(x, CONTEXT), torch.cat(padded), **EXACT)


def test_detaching_the_stabiliser_changes_gradients_and_no_output() -> None:
    exact = PerformerAttention(8, 2).double()
    public = repeat_faults(PerformerAttention(8, 2).double(), {"gt.performer.detach_stabiliser": True})
    public.load_state_dict(exact.state_dict())
    x = torch.randn(9, 8, dtype=torch.float64)
    outputs = [attention(x) for attention in (exact, public)]
    assert torch.equal(*outputs)
    for out in outputs:
        out.square().sum().backward()
    difference = (exact.key.weight.grad - public.key.weight.grad).norm() / exact.key.weight.grad.norm()
    assert 0.01 < difference < 1  # about a half here: the stabiliser is no small matter


def test_large_inputs_stay_finite_in_float32() -> None:
    attention, x = PerformerAttention(8, 2), 100 * torch.randn(13, 8)
    x.requires_grad_()
    out = attention(x, CONTEXT)
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()


def test_bfloat16_autocast_is_close_to_float32() -> None:
    attention, x = PerformerAttention(8, 2), torch.randn(13, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attention(x, CONTEXT)
    difference = found.float() - attention(x, CONTEXT)
    assert difference.norm() < 0.02 * found.norm()  # 0.005 is the rounding of the linear layers


def test_dropout_acts_on_the_output_in_training_only() -> None:
    attention, x = PerformerAttention(8, 2, dropout=0.5), torch.randn(50, 8)
    assert 0.3 < (attention(x) == 0).float().mean() < 0.7
    attention.eval()
    assert torch.equal(attention(x), attention(x))


@pytest.mark.parametrize(("small", "large"), [([200], [400]), ([200] + [1] * 20, [400] + [1] * 40)])
def test_memory_is_linear_in_the_nodes(small: list[int], large: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performer, "TILE", 16)
    attention = PerformerAttention(8, 2, dim_head=4, num_features=5)
    found = []
    for sizes in (small, large):
        x = torch.randn(sum(sizes), 8, requires_grad=True)
        batch = torch.repeat_interleave(torch.tensor(sizes))
        found.append(largest_tensor(lambda x=x, batch=batch: attention(x, batch)))
    assert found[1] <= 2.1 * found[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 0}, "num_heads must be >= 1, got 0"),
        ({"dim_head": 0}, "dim_head must be >= 1, got 0"),
        ({"num_features": 0}, "num_features must be >= 1, got 0"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PerformerAttention(**({"dim": 8, "num_heads": 2} | options))
