"""The largest tensor that a computation makes: shows whether memory grows with N or with N^2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Largest(TorchDispatchMode):
    numel = 0

    def __torch_dispatch__(self, func: Any, _types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = (leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor))
        self.numel = max(self.numel, *(x.untyped_storage().nbytes() // x.element_size() for x in tensors), 0)
        return out


def largest_tensor(compute: Callable[[], Tensor]) -> int:
    """Return the number of elements of the largest tensor that ``compute().sum().backward()`` allocates."""
    with _Largest() as mode:
        compute().sum().backward()
    return mode.numel
