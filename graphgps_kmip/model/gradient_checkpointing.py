"""Gradient checkpointing: only the inputs of a layer are kept, the rest is recomputed (Chen et al. 2016)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from graphgps_kmip.search.search_memo import Memo


def recomputed(layer: nn.Module, *args: Any) -> Any:
    """Call a layer with gradient checkpointing.

    Results, gradients and buffers are those of ``layer(*args)``: dropout draws the same masks, batch norms count a
    batch once, and k-MIP searches, which take most of the time, are not repeated (`Memo`). Cost: a second
    forward pass without its searches. Memory until the backward pass: the arguments and the results of searches.

    Args:
        layer (Module): module.
        *args: of its forward.
    """
    memo = Memo()

    @contextmanager
    def second_pass() -> Iterator[None]:
        with memo.replaying(), _frozen_statistics(layer):
            yield

    return checkpoint(layer, *args, use_reentrant=False, context_fn=lambda: (memo.recording(), _Again(second_pass)))


class _Again:
    """A context manager that can be entered several times: torch enters the same one in every backward pass of a graph.

    There are several with ``retain_graph`` and for second derivatives.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self.make, self.stack = make, ExitStack()

    def __enter__(self) -> None:
        self.stack.enter_context(self.make())

    def __exit__(self, *error: Any) -> bool | None:
        return self.stack.__exit__(*error)


@contextmanager
def _frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Let batch norms normalise by the batch, as in training, without moving their running statistics."""
    norms = [norm for norm in module.modules() if isinstance(norm, _BatchNorm) and norm.track_running_stats]
    before = [(norm.momentum, norm.num_batches_tracked.clone()) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0  # they must be handed over as they were: the first pass saved them
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, before, strict=True):
            norm.momentum = momentum
            norm.num_batches_tracked.copy_(count)
