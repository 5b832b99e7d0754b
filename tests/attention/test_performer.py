"""Performer against the kernel written out, full attention and the record; when its features are drawn anew."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import performer
from graphgps_kmip.attention.performer import PERIOD, PerformerAttention, orthogonal_projection, redraw_regularly
from graphgps_kmip.compat.public_faults import repeat_faults
from graphgps_kmip.testing.references import full_attention
from tests.attention.contexts import context_of
from tests.attention.largest import largest_tensor
from tests.reference.attention_formulas import performer as performer_formula

SIZES = [5, 0, 1, 7]
CONTEXT = context_of(SIZES)
EXACT = {"rtol": 1e-11, "atol": 1e-11}  # float64 sums of 266 features in another order


@pytest.mark.parametrize(("tile", "chunk"), [(performer.TILE, performer.CHUNK), (2, 1), (2, 6)])
def test_it_equals_the_formula_in_each_graph(tile: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performer, "TILE", tile)
    monkeypatch.setattr(performer, "CHUNK", chunk)
    attention = PerformerAttention(8, 2, dim_head=4, num_features=11).double()
    x = 3 * torch.randn(13, 8, dtype=torch.float64)
    expected = torch.cat([performer_formula(attention, graph) for graph in x.split(SIZES) if len(graph)])
    torch.testing.assert_close(attention(x, CONTEXT), expected, **EXACT)


def test_with_many_features_it_approaches_full_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performer, "EPS", 0.0)  # it does not vanish with many features: a bias of the reference
    x, errors = torch.randn(13, 8, dtype=torch.float64), []
    for num_features in (32, 8192):
        attention = PerformerAttention(8, 2, dim_head=4, num_features=num_features).double()
        torch.manual_seed(1)  # the same weights for both, whatever the projection drew
        for parameter in attention.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
        q, k, v = (linear(x).unflatten(1, (2, 4)) for linear in (attention.query, attention.key, attention.value))
        expected = attention.out(full_attention(q, k, v, CONTEXT.ptr.tolist()).flatten(1))
        errors.append((attention(x, CONTEXT) - expected).abs().mean().item())
    assert errors[1] < 0.2 * errors[0]  # 1 / 16 in theory, for independent vectors
    assert errors[1] < 0.02


def test_random_vectors_are_orthogonal_in_groups_and_as_long_as_gaussian_ones() -> None:
    w = orthogonal_projection(4000, 16, torch.Generator().manual_seed(0)).double()
    direction = torch.nn.functional.normalize(w, dim=1).unflatten(0, (250, 16))
    torch.testing.assert_close(direction @ direction.mT, torch.eye(16).double().expand(250, 16, 16), rtol=0, atol=1e-5)
    moments = torch.stack([w.mean(), w.square().mean(), w.pow(4).mean(), w.norm(dim=1).var()])
    torch.testing.assert_close(moments, torch.tensor([0.0, 1.0, 3.0, 0.5]).double(), rtol=0.1, atol=0.02)
    assert orthogonal_projection(37, 16).shape == (37, 16)


@pytest.mark.parametrize("num_features", [1, 11])  # with one, the padding often holds the largest projection
def test_without_the_key_mask_each_graph_is_computed_with_its_padding(num_features: int) -> None:
    attention = PerformerAttention(8, 2, dim_head=4, num_features=num_features).double()
    repeat_faults(attention, {"gt.performer.mask_keys": False})
    x = torch.randn(13, 8, dtype=torch.float64)
    padding = torch.zeros(7, 8, dtype=torch.float64)
    padded = [performer_formula(attention, torch.cat([graph, padding])[:7])[: len(graph)] for graph in x.split(SIZES)]
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


@pytest.mark.parametrize(("small", "large"), [([200], [400]), ([200] + [1] * 20, [400] + [1] * 40)])
def test_memory_is_linear_in_the_nodes(small: list[int], large: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performer, "TILE", 16)
    attention, largest = PerformerAttention(8, 2, dim_head=4, num_features=5), []
    for sizes in (small, large):
        x, context = torch.randn(sum(sizes), 8, requires_grad=True), context_of(sizes)
        largest.append(largest_tensor(lambda x=x, context=context: attention(x, context)))
    assert largest[1] <= 2.1 * largest[0]


@pytest.fixture
def short_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performer, "PERIOD", 3)


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = nn.Sequential(*(PerformerAttention(8, 2, dim_head=4) for _ in range(2)))
    redraw_regularly(layers)
    return layers


def drawn_projections(layers: nn.Sequential) -> list[Tensor]:
    return [layer.projection.clone() for layer in layers]


@pytest.mark.usefixtures("short_period")
def test_vectors_are_drawn_at_every_period_th_call_in_training_only() -> None:
    layers, x = network(), torch.randn(5, 8)
    changed, before = [], drawn_projections(layers)
    for call in range(9):
        layers.train(call not in (1, 2))(x)
        now = drawn_projections(layers)
        changed.append([not torch.equal(old, new) for old, new in zip(before, now, strict=True)])
        before = now
    assert [all(layers) for layers in changed] == [any(layers) for layers in changed]
    assert [call for call, layers in enumerate(changed) if all(layers)] == [4, 7]  # the third and sixth in training
    assert not torch.equal(*before)
    assert PERIOD == 1001


@pytest.mark.usefixtures("short_period")
def test_a_resumed_network_goes_on_as_if_never_stopped() -> None:
    layers, x = network().train(), torch.randn(5, 8)
    for _ in range(4):
        layers(x)
    resumed = network(seed=7).train()
    resumed.load_state_dict(copy.deepcopy(layers.state_dict()))
    for _ in range(2):
        torch.manual_seed(int(torch.randint(99, ())))  # the state of torch's generator has no part in it
        expected = layers(x)
        torch.manual_seed(0)
        assert torch.equal(resumed(x), expected)
    assert all(map(torch.equal, drawn_projections(layers), drawn_projections(resumed)))


def test_networks_of_other_seeds_draw_other_vectors_and_torchs_generator_is_untouched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(performer, "PERIOD", 1)
    first, second, x = network(seed=1).train(), network(seed=2).train(), torch.randn(5, 8)
    before = torch.get_rng_state()
    first(x), second(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first[0].projection, second[0].projection)
