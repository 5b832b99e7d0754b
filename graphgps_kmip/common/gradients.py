"""Second derivatives of fused operators: by autograd on a plain form where there is one, else an error in every case.

torch's ``once_differentiable`` does not serve: it raises only where the gradient of the output carries a graph itself.
Where a second derivative flows through the saved inputs alone it silently treats the first one as a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

Gradients = tuple[Tensor | None, ...]


def differentiable_gradients(
    plain: Callable[..., Tensor | tuple[Tensor, ...]],
    inputs: Sequence[Tensor | None],
    grad_outputs: Sequence[Tensor | None],
) -> Gradients:
    """Compute the gradients of an operator by autograd on its plain form, so that they can be differentiated again.

    For the backward of an ``autograd.Function`` whose ``torch.is_grad_enabled()``, which is so under
    ``create_graph=True`` alone. Costs time and memory of the plain form.

    Args:
        plain: the operator in differentiable torch operations, inputs -> outputs.
        inputs: saved inputs (or outputs) of the Function, as ``ctx.saved_tensors`` has them.
        grad_outputs: gradient of each output; None: zero.

    Returns:
        A gradient for each input that requires one, None for the others.
    """
    first = next(tensor for tensor in inputs if tensor is not None)
    with torch.enable_grad(), torch.autocast(first.device.type, enabled=False):
        # views: a tensor that is given twice has two gradients
        own = [x.view_as(x) if x is not None and x.requires_grad else x for x in inputs]
        outputs = plain(*own)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        pairs = [pair for pair in zip(outputs, grad_outputs, strict=True) if pair[1] is not None]
        pairs = [(out, grad.to(out.dtype)) for out, grad in pairs if out.requires_grad]
        needed = [x for x in own if x is not None and x.requires_grad]
        if not pairs:
            found = iter([torch.zeros_like(x) for x in needed])
        else:
            outs, grads = zip(*pairs, strict=True)
            found = iter(torch.autograd.grad(outs, needed, grads, create_graph=True, materialize_grads=True))
    return tuple(next(found) if x is not None and x.requires_grad else None for x in own)


def once_only(name: str, compute: Callable[[], Gradients], tensors: Sequence[Tensor | None]) -> Gradients:
    """Return what ``compute`` does, marked so that a derivative of it raises, whichever way it takes.

    Args:
        name: the operator, for the message.
        compute: the gradients, without any graph.
        tensors: all that they depend on: gradients of the outputs, and what was saved.

    Raises:
        RuntimeError: in the backward of the result, never at once: who asks for a graph need not use it here.
    """
    return _Once.apply(name, compute, *tensors)


class _Once(Function):
    @staticmethod
    def forward(ctx: Any, name: str, compute: Callable[[], Gradients], *tensors: Tensor | None) -> Gradients:  # noqa: ARG004
        ctx.name = name
        return compute()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:  # noqa: ARG004
        raise RuntimeError(
            f"{ctx.name} has no second derivative, and a gradient of its gradient was asked for (create_graph=True, "
            "and a second backward): take the second derivative in a single process, or leave this operator out of it"
        )
