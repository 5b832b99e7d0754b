"""Second derivatives of fused operators: an error."""

from __future__ import annotations

import torch


def refuse_second_derivative(operator: str) -> None:
    """Raise where a graph of the gradient is wanted; the first line of each backward of a fused operator.

    torch's ``once_differentiable`` does not serve: it raises only where the gradient of the output carries a graph
    itself. Where a second derivative flows through the saved inputs alone it treats the first one as a constant.

    Args:
        operator (str): its name, for the message.

    Raises:
        RuntimeError: the gradient is taken with ``create_graph=True``.
    """
    if torch.is_grad_enabled():  # in a backward only under create_graph=True
        raise RuntimeError(
            f"{operator} has no second derivative (create_graph=True): this package's fused operators have first ones "
            "only"
        )
