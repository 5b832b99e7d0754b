"""Operators of this package in torch's dispatcher: what ``torch.compile``, ``torch.export`` and fake tensors need.

Names: ``torch.ops.graphgps_kmip.*``. Plain tensors bypass the dispatcher, and ``torch.library.custom_op`` is not used:
on small graphs either takes as long as some of the operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd import Function, forward_ad
from torch.compiler import is_compiling
from torch.nn import Parameter

from graphgps_kmip.errors import InputError

NAMESPACE = "graphgps_kmip"
_library = torch.library.Library(NAMESPACE, "FRAGMENT")
implementations: dict[Any, Callable[..., Any]] = {}  # operator -> Python function, for devices that are in Python too


def operator(
    schema: str,
    implementation: Callable[..., Any],
    fake: Callable[..., Any],
    *,
    keep: Callable[[Any, tuple, Any], None] | None = None,
    gradients: Callable[..., Any] | None = None,
) -> Any:
    """Define an operator and return what calls it.

    Args:
        schema (str): name, arguments and results, as in ``native_functions.yaml``.
        implementation (callable): computes new tensors from tensors on any device, and changes none.
        fake (callable): tensors like its results, with the same strides, from tensors that have no values.
        keep (callable, optional): (ctx, inputs, output): saves what the gradients need. (default: None)
        gradients (callable, optional): (ctx, gradients of the outputs) -> gradients of the inputs; None: the operator
            is not differentiable. (default: None)
    """
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    dispatched = getattr(getattr(torch.ops, NAMESPACE), name).default
    implementations[dispatched] = implementation
    compute = implementation
    if gradients is not None:
        compute = _make_function(name, dispatched, implementation, keep, gradients).apply
        _library.impl(name, compute, "Autograd")

    def call(*args: Any) -> Any:
        if is_compiling():
            return dispatched(*args)
        if gradients is not None:
            _refuse_other_derivatives(name, args)
        return compute(*args) if are_plain(args) else dispatched(*args)

    return call


def _make_function(
    name: str, dispatched: Any, implementation: Callable, keep: Callable | None, gradients: Callable
) -> type[Function]:
    class Operator(Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            if are_plain(args):
                output = implementation(*args)
            else:
                with torch._C._AutoDispatchBelowAutograd():
                    output = dispatched(*args)
            if keep is not None:
                keep(ctx, args, output)
            return output

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> Any:
            return gradients(ctx, *grads)  # which ask for torch.is_grad_enabled

    return type(name, (Operator,), {})  # profilers show the name


def are_plain(args: tuple[Any, ...]) -> bool:
    """Whether tensors have values and nobody watches them: no fake tensor, no transform, no mode, no subclass."""
    if is_compiling() or torch._C._len_torch_dispatch_stack() or functorch.peek_interpreter_stack() is not None:
        return False
    return all(type(value) is Tensor or type(value) is Parameter or not isinstance(value, Tensor) for value in args)


def _refuse_other_derivatives(name: str, args: tuple[Any, ...]) -> None:
    """Refuse torch.func's derivatives and forward mode: torch would raise an unclear error, or lose the tangents."""
    if forward_ad._current_level < 0 and functorch.peek_interpreter_stack() is None:
        return
    kinds = {level.key() for level in functorch.get_interpreter_stack() or ()}
    tangents = forward_ad._current_level >= 0 and any(
        isinstance(value, Tensor) and forward_ad.unpack_dual(value).tangent is not None for value in args
    )
    if tangents or kinds & {functorch.TransformType.Grad, functorch.TransformType.Jvp}:
        raise RuntimeError(
            f"{name} has no derivatives by torch.func (grad, vjp, jvp, hessian) or forward mode: take first "
            "derivatives by torch.autograd.grad"
        )


def new_tensors(*like: Tensor | None) -> list[Tensor]:
    """Return contiguous tensors of the shapes of those that are not None, without values."""
    return [tensor.new_empty(tensor.shape) for tensor in like if tensor is not None]


def refuse_second_derivative(operator: str) -> None:
    """Raise where a graph of the gradient is wanted: in each backward of a fused operator.

    ``once_differentiable`` is silent, and wrong, where a second derivative flows through the saved inputs alone.
    """
    if torch.is_grad_enabled():  # in a backward only under create_graph=True
        raise RuntimeError(
            f"{operator} has no second derivative (create_graph=True): this package's fused operators have first ones "
            "only"
        )


class NotFinite(InputError, FloatingPointError):
    """A query, a key or an inner product is NaN or infinite; training loops recognise a FloatingPointError."""


def overflow(largest_q: float, largest_k: float, dtype: torch.dtype) -> NotFinite:
    """Return the error for inner products that overflow a dtype, from the largest absolute values of q and k."""
    return NotFinite(
        f"inner products of queries up to {largest_q:.2g} and keys up to {largest_k:.2g} overflow "
        f"{str(dtype).removeprefix('torch.')}, whose largest number is {torch.finfo(dtype).max:.2g}: normalise queries "
        "and keys, lower the learning rate if they grew in training, or "
        + ("scale them down" if dtype == torch.float64 else "compute in a wider dtype")
    )
