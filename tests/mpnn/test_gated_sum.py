"""The sums of GatedGCN against their plain form: values, gradients, chunks, what is kept for the backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphgps_kmip.mpnn import gatedgcn as room
from graphgps_kmip.mpnn.gatedgcn import gated_sum
from tests.mpnn.cases import check_gradients

SOURCES, TARGETS, EDGES, DIM = 7, 5, 23, 3


def plain(gate: Tensor, value: Tensor, factor: Tensor | None, source: Tensor, target: Tensor, num: int) -> list[Tensor]:
    weight = gate.sigmoid() * (1 if factor is None else factor)
    message = weight * value[source]
    return [torch.zeros(num, gate.size(1), dtype=gate.dtype).index_add(0, target, part) for part in (message, weight)]


def example(with_factor: bool, num_edges: int = EDGES) -> tuple[list[Tensor | None], tuple[Tensor, Tensor, int]]:
    """Node 4 is no target, node 6 no source; source and target sets differ in size."""
    torch.manual_seed(0)
    shapes = [(num_edges, DIM), (SOURCES, DIM), (num_edges, 1) if with_factor else None]
    floats = [None if shape is None else torch.randn(shape).double().requires_grad_() for shape in shapes]
    indices = torch.randint(0, SOURCES - 1, (num_edges,)), torch.randint(0, TARGETS - 1, (num_edges,)), TARGETS
    return floats, indices


@pytest.fixture(params=[4 * DIM * 8, 8, room.CHUNK_BYTES], ids=["six chunks", "edge by edge", "one chunk"])
def chunk_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(room, "CHUNK_BYTES", request.param)
    return request.param


@pytest.mark.parametrize("with_factor", [False, True])
@pytest.mark.parametrize("num_edges", [EDGES, 1, 0])
def test_sums_and_gradients_equal_the_plain_form(chunk_bytes: int, with_factor: bool, num_edges: int) -> None:
    assert chunk_bytes == room.CHUNK_BYTES
    floats, indices = example(with_factor, num_edges)
    found, expected = gated_sum(*floats, *indices), plain(*floats, *indices)
    torch.testing.assert_close(list(found), expected, rtol=1e-12, atol=1e-12)
    assert (found[0][TARGETS - 1] == 0).all()
    check_gradients(found, expected, floats, tolerance=1e-12)


@pytest.mark.parametrize("with_factor", [False, True])
def test_gradients_equal_finite_differences(chunk_bytes: int, with_factor: bool) -> None:
    assert chunk_bytes == room.CHUNK_BYTES
    floats, indices = example(with_factor)
    assert torch.autograd.gradcheck(lambda *inputs: gated_sum(*inputs, *indices), floats)


def test_chunks_are_as_long_as_the_bound_allows_and_cover_every_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CHUNK_BYTES", 1000)
    gate = torch.zeros(95, 6, dtype=torch.bfloat16)  # summed in float32: 24 bytes an edge
    parts = [gate[part].size(0) for part in room._chunks(gate)]
    assert parts == [41, 41, 13]


def test_only_inputs_are_kept_for_the_backward() -> None:
    floats, indices = example(with_factor=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        gated_sum(*floats, *indices)
    given = {t.data_ptr() for t in (*floats, *indices[:2])}
    assert {t.data_ptr() for t in kept} == given
    assert len(kept) == len(given)


def test_inputs_and_gates_are_not_modified() -> None:
    floats, indices = example(with_factor=True)
    before = [tensor.detach().clone() for tensor in floats]
    total, normaliser = gated_sum(*floats, *indices)
    (total.sum() + normaliser.sum()).backward()
    torch.testing.assert_close([t.detach() for t in floats], before, rtol=0, atol=0)


def test_halves_are_summed_in_float32() -> None:
    gate = torch.full((4096, 1), 20.0, dtype=torch.bfloat16).requires_grad_()  # the sigmoid is 1
    value = torch.ones(1, 1, dtype=torch.bfloat16).requires_grad_()
    zeros = torch.zeros(4096, dtype=torch.long)
    total, normaliser = gated_sum(gate, value, None, zeros, zeros, 1)
    torch.testing.assert_close(total, torch.full((1, 1), 4096.0))  # bfloat16 would stop at 256
    torch.testing.assert_close(normaliser, torch.full((1, 1), 4096.0))
    total.sum().backward()
    assert gate.grad.dtype == value.grad.dtype == torch.bfloat16
    torch.testing.assert_close(value.grad, torch.full_like(value, 4096.0))


def test_forward_and_backward_repeat_bit_for_bit() -> None:
    torch.manual_seed(0)
    gate, value = torch.randn(5000, 8, requires_grad=True), torch.randn(40, 8, requires_grad=True)
    source, target = torch.randint(0, 40, (2, 5000))

    def run() -> list[Tensor]:
        sums = gated_sum(gate, value, None, source, target, 40)
        return [*sums, *torch.autograd.grad(sums[0].square().sum() + sums[1].sum(), (gate, value))]

    torch.testing.assert_close(run(), run(), rtol=0, atol=0)
