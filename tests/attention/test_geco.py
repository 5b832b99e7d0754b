"""GECO layer against its algorithms written with loops; order, shifts and scale of its outputs; filters."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import GECOAttention, GraphContext, long_filter
from graphgps_kmip.attention.circular_convolution import circular_convolution
from graphgps_kmip.attention.geco import GlobalContextBlock
from graphgps_kmip.attention.long_filter import NORMS, TINY, FilterNetwork, LongFilter, Segments, place_features
from graphgps_kmip.attention.size_groups import SizeGroups

DIM = 4


def ring(size: int) -> Tensor:
    node = torch.arange(size)
    return torch.cat([torch.stack([node, (node + 1) % size]), torch.stack([(node + 1) % size, node])], 1)


def one_graph(size: int, edge_index: Tensor | None = None) -> GraphContext:
    return GraphContext(torch.zeros(size, dtype=torch.long), torch.tensor([0, size]), edge_index=edge_index)


def circulant(taps: Tensor) -> Tensor:
    """The matrix T of each channel, T_ti = z_(t-i) mod n: (n, C) -> (C, n, n)."""
    place = torch.arange(len(taps))
    return taps[(place[:, None] - place) % len(taps)].permute(2, 0, 1)


def geco(**options: object) -> GECOAttention:
    torch.manual_seed(0)
    return GECOAttention(DIM, 1, **options).double()


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("form", ["gate_after", "gate_first"])
def test_the_global_block_equals_its_formula(form: str, order: int) -> None:
    if (form, order) == ("gate_first", 1):
        pytest.skip("no filter would be left")
    torch.manual_seed(0)
    block = GlobalContextBlock(6, DIM, order=order, form=form).double()
    x, groups = torch.randn(11, 6, dtype=torch.float64), SizeGroups.of(torch.tensor([0, 11]))
    *gates, value = block.project(x).split(DIM, dim=1)
    for number, taps in enumerate(block.filters((11,)).split(DIM, 1)):
        value = value * gates[number] if form == "gate_first" else value
        value = torch.einsum("cti,ic->tc", circulant(taps), value)
        value = value * gates[number] if form == "gate_after" else value
    value = gates[-1] * value if form == "gate_first" else value
    torch.testing.assert_close(block(x, groups), value, atol=1e-12, rtol=1e-12)


def test_the_layer_is_batch_norm_of_both_and_the_global_block() -> None:
    layer, size = geco().train(), 9
    edge_index = torch.tensor([[0, 1, 1, 5, 8], [1, 0, 2, 1, 8]])
    x, adjacency = torch.randn(size, DIM, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64)
    outward, inward = torch.bincount(edge_index[0], minlength=size), torch.bincount(edge_index[1], minlength=size)
    for source, target in edge_index.T.tolist():
        adjacency[target, source] += 1 / math.sqrt(outward[source] * inward[target])
    both = torch.cat([x, adjacency @ x], 1)
    normed = (both - both.mean(0)) / (both.var(0, unbiased=False) + layer.norm.eps).sqrt()
    expected = layer.mix(normed, SizeGroups.of(torch.tensor([0, size])))
    torch.testing.assert_close(layer(x, one_graph(size, edge_index)), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("options", [{}, {"form": "gate_first"}, {"local": "convolution", "conv_width": 3}], ids=str)
def test_a_cyclic_shift_of_the_order_shifts_the_output(options: dict) -> None:
    layer, size, shift = geco(**options).eval(), 12, 5
    x = torch.randn(size, DIM, dtype=torch.float64)
    out = layer(x, one_graph(size, ring(size)))
    shifted = layer(x.roll(shift, 0), one_graph(size, (ring(size) + shift) % size))
    torch.testing.assert_close(shifted, out.roll(shift, 0), atol=1e-12, rtol=1e-12)


def test_another_order_of_the_nodes_gives_another_output() -> None:
    layer, size = geco().eval(), 12
    x, order = torch.randn(size, DIM, dtype=torch.float64), torch.tensor([1, 0, *range(2, 12)])
    out = layer(x, one_graph(size))
    assert (layer(x[order], one_graph(size)) - out[order]).abs().max() > 1e-3


def test_the_local_convolution_wraps_around_and_adds_taps_beyond_a_small_graph() -> None:
    layer = geco(local="convolution", conv_width=5)
    x = torch.randn(3, DIM, dtype=torch.float64)
    expected = sum(layer.convolution.taps[tap] * x.roll(tap, 0) for tap in range(5))
    torch.testing.assert_close(layer.convolution(x, SizeGroups.of(torch.tensor([0, 3]))), expected)


def spread(norm: str, size: int, constant: bool) -> float:
    """Root mean square of a convolution's output for inputs of root mean square 1."""
    torch.manual_seed(0)
    block = GlobalContextBlock(8, 8, order=1, filter_norm=norm)
    x = torch.ones(size, 8) if constant else torch.randn(size, 8)
    groups = SizeGroups.of(torch.tensor([0, size]))
    return float(circular_convolution(x, block.filters(groups.sizes), groups).square().mean().sqrt())


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("constant", [False, True], ids=["uncorrelated", "constant"])
def test_outputs_do_not_grow_with_the_number_of_nodes(constant: bool, norm: str) -> None:
    small, large = (spread(norm, size, constant) for size in (100, 100_000))
    assert large < 1.5 * small
    assert 0.5 < large < 1.5 or constant or norm == "l1"
    assert spread("none", 100_000, constant) > 10 * spread("none", 100, constant)


