"""Host copies of tensors: found by the tensor itself, and never out of date."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphgps_kmip.common import host_copies
from graphgps_kmip.common.host_copies import host_copy, known_copy, on_device, remember, remember_batch, rows_of

META = torch.device("meta")  # a device whose values nobody can read: what is found is the copy


def known(values: list[int]) -> tuple[Tensor, Tensor]:
    copy = torch.tensor(values)
    return remember(torch.empty_like(copy, device=META), copy), copy


def test_a_tensor_on_the_cpu_is_its_own_copy() -> None:
    tensor = torch.arange(3)
    assert host_copy(tensor) is tensor
    assert remember(tensor, torch.zeros(3)) is tensor
    assert known_copy(tensor) is tensor


def test_a_copy_is_found_by_the_tensor_and_not_by_others_of_the_same_size() -> None:
    tensor, copy = known([0, 4, 9])
    assert host_copy(tensor) is copy
    assert known_copy(torch.empty_like(tensor)) is None
    assert known_copy(tensor.diff()) is None


def test_a_tensor_that_is_changed_in_place_has_no_copy_any_more() -> None:
    tensor, copy = known([0, 4, 9])
    tensor[1:].add_(1)  # by a view
    assert known_copy(tensor) is None
    remember(tensor, copy + 1)
    assert known_copy(tensor).tolist() == [1, 5, 10]


def test_copies_live_as_long_as_their_tensors() -> None:
    before = len(host_copies._copies)
    tensors = [known([1])[0] for _ in range(3)]
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
    assert rows_of(mask).tolist() == [0, 2]
    there = remember(torch.empty_like(mask, device=META), mask)
    assert host_copy(rows_of(there)).tolist() == [0, 2]
