"""What is taken from the layers of a model is what they attend with; means and spreads of curves, by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from run.analyse import (
    by_layer,
    collect_heads,
    crossing,
    degree_counts,
    kmip_layers,
    kmip_outputs,
    spread,
)
from torch import Tensor, nn

from graphgps_kmip.attention import AttentionGraph, FullAttention, GraphContext
from graphgps_kmip.attention.kmip import build_kmip

SIZES = [12, 3, 1]


class Batch(SimpleNamespace):
    def clone(self) -> Batch:
        return Batch(**vars(self))


class Stack(nn.Module):
    """Two attention layers, the second with less keys; keeps what each gives."""

    def __init__(self, **options: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(build_kmip(8, 2, 0.5, k=k, **options) for k in (5, 2))
        self.outputs: list[Tensor] = []

    def forward(self, batch: Batch) -> Tensor:
        batch.x, self.outputs = batch.x, []
        for layer in self.layers:
            batch.x = layer(batch.x, batch.context)
            self.outputs.append(batch.x)
        return batch.x


def batch_of(sizes: list[int]) -> Batch:
    graph = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    x = torch.randn(sum(sizes), 8, dtype=torch.float64)
    return Batch(x=x, context=GraphContext.of(graph, x))


@pytest.mark.parametrize("nodes", SIZES)
@pytest.mark.parametrize("options", [{}, {"dim_kq": 3}, {"k_start": 9}])
def test_at_the_layers_own_k_the_output_is_that_of_the_layer(nodes: int, options: dict[str, int]) -> None:
    model, batch = Stack(**options).double(), batch_of([nodes])
    batch.context = replace(batch.context, progress=1.0)  # as of a trained model: k has fallen to its end
    collected = collect_heads(model, batch)
    assert len(collected) == 2
    for heads, layer, output in zip(collected, model.layers, model.outputs, strict=True):
        outputs = kmip_outputs(heads.q, heads.k, heads.v, [layer.k])[:, 0]  # (H, N, C)
        torch.testing.assert_close(outputs.transpose(0, 1).flatten(1), output)


def test_the_model_is_run_once_in_eval_mode_on_a_copy_and_its_hooks_are_taken_away() -> None:
    model, batch = Stack().double().train(), batch_of(SIZES)
    before = batch.x
    collected = collect_heads(model, batch)
    assert batch.x is before
    assert [heads.q.shape for heads in collected] == [(2, 16, 4)] * 2
    assert not model.training
    model(batch_of([3]))
    assert len(collected) == 2


def test_a_model_without_kmip_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="no k-MIP attention"):
        kmip_layers(nn.Sequential(FullAttention(8, 2)))


def test_out_degrees_of_a_layer_are_counted_over_graphs_and_heads() -> None:
    first = torch.tensor([[[0, 1], [0, 2], [0, -1]], [[1, -1], [1, -1], [1, -1]]])  # degrees 3 1 1, and 0 3 0
    second = torch.tensor([[[0, -1]], [[0, -1]]])  # 1, and 1
    graphs = [AttentionGraph(index, (index >= 0).float()) for index in (first, second)]
    assert degree_counts(graphs).tolist() == [2, 4, 0, 2]


def test_the_mean_and_both_spreads_are_those_of_small_numbers() -> None:
    values = torch.tensor([[[[1.0], [3.0]]], [[[5.0], [7.0]]]])  # two graphs, one layer, two heads, one k
    assert spread(values) == {"mean": [4.0], "std": [pytest.approx(5**0.5, rel=1e-5)], "std_graphs": [2.0]}


def test_the_first_layer_stands_apart_from_the_others_if_there_are_any() -> None:
    values = torch.arange(6.0).view(2, 3, 1, 1)
    parts = by_layer(values)
    assert {name: part.flatten().tolist() for name, part in parts.items()} == {"first": [0, 3], "others": [1, 2, 4, 5]}
    assert list(by_layer(values[:, :1])) == ["first"]


@pytest.mark.parametrize(("level", "expected"), [(0.5, 6.0), (0.4, 4.0), (1.0, 20.0), (1.1, 20.0), (0.1, 1.0)])
def test_a_level_is_reached_linearly_between_points_or_at_the_end(level: float, expected: float) -> None:
    assert crossing([1, 4, 8, 20], [0.2, 0.4, 0.6, 1.0], level) == pytest.approx(expected)