def test_no_output_of_an_l1_filter_exceeds_the_largest_input() -> None:
    taps = LongFilter(5, 1, norm="l1")((1, 7, 300))
    for part in taps.split([1, 7, 300]):
        torch.testing.assert_close(part.abs().sum(0), torch.ones(5))


def divided(taps: Tensor, norm: str, sizes: tuple[int, ...]) -> Tensor:
    return NORMS[norm](taps, Segments.of(sizes, taps.device))


@pytest.mark.parametrize("numbers", [2, 10**6], ids=["some columns at a time", "all columns"])
@pytest.mark.parametrize("sizes", [(5,), (1, 2, 5), ()], ids=str)
def test_the_gradients_of_taps_that_are_divided_by_their_sum_are_those_of_autograd(
    sizes: tuple[int, ...], numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_filter, "SUM_NUMBERS", numbers)
    torch.manual_seed(0)
    taps = torch.randn(sum(sizes), 3, dtype=torch.float64, requires_grad=True)
    more = torch.zeros(sum(sizes), 1), torch.full((sum(sizes), 1), TINY / 10)
    columns = torch.cat([taps.detach(), *more], 1).requires_grad_()

    def plain(taps: Tensor) -> Tensor:
        parts = taps.split(list(sizes)) if sizes else [taps]
        return torch.cat([part / part.abs().sum(0, keepdim=True).clamp(min=TINY) for part in parts])

    grad, results = torch.randn(sum(sizes), 5, dtype=torch.float64), []
    for out in (divided(columns, "l1", sizes), plain(columns)):
        results.append((out, *torch.autograd.grad(out, columns, grad)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("norm", NORMS)
def test_filters_of_several_sizes_are_those_of_each_alone(norm: str) -> None:
    torch.manual_seed(0)
    taps, sizes = torch.randn(13, 3, dtype=torch.float64, requires_grad=True), (1, 4, 8)
    together = divided(taps, norm, sizes)
    alone = torch.cat([divided(part, norm, (len(part),)) for part in taps.split(list(sizes))])
    torch.testing.assert_close(together, alone)
    if norm == "l2":
        varying = together - torch.cat([part.mean(0).expand_as(part) for part in together.split(list(sizes))])
        expected = torch.tensor([[0.0], [1], [1]]).double().expand(3, 3)
        lengths = torch.stack([part.norm(dim=0) for part in varying.split(list(sizes))])
        torch.testing.assert_close(lengths, expected)
    (grad,) = torch.autograd.grad(together.square().sum(), taps)
    assert grad.isfinite().all()


def test_many_places_and_few_have_the_same_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    made, results = LongFilter(4).double(), []
    for few in (0, 10**6):
        monkeypatch.setattr(long_filter, "FEW_PLACES", few)
        made.zero_grad()
        taps = made((3, 50))
        taps.square().sum().backward()
        results.append([taps, *(one.grad for one in made.parameters())])
    torch.testing.assert_close(*results)


def test_the_network_is_linear_maps_and_sines_of_learned_frequencies() -> None:
    torch.manual_seed(0)
    network = FilterNetwork(5, 6, 2, 3).double()
    network.frequency.data.uniform_(0.5, 2)
    places = torch.randn(7, 5, dtype=torch.float64)
    expected = places
    for layer in network.layers:
        expected = torch.sin(network.frequency * layer(expected))
    torch.testing.assert_close(network.hidden(places), expected)


def test_the_outputs_of_the_whole_layer_do_not_grow_up_to_100_000_nodes() -> None:
    torch.manual_seed(0)
    layer = GECOAttention(8, 1)
    with torch.no_grad():
        small, large = (float(layer(torch.randn(size, 8)).abs().max()) for size in (100, 100_000))
        assert 0 < large < 5 * small  # the largest of 1000 times as many
        half = layer.to(torch.bfloat16)(torch.randn(100_000, 8, dtype=torch.bfloat16))
    assert half.isfinite().all()


def test_places_are_fractions_so_that_sizes_share_one_network() -> None:
    like = torch.zeros((), dtype=torch.float64)
    features = place_features(Segments.of((1, 4), like.device), 5, like)
    assert features[0].tolist() == [0.0, 1.0, 1.0, 0.0, 0.0]
    quarter = features[2]  # t = 1 of n = 4
    assert quarter[0] == pytest.approx(1 / 3)
    assert quarter[2] == pytest.approx(0.0, abs=1e-12)
    assert quarter[4] == pytest.approx(-1.0)
    assert place_features(Segments.of((), like.device), 5, like).shape == (0, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "both"}, "form must be one of gate_after, gate_first"),
        ({"order": 1, "form": "gate_first"}, "order must be 2 or more"),
        ({"filter_places": 4}, "filter_places must be odd"),
        ({"filter_norm": "l3"}, "filter_norm"),
        ({"local": "conv"}, "local must be one of"),
    ],
)
def test_arguments_out_of_their_range_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GECOAttention(DIM, 1, **options)
