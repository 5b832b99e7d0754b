"""Arrays, sparse matrices and tensors of pickled data, each made from checked parts only.

A pickle names functions of numpy, scipy and torch and gives them arguments. Called with arguments of a file, some of
these make arrays of chosen pointers, or views beyond their memory. The functions here take their place: they check
every argument, and raise `UnsafeFile` at what no writer of data makes.
"""

from __future__ import annotations

import functools
import math
import re
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor, nn

from graphgps_kmip.errors import UnsafeFile

# Booleans, numbers, bytes, text and objects; no fields, no raw memory, no times.
DTYPE = re.compile(
    r"[<>|=]?(?:[?bBhHiIlLqQefdgFDG]|b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)|[SUa]\d{1,9}|O[48]?)"
)
KINDS = "biufcSUO?"
VIEWS = 2**30  # bytes: a tensor may be larger than what is stored of it (`expand`), but not beyond this
Raw = bytes | bytearray | str


def _check(condition: bool, what: str) -> None:
    if not condition:
        raise UnsafeFile(f"it asks for {what}, which no data needs")


def is_count(value: Any) -> bool:
    """Tell whether a value is an int >= 0."""
    return type(value) is int and value >= 0


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple | torch.Size) and len(value) <= 32 and all(map(is_count, value))


def _content(raw: Raw) -> bytes:
    """Return bytes, which pickles of Python 2 hold as text."""
    return raw.encode("latin1") if isinstance(raw, str) else bytes(raw)


