"""Attention analysis: distance of k-MIP from full attention, cumulative weight, out-degrees of attention graphs.

Thesis 6.7 and 6.8; k-MIP paper, appendix I.1. Scores are sorted once, and k-MIP attention at k is the sum over the
first k keys; scores are divided by sqrt(D), as in the layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from graphgps_kmip.attention.kmip import KMIPAttention
from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.context import AttentionGraph
from graphgps_kmip.ops.sparse_attention import softmax_weight

SCORES = 2**22  # held at a time: some 100 MB with their order and weights
ORDERS = ("descending", "public")  # of the keys, see `kmip_outputs`


def key_counts(max_keys: int, points: int, *further: int) -> list[int]:
    """Return numbers of keys from 1 to `max_keys`: about `points`, evenly in their logarithm, and further ones."""
    grid = {round(float(value)) for value in np.geomspace(1, max_keys, points)}
    return sorted(grid | {value for value in further if value <= max_keys})


@torch.no_grad()
def kmip_outputs(q: Tensor, k: Tensor, v: Tensor, counts: Sequence[int], order: str = "descending") -> Tensor:
    """Return what k-MIP attention gives at each number of keys; from N on, it is full attention.

    Of keys with equal scores the first ones are taken. Time is that of sorting H * N^2 numbers.

    Args:
        q: queries.
        k: keys.
        v: values.
        counts: numbers of keys, in increasing order.
        order: ``descending``: k-MIP attention. ``public``: as the public script of thesis figure 6.6, keys of smallest
            inner product, with weights divided by the sum over k + 1 of them; in float64.

    Shapes: q and k (H, N, D), v (H, N, C), counts K numbers; returns (H, K, N, C).
    """
    ends, public = _clamp_counts(counts, k), order == "public"
    if public:
        q, k, v = q.double(), k.double(), v.double()
    return torch.stack([_outputs_of_head(*head, ends, public) for head in zip(q, k, v, strict=True)])


def distance_to_full(q: Tensor, k: Tensor, v: Tensor, counts: Sequence[int], order: str = "descending") -> Tensor:
    """Return the L2 distance between the rows of k-MIP and of full attention, averaged over the N rows.

    Rows are those of one head, before the heads are joined. Arguments are those of `kmip_outputs`.

    Shapes: q and k (H, N, D), v (H, N, C), counts K numbers in increasing order; returns (H, K).
    """
    outputs = kmip_outputs(q, k, v, [*counts, k.size(1)] if counts[-1] < k.size(1) else counts, order)
    return (outputs[:, : len(counts)] - outputs[:, -1:]).norm(dim=-1).mean(-1)


@torch.no_grad()
def distance_of_samples(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    r"""Return the mean distance between rows of full attention and samples of N(0, I): the papers' reference, 4.5417.

    Its expectation, instead of one draw: for a row o and a sample x of N(0, I_C)

    .. math:: E|x - o| = \sqrt{2} \, \frac{\Gamma((C + 1) / 2)}{\Gamma(C / 2)} \, {}_1F_1(-1/2;\ C/2;\ -|o|^2 / 2)

    which is about sqrt(C + |o|^2).

    Shapes: q and k (H, N, D), v (H, N, C); returns (H,).
    """
    rows = torch.stack([_full_attention(*head) for head in zip(q, k, v, strict=True)])
    squares = rows.square().sum(-1)  # (H, N)
    half = v.size(-1) / 2
    factor = math.sqrt(2) * math.exp(math.lgamma(half + 0.5) - math.lgamma(half))
    expected = factor * scipy.special.hyp1f1(-0.5, half, -squares.double().cpu().numpy() / 2)
    return torch.from_numpy(expected).mean(-1)


@torch.no_grad()
def cumulative_weight(q: Tensor, k: Tensor, counts: Sequence[int]) -> Tensor:
    """Return the share of the full attention weight on the keys of largest score, averaged over the N queries.

    Both papers print a sum over the queries (thesis, equation 6.1; paper, equation 39); a weight of 0.5 is a mean.

    Shapes: q and k (H, N, D), counts K numbers in increasing order; returns (H, K).
    """
    ends = _clamp_counts(counts, k)
    sums = [
        sum(weight.cumsum(-1)[:, ends - 1].sum(0) for weight, _ in _rank_keys(*head)) for head in zip(q, k, strict=True)
    ]
    return torch.stack(sums) / q.size(1)


def _full_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.cat([softmax_weight(rows @ k.mT, q.size(-1)) @ v for rows in _split_queries(q, k)])


def _split_queries(q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    return q.split(max(1, SCORES // len(k)))


def _clamp_counts(counts: Sequence[int], k: Tensor) -> Tensor:
    return torch.tensor(counts, device=k.device).clamp(max=k.size(1))


def _rank_keys(q: Tensor, k: Tensor, ascending: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for R queries at a time, the full attention weights in order of scores, and their keys: (R, N) each."""
    for queries in _split_queries(q, k):
        score, index = (queries @ k.mT).sort(dim=-1, descending=not ascending, stable=True)
        yield softmax_weight(score, q.size(-1)), index


