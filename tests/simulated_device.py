"""Simulated device: a device in Python that computes on the CPU and reports where the host would wait for a GPU.

Its tensors wrap tensors on the CPU, and its type is neither "cpu" nor "cuda", so that layers take the path of a device
without kernels of its own. A process that has called `register` has this device to its end.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_any, tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from graphgps_kmip.ops.operators import implementations

NAME = "simulated"
ROOT = Path(__file__).resolve().parents[1]
aten = torch.ops.aten
# Operators whose result has a size, or is a number, that the host needs; CUDA's kernels of these read it back.
WAITING = frozenset(
    getattr(aten, name).default
    for name in """_local_scalar_dense nonzero masked_select bincount _unique _unique2 unique_dim unique_consecutive
    unique_dim_consecutive equal isin""".split()
    if hasattr(getattr(aten, name), "default")
) | {aten.isin.Tensor_Tensor}
Waits = Counter[tuple[str, str]]
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


_kept: list[torch.library.Library] = []  # a library that is collected takes its kernels back
_counting: list[Waits] = []  # of each open block of `counting`


class _Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]  # autocast asks even where it is turned off


@functools.cache
def register() -> torch.device:
    """Make the device known to torch, in this process."""
    _setup_privateuseone_for_python_backend(NAME, _Backend())
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda func, *args, **kwargs: _run(func, args, kwargs), "PrivateUse1")
    _kept.append(library)
    return torch.device(NAME, 0)


@contextlib.contextmanager
def counting() -> Iterator[Waits]:
    """Count what the host would wait for inside the block, by (operator, place in the source)."""
    _counting.append(Counter())
    try:
        with mock.patch("torch.tensor", _tensor), _BeforeTheBackend():
            yield _counting[-1]
    finally:
        _counting.pop()


class _BeforeTheBackend(TorchDispatchMode):
    """Sees whole operators, such as ``arange``, of which a backend sees parts that resize their arguments."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:  # noqa: ARG002
        return _run(func, args, kwargs or {})


_torch_tensor = torch.tensor


def _tensor(data: Any, *, device: torch.device | None = None, **kwargs: Any) -> Tensor:
    """``torch.tensor``, by a copy that can be seen: it turns off the dispatch to devices in Python."""
    made = _torch_tensor(data, **kwargs)
    return made if device is None else made.to(device)


class SimulatedTensor(Tensor):
    """A tensor on the simulated device; `inner` has its values."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> SimulatedTensor:
        return Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )  # fmt: skip

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def tolist(self) -> list[Any]:
        """Return the values, by way of the host as torch does it for every device."""
        return self.cpu().tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()

    def new_tensor(self, data: Any, **kwargs: Any) -> Tensor:
        return _tensor(data, **{"dtype": self.dtype, "device": self.device} | kwargs)

    def __repr__(self) -> str:
        return f"Simulated({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:  # noqa: ARG003
        return _run(func, args, kwargs or {})


def _run(func: Any, args: tuple, kwargs: Mapping[str, Any]) -> Any:
    if func in implementations:
        return implementations[func](*args, **kwargs)
    if _counting and _waits(func, args, kwargs):
        _counting[-1][str(func).removeprefix("aten.").removesuffix(".default"), place()] += 1
    on_device, target = _is_on_device((args, kwargs)), kwargs.get("device")
    moved = target is not None and torch.device(target).type == NAME
    if not on_device and not moved:
        return func(*args, **kwargs)
    inner_args, inner_kwargs = tree_map_only(SimulatedTensor, lambda tensor: tensor.inner, (args, kwargs))
    out = func(*inner_args, **(inner_kwargs | {"device": torch.device("cpu")} if moved else inner_kwargs))
    if target is not None and not moved:
        return out  # was moved to the CPU
    out = tree_map_only(Tensor, SimulatedTensor, out)
    return return_and_correct_aliasing(func, args, kwargs, out) if on_device else out


def _waits(func: Any, args: tuple, kwargs: Mapping[str, Any]) -> bool:
    on_device = _is_on_device((args, kwargs))
    if func is aten._to_copy.default:
        crosses = kwargs.get("device") is not None and (torch.device(kwargs["device"]).type == NAME) != on_device
        return crosses and not kwargs.get("non_blocking", False)
    if func is aten.copy_.default:
        crosses = isinstance(args[0], SimulatedTensor) != isinstance(args[1], SimulatedTensor)
        return crosses and not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    if not on_device:
        return False
    if func in INDEXING:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return func in WAITING or (func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None)


def _is_on_device(values: Any) -> bool:
    return tree_any(lambda value: isinstance(value, SimulatedTensor), values)


def place() -> str:
    """Return file, line and code of the innermost call in this package or in torch_geometric."""
    for frame in reversed(traceback.extract_stack()):
        file = Path(frame.filename)
        if file.is_relative_to(ROOT / "graphgps_kmip") or "torch_geometric" in file.parts:
            name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else Path(*file.parts[-3:])
            return f"{name}:{frame.lineno} {frame.line}"
    return "elsewhere"