def _is_plain(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in KINDS and dtype.fields is None and dtype.subdtype is None


def dtype(code: str | bytes, align: bool = False, copy: bool = True) -> np.dtype:  # noqa: ARG001 (numpy's signature)
    """Return ``numpy.dtype(code)`` of plain numbers, text or objects."""
    code = code.decode("latin1") if isinstance(code, bytes) else code
    _check(isinstance(code, str) and bool(DTYPE.fullmatch(code)), f"the dtype {str(code)[:40]!r}")
    return np.dtype("O" if code.lstrip("<>|=").startswith("O") else code, False, True)  # a copy: its state will be set


def set_dtype(value: np.dtype, state: Any) -> None:
    """Give a dtype its byte order, all that the state of a plain one says beyond its code."""
    ok = isinstance(state, tuple) and 7 <= len(state) <= 9 and state[2:5] == (None, None, None)
    ok = ok and all(type(one) is int for one in (state[0], *state[5:8])) and (len(state) < 9 or state[8] in (None, {}))
    sizes = (state[5] in (-1, value.itemsize), state[6] in (-1, 1, value.alignment)) if ok else (False,)
    _check(ok and all(sizes), "a dtype with fields or sizes of its own")
    order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
    _check(order in ("<", ">", "=", "|"), f"the byte order {str(order)[:10]!r}")
    if value.kind in "SU":
        value.__setstate__((3, order, None, None, None, value.itemsize, value.alignment, value.flags))
    elif order != "|" and value.kind != "O":
        value.__setstate__((3, order, None, None, None, -1, -1, 0))


def array(kind: type, shape: tuple[int, ...], code: Any) -> np.ndarray:  # noqa: ARG001 (numpy's signature)
    """Return the empty array that `set_array` fills."""
    _check(kind is np.ndarray and shape == (0,), "an array of another kind or shape")
    return np.empty((0,), np.int8)


def set_array(value: np.ndarray, state: Any) -> None:
    """Fill an array made by `array` from (version, shape, dtype, column-major, content)."""
    state = (1, *state) if isinstance(state, tuple) and len(state) == 4 else state  # the oldest have no version
    _check(isinstance(state, tuple) and len(state) == 5 and isinstance(value, np.ndarray), "an array without a state")
    _, shape, kind, columns, content = state
    _check(value.shape == (0,) and value.flags.owndata, "an array that is filled twice")
    _check(_is_plain(kind) and _is_shape(shape), "an array of a dtype or a shape that is none")
    count = math.prod(shape)
    if kind.hasobject:
        _check(type(content) is list and len(content) == count, "an array of objects that it does not hold")
    else:
        _check(isinstance(content, bytes | bytearray | str), "an array whose content is no bytes")
        content = _content(content)
        _check(len(content) == count * kind.itemsize, "an array larger or smaller than its content")
    np.ndarray.__setstate__(value, (1, shape, kind, bool(columns), content))


def scalar(kind: np.dtype, content: Raw = b"") -> Any:
    """Return one number of an array's type."""
    _check(_is_plain(kind) and not kind.hasobject and isinstance(content, bytes | bytearray | str), "a scalar of none")
    content = _content(content)
    _check(len(content) == kind.itemsize > 0, "a scalar of another size than its content")
    return np.frombuffer(content, kind)[0]


def from_buffer(content: bytes, kind: np.dtype, shape: tuple[int, ...], order: str) -> np.ndarray:
    """Return an array as protocol 5 holds it."""
    _check(_is_plain(kind) and not kind.hasobject and _is_shape(shape), "an array of a dtype or a shape that is none")
    _check(isinstance(content, bytes | bytearray) and order in ("C", "F", "A"), "an array whose content is no bytes")
    _check(len(content) == math.prod(shape) * kind.itemsize, "an array larger or smaller than its content")
    return np.frombuffer(content, kind).reshape(shape, order="C" if order == "A" else order).copy(order)


def set_sparse(value: Any, state: Any) -> None:
    """Fill an empty sparse matrix of scipy, whose own state may name entries beyond its memory."""
    _check(type(state) is dict and not vars(value), "a sparse matrix without a state")
    shape = state.get("_shape", state.get("shape"))
    shape = tuple(int(one) for one in shape) if isinstance(shape, tuple) and len(shape) == 2 else None
    if "coords" in state:
        coordinates = state["coords"]
    else:
        coordinates = [state.get(key) for key in (("row", "col") if "row" in state else ("indices", "indptr"))]
    parts = [state.get("data"), *(coordinates if isinstance(coordinates, list | tuple) else [])]
    arrays = len(parts) == 3 and all(isinstance(one, np.ndarray) and one.ndim == 1 for one in parts)
    kinds = arrays and parts[0].dtype.kind in "biufc" and all(one.dtype.kind in "iu" for one in parts[1:])
    _check(kinds and _is_shape(shape), "a sparse matrix of something else than arrays")
    try:
        entries = tuple(parts[1:]) if value.format == "coo" else None
        made = type(value)((parts[0], entries) if entries else tuple(parts), shape=shape)
        if entries is None:
            made.check_format(full_check=True)
    except (ValueError, IndexError, OverflowError) as error:
        raise UnsafeFile(f"it asks for a sparse matrix with entries that are not there ({error})") from error
    vars(value).update(vars(made))


def tensor(storage: Any, offset: int, size: Any, stride: Any, *more: Any) -> Tensor:
    """Return a tensor that is a view of a storage, inside its bounds; ``more`` is requires_grad, hooks, metadata."""
    _check(isinstance(storage, torch.storage.TypedStorage | torch.UntypedStorage), "a tensor without a storage")
    _check(is_count(offset) and _is_shape(size) and _is_shape(stride) and len(size) == len(stride), "a strange tensor")
    end = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1 if all(size) else offset
    # The public method of a typed storage warns that such storages will go, in the log of every user.
    held = storage._size() if isinstance(storage, torch.storage.TypedStorage) else storage.size()
    _check(end <= held, "a tensor beyond its storage")
    made = torch._utils._rebuild_tensor(storage, offset, tuple(size), tuple(stride))
    repeated = made.numel() * made.element_size() > max(VIEWS, made.untyped_storage().nbytes())
    _check(not repeated, "a tensor that repeats the numbers of its storage to gigabytes")
    return made.requires_grad_(bool(more and more[0] is True and made.is_floating_point()))


def parameter(data: Any, requires_grad: Any, hooks: Any = None) -> nn.Parameter:  # noqa: ARG001 (torch's signature)
    """Return a parameter of a tensor."""
    _check(type(data) is Tensor, "a parameter of something else than a tensor")
    return nn.Parameter(data, bool(requires_grad) and data.is_floating_point())


@functools.cache
def sparse_classes() -> dict[str, type]:
    """Return scipy's classes of sparse matrices that a pickle may name."""
    names = ("csr_matrix", "csc_matrix", "coo_matrix", "csr_array", "csc_array", "coo_array")
    return {name: getattr(scipy.sparse, name) for name in names}
