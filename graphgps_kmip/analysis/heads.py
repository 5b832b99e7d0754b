"""Queries, keys and values of the k-MIP layers of a model, as they are in its forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.kmip import KMIPAttention
from graphgps_kmip.errors import InputError


@dataclass(frozen=True, eq=False)
class Heads:
    """What the heads of one layer attend with.

    Args:
        q: queries, before any scaling: k-MIP attention divides the scores by sqrt(D).
        k: keys.
        v: values.
        ptr: first node of each graph, and N at the end.

    Shapes:
        q and k (H, N, D), v (H, N, C), ptr (B+1,).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    ptr: Tensor


def kmip_layers(model: nn.Module) -> list[KMIPAttention]:
    """Return the k-MIP attentions of a model.

    Raises:
        ValueError: it has none.
    """
    layers = [module for module in model.modules() if isinstance(module, KMIPAttention)]
    if not layers:
        raise InputError("this model has no k-MIP attention: give a run of one that has, such as GPS+kMIP")
    return layers


@torch.no_grad()
def collect_heads(model: nn.Module, batch: Any) -> list[Heads]:
    """Run the model once in eval mode and return the heads of its k-MIP layers, in order of use.

    Args:
        model: has k-MIP attention; left in eval mode.
        batch: what the model takes; cloned, since models write into it.

    Raises:
        ValueError: the model has no k-MIP attention.
    """
    found: list[Heads] = []

    def keep(layer: KMIPAttention, args: tuple) -> None:
        x, context = args[0], GraphContext.of(args[1], args[0])
        q, k, v = (
            linear(x).unflatten(1, (layer.num_heads, -1)).transpose(0, 1).contiguous()  # (H, N, D)
            for linear in (layer.query, layer.key, layer.value)
        )
        found.append(Heads(q, k, v, context.ptr.clone()))

    hooks = [layer.register_forward_pre_hook(keep) for layer in kmip_layers(model)]
    try:
        model.eval()(batch.clone())
    finally:
        for hook in hooks:
            hook.remove()
    return found


def gaussian_heads(like: Heads, seed: int) -> Heads:
    """Return heads of the same shapes whose entries are drawn from N(0, 1), the same ones for the same seed."""
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(one.shape, generator=draw).to(one) for one in (like.q, like.k, like.v))
    return Heads(q, k, v, like.ptr)
