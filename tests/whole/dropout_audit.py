"""Which dropouts a model calls: place, kind and rate of each, as the records of whole models have them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from graphgps_kmip.attention import edgewise, exphormer, full, kmip
from graphgps_kmip.encoding.graph_token import GraphToken

Dropout = tuple[str, str, float]  # place, kind, rate
PLACES = (
    (r"^model\.", ""),  # of GraphGym
    (r"^trf_layers\.", "layers."),
    (r"^gnn_layers\.", "layers."),
    (r"^mp\.layer(\d+)\..*", r"layers.\1"),
    (r"^(layers\.\d+)\.models\.\d+\.(?:local_model|self_attn|dropout_\w+).*", r"\1"),
    (r"^(layers\.\d+)\..*", r"\1"),
    (r"^encoder\.(?:node_encoder|node)\..*", "encoder.node"),
    (r"^pre_mp\..*", "pre_mp"),
    (r"^(?:post_mp|head)\..*", "head"),
)


def place(module: str) -> str:
    """Return what a name of a module is of: a layer, the encoder of nodes, the input layers or the head."""
    for pattern, form in PLACES:
        module = re.sub(pattern, form, module)
    return module


def recorded(dropouts: list[list[Any]]) -> Counter[Dropout]:
    """Return how often each dropout of a record is called."""
    return Counter((place(module), kind, rate) for module, kind, rate, _ in dropouts)


@contextmanager
def audited(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[Dropout]]:
    """Count the dropouts that are called inside; the model must be in train mode."""
    found: Counter[Dropout] = Counter()
    active: list[str] = []
    handles = []
    tokens = {f"{name}.dropout" for name, module in model.named_modules() if isinstance(module, GraphToken)}
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: active.append(name)))
        handles.append(module.register_forward_hook(lambda *_: active.pop() and None))
    original = nn.functional.dropout

    def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if training and p > 0 and active[-1] not in tokens:  # the original drops of nodes and tokens in one call
            found[place(active[-1]), "dropout", p] += 1
        return original(x, p, training, inplace)

    with monkeypatch.context() as patch:
        patch.setattr(nn.functional, "dropout", dropout)
        patch.setattr(edgewise, "drop", lambda x, p: (_attention(found, active, p), original(x, p))[1])
        for module, name, at in (
            (full, "full_attention", 3),
            (full, "scaled_dot_product_attention", 4),
            (kmip, "sparse_attention", 5),
            (exphormer, "clamped_attention", 5),
        ):
            patch.setattr(module, name, _counting(getattr(module, name), at, found, active))
        multi_head = nn.functional.multi_head_attention_forward

        def multi_head_attention(*args: Any, **given: Any) -> Any:
            if given.get("training", True):
                _attention(found, active, args[10])
            return multi_head(*args, **given)

        patch.setattr(nn.functional, "multi_head_attention_forward", multi_head_attention)
        yield found
    for handle in handles:
        handle.remove()


def _counting(function: Any, at: int, found: Counter[Dropout], active: list[str]) -> Any:
    def called(*args: Any, **given: Any) -> Any:
        _attention(found, active, args[at])
        return function(*args, **given)

    return called


def _attention(found: Counter[Dropout], active: list[str], rate: float) -> None:
    if rate > 0:
        found[place(active[-1]), "attention", rate] += 1
