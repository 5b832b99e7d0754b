"""Attention graph of a layer: which keys each node attends to, with which weights; collected from a whole model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class AttentionGraph:
    """One directed weighted graph per head: an edge from key ``index[h, n, j]`` to query n with ``weight[h, n, j]``.

    Args:
        index (Tensor): global node id of the key, -1 in a missing slot.
        weight (Tensor): attention weight, 0 in a missing slot; the weights of a query sum to 1.

    Shapes:
        index and weight (H, N, K).
    """

    index: Tensor
    weight: Tensor

    def out_degree(self) -> Tensor:
        """Number of queries that select each node as a key, (H, N) int64 (thesis, section on attention graphs)."""
        degree = self.index.new_zeros(self.index.shape[:2])
        selected = (self.index >= 0).long().flatten(1)
        return degree.scatter_add_(1, self.index.clamp(min=0).flatten(1), selected)


@torch.no_grad()
def collect_attention(model: nn.Module, batch: Any) -> list[AttentionGraph]:
    """Run the model once in eval mode and return the attention graph of each layer that has one, in order of use.

    Args:
        model (Module): any module; ``attention_graph`` of its layers is called with the arguments of their forward.
        batch (object): input of the model; cloned first if it can be (models write into it).
    """
    graphs: list[AttentionGraph] = []

    def record(module: nn.Module, args: tuple, kwargs: dict) -> None:
        graphs.append(module.attention_graph(*args, **kwargs))

    training = {module: module.training for module in model.modules()}
    hooks = [module.register_forward_pre_hook(record, with_kwargs=True) for module in training if _has_graph(module)]
    try:
        model.eval()(batch.clone() if hasattr(batch, "clone") else batch)
    finally:
        for hook in hooks:
            hook.remove()
        for module, flag in training.items():
            module.training = flag
    return graphs


def _has_graph(module: nn.Module) -> bool:
    return callable(getattr(module, "attention_graph", None))
