"""What is remembered for a tensor: made once, again after a change, and gone with the tensor."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from graphgps_kmip.common.propagation import adjacency, unweighted
from graphgps_kmip.common.tensor_memo import remembered
from graphgps_kmip.mpnn import GAT, GCN, summed_convolutions
from graphgps_kmip.mpnn.summed_convolutions import with_own_loops


def test_a_result_is_made_once_for_each_key_and_again_after_a_change_in_place() -> None:
    tensor, calls = torch.arange(3), []

    def make() -> int:
        calls.append(int(tensor.sum()))
        return calls[-1]

    assert [remembered(tensor, "sum", make) for _ in range(2)] == [3, 3]
    assert remembered(tensor, "other", make) == 3
    assert calls == [3, 3]
    tensor += 1
    assert remembered(tensor, "sum", make) == 6
    assert remembered(tensor.clone(), "sum", make) == 6
    assert len(calls) == 4


def test_views_of_the_same_part_share_their_result_and_notice_a_change_of_the_whole() -> None:
    tensor = torch.arange(6).view(2, 3).clone()
    assert [remembered(tensor[1], "sum", lambda: int(tensor[1].sum())) for _ in range(2)] == [12, 12]
    assert remembered(tensor[0], "sum", lambda: 3) == 3
    assert remembered(tensor[1], "sum", lambda: 0) == 12
    tensor[0] += 1
    assert remembered(tensor[1], "sum", lambda: 0) == 0


def test_nothing_is_kept_of_an_inference_tensor_whose_changes_are_not_counted() -> None:
    with torch.inference_mode():
        tensor = torch.zeros(2)
        assert [remembered(tensor, "sum", lambda: float(tensor.sum())) for _ in range(2)] == [0, 0]
        tensor += 1
        assert remembered(tensor, "sum", lambda: float(tensor.sum())) == 2


@pytest.mark.parametrize("layer", [GCN, GAT])
def test_edges_that_an_evaluation_in_inference_mode_has_sorted_serve_training(
    layer: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    for numbers in (0, 2**60):  # lists of neighbours, and torch_geometric's passes over edges
        monkeypatch.setattr(summed_convolutions, "MIN_NUMBERS", numbers)
        edge_index, edge_attr = torch.tensor([[0, 1, 1], [1, 1, 2]]), torch.ones(3, 16)
        conv, x = layer(16), torch.randn(3, 16)
        with torch.inference_mode():
            expected, _ = conv(x, edge_index, edge_attr)
        out, _ = conv(x, edge_index, edge_attr)
        out.sum().backward()
        torch.testing.assert_close(out, expected.clone())


@pytest.mark.parametrize("edges", [[[0, 1], [1, 0]], [[0, 1], [0, 0]]], ids=["without loops", "with one"])
def test_edges_that_are_remembered_are_freed_with_their_tensor(edges: list[list[int]]) -> None:
    edge_index = torch.tensor(edges)
    looped, _ = with_own_loops(edge_index, None, 2)
    assert with_own_loops(edge_index, None, 2)[0] is looped
    weighted = adjacency(edge_index, 2, "mean", torch.float32)
    assert adjacency(edge_index, 2, "mean", torch.float32) is weighted
    assert adjacency(edge_index, 2, "mean", torch.float64) is not weighted
    assert unweighted(looped, 2).reversed.lists is unweighted(looped, 2).reversed.lists
    kept = [weakref.ref(one) for one in (edge_index, looped, weighted)]
    del edge_index, looped, weighted
    assert [one() for one in kept] == [None] * 3
