"""What was computed from a tensor, kept as long as it lives unchanged: all layers share the edges of a batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.utils.weak import WeakTensorKeyDictionary

Made = TypeVar("Made")
_made = WeakTensorKeyDictionary()  # tensor -> {place of a view in it, key: (the tensor's version, what was made)}


def remembered(tensor: Tensor, key: Hashable, make: Callable[[], Made]) -> Made:
    """Return what ``make()`` returned for this tensor and key, or call it, where the tensor has changed or is new.

    Changes are seen by torch's count of them: one through numpy or ``tensor.data`` goes unnoticed. What is made must
    not hold the tensor, which would then never be freed: its alias ``tensor.detach()`` will do.

    Args:
        tensor (Tensor): to which the result belongs; views of one part of a tensor are the same.
        key (Hashable): which of its results.
        make (Callable): computes it; nothing else that it depends on may be missing in ``key``.
    """
    if is_compiling() or tensor.is_inference():  # whose changes are not counted
        return make()
    base = tensor if tensor._base is None else tensor._base  # a view is a new object each time it is taken
    kept, place = _made.setdefault(base, {}), (tensor.storage_offset(), tensor.shape, tensor.stride(), key)
    version, made = kept.get(place, (None, None))
    if version != base._version:
        with torch.inference_mode(False):  # a later training step may save it for its backward pass
            made = make()
        kept[place] = base._version, made
    return made
