"""Host copies of tensors on a device: sizes that the host knows already are read without waiting for the device.

To read a number from a GPU, the host waits for all work queued before. Boundaries, labels and masks of a batch come
from the host, so `remember_batch` keeps them, and `host_copy` finds them by tensor and version.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.utils.weak import WeakTensorKeyDictionary

Made = TypeVar("Made")
_copies = WeakTensorKeyDictionary()  # tensor on a device -> (its version, tensor on the CPU)
_results = WeakTensorKeyDictionary()  # tensor -> {place of a view in it, key: (the tensor's version, result)}


def remember(tensor: Tensor, copy: Tensor) -> Tensor:
    """Note that a copy on the CPU, which must not change any more, has the values of a tensor; return the tensor."""
    if tensor.device.type != "cpu" and not tensor.is_inference():  # whose changes are not counted
        _copies[tensor] = tensor._version, copy
    return tensor


def remember_batch(moved: Any, loaded: Any) -> None:
    """Note the tensors that a batch had on the CPU, as loaded, before it was moved to a device."""
    for key in loaded.keys():  # noqa: SIM118 (a PyG batch iterates over pairs)
        before, after = loaded[key], moved[key]
        if isinstance(before, Tensor) and before.device.type == "cpu":
            remember(after, before)


def host_copy(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU with the same values: itself, the copy that is noted, or one made and noted now.

    Only the last makes the host wait. The result must not be changed in place.
    """
    if tensor.device.type == "cpu":
        return tensor
    if (copy := find_copy(tensor)) is not None:
        return copy
    copy = tensor.detach().cpu()
    remember(tensor, copy)
    return copy


def find_copy(tensor: Tensor) -> Tensor | None:
    """Return what `host_copy` returns if that makes nobody wait, else None."""
    if tensor.device.type == "cpu":
        return tensor
    version, copy = _copies.get(tensor, (None, None))
    return copy if version is not None and version == tensor._version else None


def on_device(values: Sequence[Any] | Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Make a tensor, with a host copy, of numbers that the host knows; unlike ``torch.tensor`` it does not wait."""
    copy = values if isinstance(values, Tensor) else torch.tensor(values, dtype=dtype)
    return remember(copy.to(device, non_blocking=True), copy)


def single_graph(num_nodes: int, device: torch.device) -> Tensor:
    """Return the boundaries of one graph: 0 and its number of nodes, (2,)."""
    return on_device([0, num_nodes], device)


def counts(index: Tensor, size: int) -> Tensor:
    """Return how often each number below ``size`` occurs, (size,) int64; ``torch.bincount`` makes the host wait."""
    if index.device.type == "cpu":
        return torch.bincount(index, minlength=size)
    return index.new_zeros(size, dtype=torch.int64).index_add_(0, index, torch.ones_like(index, dtype=torch.int64))


def find_rows(mask: Tensor) -> Tensor:
    """Return the rows where a mask (N,) is True; as an index it does not wait where the host knows the mask."""
    host_mask = find_copy(mask)
    return mask.nonzero().squeeze(1) if host_mask is None else on_device(host_mask.nonzero().squeeze(1), mask.device)


def compute_once(tensor: Tensor, key: Hashable, make: Callable[[], Made]) -> Made:
    """Return what ``make()`` returned for this tensor and key, or call it, where the tensor has changed or is new.

    So all layers share the sorted edges of a batch. A change through numpy or ``tensor.data`` goes unnoticed. What is
    made depends on tensor and key alone, and does not hold the tensor (but ``tensor.detach()``): it is not freed then.
    """
    if is_compiling() or tensor.is_inference():  # whose changes are not counted
        return make()
    base = tensor if tensor._base is None else tensor._base  # a view is a new object each time it is taken
    results, place = _results.setdefault(base, {}), (tensor.storage_offset(), tensor.shape, tensor.stride(), key)
    version, value = results.get(place, (None, None))
    if version != base._version:
        with torch.inference_mode(False):  # a later training step may save it for its backward pass
            value = make()
        results[place] = base._version, value
    return value
