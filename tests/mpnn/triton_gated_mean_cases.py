"""GatedGCN's Triton kernels against the plain form; run by test_triton_gated_mean.py in a process of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphgps_kmip.common import triton_lists
from graphgps_kmip.mpnn import GatedGCN, gated_mean, triton_gated_mean
from graphgps_kmip.mpnn.gated_mean import plain_gates_and_means
from graphgps_kmip.native import without_kernels
from tests.mpnn.cases import check_gradients
from tests.pairwise import pairwise
from tests.search.triton_runs import DEVICE, check_sees_a_wrong_gradient

thorough = pytest.mark.thorough  # the interpreter takes up to a second for each
SOURCES, TARGETS, EDGES = 7, 5, 23


def example(
    dim: int, with_factor: bool, num_edges: int = EDGES, dtype: torch.dtype = torch.float64
) -> tuple[list[Tensor | None], list[Tensor]]:
    """Node 4 is no target, node 6 no source, target 0 a hub; factors are positive, as those of the distance gate."""
    shapes = [(TARGETS, 2 * dim), (SOURCES, 2 * dim), (num_edges, dim), (num_edges, 1)]
    floats = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    floats[3] = floats[3].abs() if with_factor else None
    source, target = (torch.randint(0, nodes - 1, (num_edges,)) for nodes in (SOURCES, TARGETS))
    target[::2] = 0
    floats = [None if one is None else one.to(DEVICE, dtype).requires_grad_() for one in floats]
    return floats, [source.to(DEVICE), target.to(DEVICE)]


CASES = pairwise([1, 3, 16, 130], [EDGES, 1, 0], [False, True], [4, 512])
FEW = [(3, EDGES, True, 4), (16, EDGES, False, 512), (130, EDGES, True, 512), (3, 0, True, 4), (1, 1, False, 512)]


@pytest.mark.parametrize(
    ("dim", "num_edges", "with_factor", "chunk"),
    [pytest.param(*case, marks=[] if case in FEW else [thorough]) for case in dict.fromkeys([*FEW, *CASES])],
)
def test_values_and_gradients_equal_the_plain_form(
    dim: int, num_edges: int, with_factor: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_lists, "CHUNK", chunk)  # 4: the hub's list is split
    floats, indices = example(dim, with_factor, num_edges)
    found, expected = gated_mean.gated_mean(*floats, *indices), plain_gates_and_means(*floats, *indices)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    check_gradients(found, expected, floats, 1e-11)  # the edges of a last layer go nowhere


def test_the_kernels_are_what_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for name in ("gated_mean_forward", "gated_mean_backward"):
        kernel = getattr(triton_gated_mean, name)
        monkeypatch.setattr(triton_gated_mean, name, lambda *given, k=kernel: calls.append(k) or k(*given))
    layer = GatedGCN(6, 0.1).to(DEVICE)
    x, edge_attr = torch.randn(9, 6, device=DEVICE), torch.randn(31, 6, device=DEVICE)
    edge_index = torch.randint(0, 9, (2, 31), device=DEVICE)
    sum(out.sum() for out in layer(x, edge_index, edge_attr)).backward()
    assert len(calls) == 2
    with without_kernels():
        layer(x, edge_index, edge_attr)
    assert len(calls) == 2


@pytest.mark.parametrize("with_factor", [False, pytest.param(True, marks=thorough)])
def test_gradients_equal_finite_differences_twice(with_factor: bool) -> None:
    floats, indices = example(2, with_factor, num_edges=7)
    given = [one for one in floats if one is not None]

    def run(own: Tensor, other: Tensor, edge: Tensor, factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return gated_mean.gated_mean(own, other, edge, factor, *indices)

    assert torch.autograd.gradcheck(run, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, given, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_summed_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    floats, indices = example(8, True, dtype=dtype)
    found = gated_mean.gated_mean(*floats, *indices)
    assert {one.dtype for one in found} == {dtype}
    exact = [one.detach().float().requires_grad_() for one in floats]
    expected = plain_gates_and_means(*exact, *indices)
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close([one.float() for one in found], list(expected), rtol=4 * rounding, atol=4 * rounding)
    grads = torch.autograd.grad([one.float().square().sum() for one in found], floats)
    wanted = torch.autograd.grad([one.square().sum() for one in expected], exact)
    assert {one.dtype for one in grads} == {dtype}
    for one, other in zip(grads, wanted, strict=True):
        torch.testing.assert_close(
            one.float(), other, rtol=20 * rounding, atol=20 * rounding * other.abs().max().item()
        )


def test_many_halves_are_not_summed_in_their_own_precision() -> None:
    num_edges = 600  # bfloat16 would stop at 256
    own, other, edge = (torch.zeros(rows, width) for rows, width in ((1, 2), (1, 2), (num_edges, 1)))
    own[0, 1], other[0, 0] = 20.0, 1.0  # gates of 1
    zeros = torch.zeros(num_edges, dtype=torch.long, device=DEVICE)
    given = [one.to(DEVICE, torch.bfloat16) for one in (own, other, edge)]
    *_, mean, inverse = triton_gated_mean.gated_mean_forward(*given, None, zeros, zeros, 1e-6)
    torch.testing.assert_close(inverse.cpu(), torch.full((1, 1), 1 / num_edges))
    torch.testing.assert_close(mean.cpu(), torch.ones(1, 1))


def test_forward_and_backward_repeat_bit_for_bit() -> None:
    floats, indices = example(5, True, dtype=torch.float32)

    def run() -> list[Tensor]:
        out, gate = gated_mean.gated_mean(*floats, *indices)
        return [out, gate, *torch.autograd.grad(out.square().sum() + gate.sum(), floats)]

    torch.testing.assert_close(run(), run(), rtol=0, atol=0)


def test_a_node_that_is_not_there_does_not_pass_unseen() -> None:
    floats, (source, target) = example(3, False)
    source[4] = SOURCES
    out, _ = gated_mean.gated_mean(*floats, source, target)
    assert out[target[4]].isnan().all()
    if DEVICE == "cpu":  # on a GPU an error of the device ends the process
        source[4], target[4] = 0, TARGETS
        with pytest.raises(IndexError):
            gated_mean.gated_mean(*floats, source, target)


def test_edges_are_sorted_once_for_all_layers_and_again_when_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    sorts = []
    real = triton_lists._sorted
    monkeypatch.setattr(triton_lists, "_sorted", lambda *given: sorts.append(1) or real(*given))
    x, edge_attr = torch.randn(9, 4, device=DEVICE), torch.randn(31, 4, device=DEVICE)
    edge_index, layers = torch.randint(0, 9, (2, 31), device=DEVICE), [GatedGCN(4, 0.1).to(DEVICE) for _ in range(2)]
    for _ in range(2):
        new, edges = x, edge_attr
        for layer in layers:
            new, edges = layer(new, edge_index, edges)
        new.sum().backward()
    assert len(sorts) == 2  # by target, and by source
    edge_index[1, 0] = (edge_index[1, 0] + 1) % 9
    layers[0](x, edge_index, edge_attr)
    assert len(sorts) == 3


@thorough
def test_the_check_before_the_first_use_passes_and_sees_a_wrong_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    check_sees_a_wrong_gradient(triton_gated_mean, "gated_mean_backward", monkeypatch)
