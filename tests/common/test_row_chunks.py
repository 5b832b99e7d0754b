"""Functions of rows by chunks: values and gradients of the plain form, at any number of rows and size of chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.ops import row_chunks
from graphgps_kmip.ops.row_chunks import RowStage, map_rows

EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}
EDGES = torch.tensor([0, 0, 3, 4, 9])  # rows to which the rows of a sparse tensor belong


@pytest.fixture(autouse=True, params=[0, 1000, 2**26], ids=["no graphs", "some graphs", "all graphs"])
def _small_chunks(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setitem(row_chunks.CHUNK_NUMBERS, "cpu", 12)  # three rows of width 4
    monkeypatch.setattr(row_chunks, "KEEP_BYTES", request.param)


class Inputs:
    """Tensors of two stages: a product with a shared matrix and sparse rows, then an MLP with a residual."""

    def __init__(self, rows: int) -> None:
        torch.manual_seed(0)
        draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, requires_grad=True)  # noqa: E731
        self.num_rows, self.place = rows, EDGES[EDGES < rows]
        self.x, self.edges, self.weight = draw(rows, 3), draw(len(self.place), 4), draw(4, 3)
        self.mlp = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2)).double()

    @property
    def leaves(self) -> list[Tensor]:
        return [self.x, self.edges, self.weight, *self.mlp.parameters()]

    def plain(self) -> Tensor:
        first = (self.x @ self.weight.T).index_add(0, self.place, self.edges)
        return self.mlp(first) + first[:, :2]

    def stages(self) -> list[RowStage]:
        def first(
            x: None,  # noqa: ARG001
            part: slice,
            rows: Sequence[Tensor],
            shared: Sequence[Tensor],
            call: Callable[[nn.Module, Tensor], Tensor],  # noqa: ARG001
        ) -> Tensor:
            values, edges, place = rows
            return (values @ shared[0].T).index_add(0, place - part.start, edges)

        def second(x: Tensor, part: slice, rows: Any, shared: Any, call: Callable[..., Tensor]) -> Tensor:  # noqa: ARG001
            return call(self.mlp, x) + x[:, :2]

        rows = (self.x, None), (self.edges, self.place), (self.place, self.place)
        return [RowStage(first, 4, rows, (self.weight,)), RowStage(second, 4, modules=(self.mlp,))]


@pytest.mark.parametrize("rows", [0, 1, 3, 10, 12])
def test_values_and_gradients_are_those_of_all_rows_at_once(rows: int) -> None:
    inputs = Inputs(rows)
    out, expected = map_rows(inputs.stages(), rows), inputs.plain()
    torch.testing.assert_close(out, expected, **EXACT)
    factor = torch.randn(expected.shape, dtype=torch.float64)
    grads = [torch.autograd.grad((y * factor).sum(), inputs.leaves) for y in (out, expected)]
    torch.testing.assert_close(*grads, **EXACT)


def test_a_parameter_that_changes_between_the_passes_is_an_error_and_not_a_wrong_gradient() -> None:
    inputs = Inputs(10)
    out = map_rows(inputs.stages(), 10)
    with torch.no_grad():
        inputs.mlp[0].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_gradients_under_functional_call_are_those_of_the_parameters_that_were_given() -> None:
    inputs = Inputs(10)
    parameters = {name: (2 * value).detach().requires_grad_() for name, value in inputs.mlp.named_parameters()}

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = inputs.mlp

        def forward(self, plain: bool) -> Tensor:
            return inputs.plain() if plain else map_rows(inputs.stages(), 10)

    named, grads = {f"mlp.{name}": value for name, value in parameters.items()}, []
    for plain in (False, True):
        out = torch.func.functional_call(Whole(), named, (plain,))
        grads.append(torch.autograd.grad(out.square().sum(), list(parameters.values())))
    torch.testing.assert_close(*grads, **EXACT)


def test_without_room_for_graphs_only_the_inputs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_chunks, "KEEP_BYTES", 0)
    inputs, saved = Inputs(10), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        out = map_rows(inputs.stages(), 10)
    pointers = {tensor.data_ptr() for tensor in (*inputs.leaves, inputs.place)}
    assert saved
    assert {tensor.data_ptr() for tensor in saved} <= pointers
    assert not out.grad_fn.graphs


def stored_bytes(rows: int) -> int:
    """Bytes that some rows store as a single chunk in the plain form, parameters and inputs aside."""
    inputs, sizes = Inputs(rows), {}
    pointers = {tensor.untyped_storage().data_ptr() for tensor in (*inputs.leaves, inputs.place)}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes.update({} if storage.data_ptr() in pointers else {storage.data_ptr(): storage.nbytes()})
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        inputs.plain()
    return sum(sizes.values())


@pytest.mark.parametrize("chunks", [0, 1, 2, 3])
def test_graphs_of_the_first_chunks_are_kept_as_long_as_their_bytes_fit(
    chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = 2 * 8 * len(EDGES)  # places of edges in a chunk, which `index_add` stores
    monkeypatch.setattr(row_chunks, "KEEP_BYTES", chunks * stored_bytes(3) + index)
    assert len(map_rows(Inputs(12).stages(), 12).grad_fn.graphs) == chunks
    with torch.no_grad():
        assert map_rows(Inputs(12).stages(), 12).grad_fn is None


def test_what_is_kept_is_not_computed_again_and_serves_one_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_chunks, "KEEP_BYTES", 2**26)
    inputs, calls, compute = Inputs(10), [], row_chunks._compute
    monkeypatch.setattr(row_chunks, "_compute", lambda *args, **more: calls.append(0) or compute(*args, **more))
    out = map_rows(inputs.stages(), 10)
    assert len(calls) == 4
    first = torch.autograd.grad(out.square().sum(), inputs.leaves, retain_graph=True)
    assert len(calls) == 4
    assert not out.grad_fn.graphs
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), inputs.leaves), first, **EXACT)
    assert len(calls) == 8


def test_hooks_of_a_parameter_see_its_whole_gradient_once() -> None:
    inputs, seen = Inputs(10), []
    inputs.weight.register_hook(lambda grad: seen.append(grad))
    map_rows(inputs.stages(), 10).square().sum().backward()
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], inputs.weight.grad, **EXACT)