def _outputs_of_head(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, public: bool) -> Tensor:
    """Shapes: q and k (N, D), v (N, C), ends (K,); returns (K, N, C)."""
    terms = (ends + public).clamp(max=len(k))  # of the sum that divides the weights
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])  # a bag from each end to the next, of which some are empty
    parts = []
    for weight, index in _rank_keys(q, k, ascending=public):
        total = weight.cumsum(-1)[:, terms - 1, None]
        weight, index = (tensor[:, : ends[-1]].contiguous() for tensor in (weight, index))
        rows = torch.arange(len(index), device=index.device)[:, None] * index.size(1)
        bags = embedding_bag(
            index.view(-1), v, (rows + starts).view(-1), mode="sum", per_sample_weights=weight.view(-1)
        )
        sums = bags.view(len(index), len(ends), -1).cumsum(1)  # (R, K, C)
        parts.append(sums / total)
    return torch.cat(parts).transpose(0, 1)


class Heads(NamedTuple):
    """Queries, keys and values of the heads of one layer. Shapes: q and k (H, N, D), v (H, N, C)."""

    q: Tensor
    k: Tensor
    v: Tensor


def kmip_layers(model: nn.Module) -> list[KMIPAttention]:
    """Return the k-MIP attentions of a model; an `InputError` if it has none."""
    layers = [module for module in model.modules() if isinstance(module, KMIPAttention)]
    if not layers:
        raise InputError("this model has no k-MIP attention: give a run of one that has, such as GPS+kMIP")
    return layers


@torch.no_grad()
def collect_heads(model: nn.Module, batch: Any) -> list[Heads]:
    """Return the heads of the model's k-MIP layers, in order of use, for a batch; it is left in eval mode."""
    heads: list[Heads] = []

    def keep(layer: KMIPAttention, args: tuple) -> None:
        q, k, v = (
            linear(args[0]).unflatten(1, (layer.num_heads, -1)).transpose(0, 1).contiguous()  # (H, N, D)
            for linear in (layer.query, layer.key, layer.value)
        )
        heads.append(Heads(q, k, v))

    hooks = [layer.register_forward_pre_hook(keep) for layer in kmip_layers(model)]
    try:
        model.eval()(batch.clone())
    finally:
        for hook in hooks:
            hook.remove()
    return heads


def gaussian_heads(like: Heads, seed: int) -> Heads:
    """Return heads of the same shapes whose entries are drawn from N(0, 1), the same ones for the same seed."""
    draw = torch.Generator().manual_seed(seed)
    return Heads(*(torch.randn(tensor.shape, generator=draw).to(tensor) for tensor in like))


def degree_counts(graphs: list[AttentionGraph]) -> Tensor:
    """Return how many nodes, over all graphs and heads of one layer, have out-degree 0, 1, 2, ..."""
    return torch.cat([graph.out_degree().flatten() for graph in graphs]).bincount()


def by_layer(values: Tensor) -> dict[str, Tensor]:
    """Split the ``first`` layer from the ``others`` of values (G, L, ...): many of its inputs are identical."""
    return {"first": values[:, :1]} | ({"others": values[:, 1:]} if values.size(1) > 1 else {})


def spread(values: Tensor) -> dict[str, list[float]]:
    """Return ``mean``, and two population standard deviations.

    ``std`` is over graphs, layers and heads (thesis, figures 6.6 and 6.7); ``std_graphs`` over graphs, each with the
    mean over its layers and heads (k-MIP paper, figure 8).

    Shapes: values (G, L, H, K), the lists have K numbers.
    """
    values = values.double()
    alike = values.flatten(0, 2)
    of_graph = values.mean((1, 2))
    curves = {"mean": alike.mean(0), "std": alike.std(0, correction=0), "std_graphs": of_graph.std(0, correction=0)}
    return {name: [float(f"{number:.6g}") for number in curve.tolist()] for name, curve in curves.items()}


def crossing(counts: Sequence[int], curve: Sequence[float], level: float) -> float:
    """Return where an increasing curve reaches a level, linearly between points; its first point if that is above."""
    for i, value in enumerate(curve):
        if value >= level:
            if i == 0:
                return float(counts[0])
            share = (level - curve[i - 1]) / (value - curve[i - 1])
            return counts[i - 1] + share * (counts[i] - counts[i - 1])
    return float(counts[-1])  # a rounding error below 1
