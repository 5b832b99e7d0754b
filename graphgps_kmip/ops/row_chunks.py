"""Functions of each row of large tables, computed for some rows at a time, and again in the backward pass.

Gradient checkpointing (Chen et al. 2016) by rows: the graphs of the first chunks are stored, up to `KEEP_BYTES`, those
of the others computed again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.func import functional_call

from graphgps_kmip.ops.host_copies import on_device
from graphgps_kmip.ops.operators import refuse_second_derivative

CHUNK_NUMBERS = {"cpu": 2**20}  # of one chunk in the widest of its tensors: 4 MiB in float32, which a cache holds
CHUNK_NUMBERS_ELSEWHERE = 2**25
KEEP_BYTES = 48 * 2**20  # for the backward pass: three quarters of a batch of ZINC, a sixteenth of one of Peptides

Call = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class RowStage:
    """One function of rows and the tensors that it reads.

    Args:
        function (Callable): ``(x, part, rows, shared, call) -> (p, D)`` for the rows of the slice ``part``: x (p, C) of
            the stage before, or None; ``call(module, x)`` calls one of ``modules``. No row may depend on another one,
            and no random number be drawn.
        width (int): numbers of one row in the widest tensor that it makes, which sets the size of chunks.
        rows (tuple, optional): pairs of a tensor and the rows to which its rows belong, in increasing order; None: row
            r to row r. (default: ``()``)
        shared (tuple, optional): tensors that all rows read. (default: ``()``)
        modules (tuple, optional): modules whose parameters get gradients. (default: ``()``)

    Shapes: a tensor of rows (P, ...) without an index, (E, ...) with an index (E,).
    """

    function: Callable[..., Tensor]
    width: int
    rows: tuple[tuple[Tensor, Tensor | None], ...] = ()
    shared: tuple[Tensor, ...] = ()
    modules: tuple[nn.Module, ...] = ()

    @cached_property
    def names(self) -> list[list[str]]:
        """Names of the parameters of each module."""
        return [[name for name, _ in module.named_parameters()] for module in self.modules]

    @cached_property
    def tensors(self) -> list[Tensor]:
        """Tensors of rows, shared tensors, then the parameters of the modules."""
        parameters = [parameter for module in self.modules for parameter in module.parameters()]
        return [*(tensor for tensor, _ in self.rows), *self.shared, *parameters]

    def compute(self, x: Tensor | None, part: slice, tensors: Sequence[Tensor], swap: bool) -> Tensor:
        """Return the function of some rows; ``tensors`` as the property has them, but these rows alone."""
        tensors = iter(tensors)
        rows, shared = (list(islice(tensors, len(kind))) for kind in (self.rows, self.shared))
        parameters = {
            module: dict(zip(names, islice(tensors, len(names)), strict=True))
            for module, names in zip(self.modules, self.names, strict=True)
        }

        def call(module: nn.Module, value: Tensor) -> Tensor:
            return functional_call(module, parameters[module], (value,)) if swap else module(value)

        return self.function(x, part, rows, shared, call)


def map_rows(stages: Sequence[RowStage], num_rows: int) -> Tensor:
    """Return the rows (P, D) that a chain of functions makes, each stage from the rows of the stage before.

    Gradients flow to all tensors and parameters. What is kept for the backward pass is gone after the first one.
    """
    tensors = [tensor for stage in stages for tensor in stage.tensors]
    return _MapRows.apply(tuple(stages), num_rows, torch.is_grad_enabled(), *tensors)


def _chunks(stages: Sequence[RowStage], num_rows: int, device: str) -> list[slice]:
    step = CHUNK_NUMBERS.get(device, CHUNK_NUMBERS_ELSEWHERE) // max(stage.width for stage in stages) or 1
    return [slice(start, min(start + step, num_rows)) for start in range(0, max(1, num_rows), step)]


def _compute(stages: Sequence[RowStage], part: slice, pieces: Sequence[Tensor], swap: bool) -> Tensor:
    x, first = None, 0
    for stage in stages:
        last = first + len(stage.tensors)
        x, first = stage.compute(x, part, pieces[first:last], swap), last
    return x


def _find_places(stages: Sequence[RowStage], parts: Sequence[slice]) -> list[tuple[slice | None, ...]]:
    """Find the rows of each chunk in each tensor: a slice in tensors of rows, None for shared ones."""
    columns: list[Sequence[slice | None]] = []
    for stage in stages:
        columns += [parts if index is None else _slice_index(index, parts) for _, index in stage.rows]
        columns += [[None] * len(parts)] * (len(stage.tensors) - len(stage.rows))
    return list(zip(*columns, strict=True))


def _slice_index(index: Tensor, parts: Sequence[slice]) -> list[slice]:
    if len(parts) == 1:
        return [slice(0, len(index))]
    stops = on_device([part.stop for part in parts], index.device)
    ends = torch.searchsorted(index, stops).tolist()
    return list(map(slice, [0, *ends], ends))


class _MapRows(Function):
    @staticmethod
    def forward(ctx: Any, stages: tuple[RowStage, ...], num_rows: int, graphs: bool, *tensors: Tensor) -> Tensor:
        device = tensors[0].device.type
        ctx.save_for_backward(*tensors)
        ctx.stages, ctx.num_rows, ctx.graphs = stages, num_rows, []
        ctx.autocast = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        parts, out, room = _chunks(stages, num_rows, device), None, KEEP_BYTES
        needed = ctx.needs_input_grad[3:]
        graphs = graphs and any(needed)
        for part, places in zip(parts, _find_places(stages, parts), strict=True):
            pieces = _pieces(tensors, places)
            if graphs:
                pieces = _leaves(pieces, needed)
                with torch.enable_grad(), _StoredBytes(tensors) as stored:
                    chunk = _compute(stages, part, pieces, swap=True)
                room -= stored.total()
                graphs = room >= 0
                if graphs:
                    ctx.graphs.append((get_gradient_edge(chunk), pieces))
                chunk = chunk.detach()
            else:
                chunk = _compute(stages, part, pieces, swap=False)
            out = chunk.new_empty(num_rows, chunk.size(1)) if out is None else out
            out[part] = chunk
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors, stages, device = ctx.saved_tensors, ctx.stages, grad.device.type
        refuse_second_derivative("rows in chunks")
        parts = _chunks(stages, ctx.num_rows, device)
        needed = ctx.needs_input_grad[3:]
        # a graph serves once: a second backward pass computes all chunks again
        graphs, ctx.graphs = ctx.graphs, []
        graphs.reverse()
        # chunks write all rows of tensors of rows, and add to the others
        sums = [torch.zeros_like(tensor) if need else None for tensor, need in zip(tensors, needed, strict=True)]
        for part, places in zip(parts, _find_places(stages, parts), strict=True):
            if graphs:
                chunk, pieces = graphs.pop()
            else:
                pieces = _leaves(_pieces(tensors, places), needed)
                with torch.enable_grad(), _autocast(ctx, device):
                    chunk = _compute(stages, part, pieces, swap=True)
            leaves = [tensor for tensor, need in zip(pieces, needed, strict=True) if need]
            grads = iter(torch.autograd.grad((chunk,), leaves, (grad[part],), allow_unused=True))
            for total, where in zip(sums, places, strict=True):
                piece_grad = None if total is None else next(grads)
                if piece_grad is not None:
                    (total if where is None else total[where]).add_(piece_grad)
        return None, None, None, *sums


class _StoredBytes(saved_tensors_hooks):
    """Counts what operators store for their backward pass, without the tensors that are there anyway."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.inputs = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self.sizes: dict[int, int] = {}
        super().__init__(self._count, lambda tensor: tensor)

    def __enter__(self) -> _StoredBytes:
        super().__enter__()
        return self

    def _count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.inputs:
            self.sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    def total(self) -> int:
        return sum(self.sizes.values())


def _leaves(pieces: Sequence[Tensor], needed: Sequence[bool]) -> list[Tensor]:
    return [piece.detach().requires_grad_(need) for piece, need in zip(pieces, needed, strict=True)]


def _pieces(tensors: Sequence[Tensor], places: Sequence[slice | None]) -> list[Tensor]:
    return [tensor if where is None else tensor[where] for tensor, where in zip(tensors, places, strict=True)]


def _autocast(ctx: Any, device: str) -> contextlib.AbstractContextManager:
    enabled, dtype = ctx.autocast  # as in the forward pass
    return torch.autocast(device, dtype, enabled) if enabled else contextlib.nullcontext()
