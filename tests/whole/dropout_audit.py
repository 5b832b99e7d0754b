"""Which dropouts a model calls: module, kind, rate and size of each, as the records of whole models have them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from graphgps_kmip.attention import exphormer, full, kmip, score_estimator
from graphgps_kmip.encoding.graphormer_bias import GraphToken
from graphgps_kmip.mpnn import gatedgcn
from graphgps_kmip.ops import dropout as dropout_operator

Dropout = tuple[str, str, float, str]  # place, kind, rate, width and rows
# Module of an original code -> the place of the same dropout. "own": inside a branch, before its residual.
ORIGINAL = (
    (r"^(?:trf_layers|gnn_layers)\.", "layers."),
    (r"^mp\.layer(\d+)\.post_layer\..*", r"layers.\1"),
    (r"^(layers\.\d+)\.models\.\d+\.", r"\1."),
    (r"^(layers\.\d+)\.dropout_local$", r"\1.local"),
    (r"^(layers\.\d+)\.(?:self_attn|attention(?!_layer)).*", r"\1.attention.own"),
    (r"^(layers\.\d+)\.(?:dropout_attn|dropout_global|dropout|attention_layer\.dropout)$", r"\1.attention"),
    (r"^(layers\.\d+)\.local_model.*", r"\1.local.own"),
    (r"^(layers\.\d+)\.ff_dropout(\d)$", r"\1.ffn.\2"),
    (r"^(layers\.\d+)\.act\.1$", r"\1"),
    (r"^(layers\.\d+)\.model\.nn\.", r"\1.inner."),
    (r"^encoder\.node_encoder\.(?:(?:encoder)?\d+\.)*", "encoder."),
    (r"^pre_mp\..*", "pre_mp"),
    (r"^post_mp\.mlp\.", "head."),
)
# Module of ours, and in brackets the child of its layer that was called last -> the same places.
OURS = (
    (r"^model\.", ""),  # of GraphGym
    (r"^(layers\.\d+)\.dropout\[(local|attention)\]$", r"\1.\2"),
    (r"\[.*", ""),
    (r"^(layers\.\d+)\.(local|attention)\..*", r"\1.\2.own"),
    (r"^(layers\.\d+)\.ffn\.2$", r"\1.ffn.1"),
    (r"^(layers\.\d+)\.ffn\.4$", r"\1.ffn.2"),
    (r"^(layers\.\d+)\.conv\.inner\.", r"\1.inner."),
    (r"^(layers\.\d+)\.(?:dropout|conv\.dropout|layer\.post_layer\..*)$", r"\1"),
    (r"^encoder\.node\.(?:\d+\.)*", "encoder."),
    (r"^pre_mp\..*", "pre_mp"),
    (r"^head\.mlp\.2$", "head.3"),  # LRGB's head has its first dropout in the same list
    (r"^head\.mlp\.5$", "head.6"),
    (r"^head\.dropout$", "head.0"),
)


def place(module: str, forms: tuple[tuple[str, str], ...]) -> str:
    """Return the place of a dropout, the same for an original module and ours."""
    for pattern, form in forms:
        module = re.sub(pattern, form, module)
    return module


def size(shape: list[int], num_edges: int) -> str:
    """Return what is dropped: channels of nodes, in rows or padded, or of edges."""
    return f"{shape[-1]} channels of {'edges' if len(shape) == 2 and shape[0] == num_edges else 'nodes'}"


def recorded(dropouts: list[list[Any]], num_edges: int) -> Counter[Dropout]:
    """Return how often each dropout of a record is called; attention weights have no size, for ours are never whole."""
    counts: Counter[Dropout] = Counter()
    san: Counter[str] = Counter()
    for module, kind, rate, shape in dropouts:
        if module.startswith("trf_layers."):  # functions in SAN's layer: of the attention's output, then of the FFN
            module += (".self_attn", ".ff_dropout1")[san[module]]
            san[module.rpartition(".")[0]] += 1
        counts[place(module, ORIGINAL), kind, rate, size(shape, num_edges) if kind == "dropout" else ""] += 1
    return counts


@contextmanager
def audited(model: nn.Module, monkeypatch: pytest.MonkeyPatch, num_edges: int) -> Iterator[Counter[Dropout]]:
    """Count the dropouts that are called inside; the model must be in train mode."""
    counts: Counter[Dropout] = Counter()
    active: list[str] = []
    branch = [""]  # local or attention, whichever of a layer was called last
    handles = []

    def leave(name: str) -> None:
        active.pop()
        if match := re.search(r"layers\.\d+\.(local|attention)\.\d+$", name):
            branch[0] = match[1]

    tokens = {f"{name}.dropout" for name, module in model.named_modules() if isinstance(module, GraphToken)}
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: active.append(name)))
        handles.append(module.register_forward_hook(lambda *_, name=name: leave(name)))

    def counting_dropout(original: Any) -> Any:
        def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, *inplace: bool) -> torch.Tensor:
            if training and p > 0 and active[-1] not in tokens:  # the original drops of nodes and tokens in one call
                at = place(f"{active[-1]}[{branch[0]}]", OURS)
                counts[at, "dropout", p, size(list(x.shape), num_edges)] += 1
            return original(x, p, training, *inplace)

        return dropout

    with monkeypatch.context() as patch:
        for module in (nn.functional, dropout_operator):
            patch.setattr(module, "dropout", counting_dropout(module.dropout))
        for module, name, at in (
            (full, "full_attention", 3),
            (full, "scaled_dot_product_attention", 4),
            (kmip, "sparse_attention", 5),
            (exphormer, "clamped_attention", 5),
            (score_estimator, "clamped_attention", 5),
        ):
            patch.setattr(module, name, _counting(getattr(module, name), at, counts, active))
        gated_update = gatedgcn.gated_update

        def update_edges(*args: Any) -> Any:  # with the dropout of edges inside
            edge_attr, rate = args[2], args[8]
            if rate > 0:
                at = place(f"{active[-1]}.dropout[{branch[0]}]", OURS)
                counts[at, "dropout", rate, size(list(edge_attr.shape), num_edges)] += 1
            return gated_update(*args)

        patch.setattr(gatedgcn, "gated_update", update_edges)
        pair_attention = full.pair_attention

        def biased(*args: Any, **options: Any) -> Any:
            if options["dropout"] > 0:
                counts[place(f"{active[-1]}.own", OURS), "attention", options["dropout"], ""] += 1
            return pair_attention(*args, **options)

        patch.setattr(full, "pair_attention", biased)
        multi_head = nn.functional.multi_head_attention_forward

        def multi_head_attention(*args: Any, **options: Any) -> Any:
            if options.get("training", True):
                _attention(counts, active, args[10])
            return multi_head(*args, **options)

        patch.setattr(nn.functional, "multi_head_attention_forward", multi_head_attention)
        yield counts
    for handle in handles:
        handle.remove()


def _counting(function: Any, at: int, counts: Counter[Dropout], active: list[str]) -> Any:
    def called(*args: Any, **options: Any) -> Any:
        _attention(counts, active, args[at] if len(args) > at else 0.0)
        return function(*args, **options)

    return called


def _attention(counts: Counter[Dropout], active: list[str], rate: float) -> None:
    if rate > 0:
        counts[place(active[-1], OURS), "attention", rate, ""] += 1
