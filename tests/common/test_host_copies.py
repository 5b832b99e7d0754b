"""What is known of a tensor: found by the tensor itself, never out of date, and gone with it."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.mpnn import GAT, GCN, message_passing
from graphgps_kmip.mpnn.message_passing import replace_self_loops
from graphgps_kmip.ops import host_copies
from graphgps_kmip.ops.host_copies import (
    compute_once,
    find_copy,
    find_rows,
    host_copy,
    on_device,
    remember,
    remember_batch,
)
from graphgps_kmip.ops.propagation import adjacency, unweighted

META = torch.device("meta")  # a device whose values nobody can read: what is found is the copy


def remembered_tensor(values: list[int]) -> tuple[Tensor, Tensor]:
    copy = torch.tensor(values)
    return remember(torch.empty_like(copy, device=META), copy), copy


def test_a_tensor_on_the_cpu_is_its_own_copy() -> None:
    tensor = torch.arange(3)
    assert host_copy(tensor) is tensor
    assert remember(tensor, torch.zeros(3)) is tensor
    assert find_copy(tensor) is tensor


def test_a_copy_is_found_by_the_tensor_and_not_by_others_of_the_same_size() -> None:
    tensor, copy = remembered_tensor([0, 4, 9])
    assert host_copy(tensor) is copy
    assert find_copy(torch.empty_like(tensor)) is None
    assert find_copy(tensor.diff()) is None


def test_a_tensor_that_is_changed_in_place_has_no_copy_any_more() -> None:
    tensor, copy = remembered_tensor([0, 4, 9])
    tensor[1:].add_(1)  # by a view
    assert find_copy(tensor) is None
    remember(tensor, copy + 1)
    assert find_copy(tensor).tolist() == [1, 5, 10]


def test_copies_live_as_long_as_their_tensors() -> None:
    before = len(host_copies._copies)
    tensors = [remembered_tensor([1])[0] for _ in range(3)]
    assert len(host_copies._copies) == before + 3
    del tensors
    assert len(host_copies._copies) == before


def test_a_batch_that_was_moved_has_the_copies_of_the_batch_that_was_loaded() -> None:
    graphs = [Data(x=torch.randn(n, 2), y=torch.tensor([n]), edge_index=torch.zeros(2, n, dtype=torch.long))
              for n in (3, 5)]  # fmt: skip
    loaded = Batch.from_data_list(graphs)
    moved = loaded.clone().to(META)
    remember_batch(moved, loaded)
    for key in ("ptr", "y", "edge_index", "batch"):
        assert host_copy(moved[key]) is loaded[key]


def test_a_tensor_made_of_numbers_has_a_copy_on_any_device() -> None:
    made = on_device([0, 7], META)
    assert made.device.type == "meta"
    assert host_copy(made).tolist() == [0, 7]


def test_rows_of_a_mask_are_those_where_it_is_true() -> None:
    mask = torch.tensor([True, False, True])
    assert find_rows(mask).tolist() == [0, 2]
    there = remember(torch.empty_like(mask, device=META), mask)
    assert host_copy(find_rows(there)).tolist() == [0, 2]


def test_a_result_is_made_once_for_each_key_and_again_after_a_change_in_place() -> None:
    tensor, calls = torch.arange(3), []

    def make() -> int:
        calls.append(int(tensor.sum()))
        return calls[-1]

    assert [compute_once(tensor, "sum", make) for _ in range(2)] == [3, 3]
    assert compute_once(tensor, "other", make) == 3
    assert calls == [3, 3]
    tensor += 1
    assert compute_once(tensor, "sum", make) == 6
    assert compute_once(tensor.clone(), "sum", make) == 6
    assert len(calls) == 4


def test_views_of_the_same_part_share_their_result_and_notice_a_change_of_the_whole() -> None:
    tensor = torch.arange(6).view(2, 3).clone()
    assert [compute_once(tensor[1], "sum", lambda: int(tensor[1].sum())) for _ in range(2)] == [12, 12]
    assert compute_once(tensor[0], "sum", lambda: 3) == 3
    assert compute_once(tensor[1], "sum", lambda: 0) == 12
    tensor[0] += 1
    assert compute_once(tensor[1], "sum", lambda: 0) == 0


def test_nothing_is_kept_of_an_inference_tensor_whose_changes_are_not_counted() -> None:
    with torch.inference_mode():
        tensor = torch.zeros(2)
        assert [compute_once(tensor, "sum", lambda: float(tensor.sum())) for _ in range(2)] == [0, 0]
        tensor += 1
        assert compute_once(tensor, "sum", lambda: float(tensor.sum())) == 2


@pytest.mark.parametrize("layer", [GCN, GAT])
def test_edges_that_an_evaluation_in_inference_mode_has_sorted_serve_training(
    layer: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    for numbers in (0, 2**60):  # lists of neighbours, and torch_geometric's passes over edges
        monkeypatch.setattr(message_passing, "MIN_NUMBERS", numbers)
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
    looped, _ = replace_self_loops(edge_index, None, 2)
    assert replace_self_loops(edge_index, None, 2)[0] is looped
    weighted = adjacency(edge_index, 2, "mean", torch.float32)
    assert adjacency(edge_index, 2, "mean", torch.float32) is weighted
    assert adjacency(edge_index, 2, "mean", torch.float64) is not weighted
    assert unweighted(looped, 2).reversed.lists is unweighted(looped, 2).reversed.lists
    references = [weakref.ref(value) for value in (edge_index, looped, weighted)]
    del edge_index, looped, weighted
    assert [reference() for reference in references] == [None] * 3
