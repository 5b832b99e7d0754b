"""Safe reading of pickles, NumPy arrays of objects and files of torch.save: data is built, no code is run.

Python's reader of pickles and torch's of weights look names up in `NAMES`, whose entries check their arguments: numpy,
scipy and torch believe a file's shapes, offsets and pointers, and crash.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import re
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import EdgeStorage, GlobalStorage, NodeStorage

from graphgps_kmip.common.torch_files import UnreadableFile, allowing, asked_for, check_archive, reason
from graphgps_kmip.errors import UnsafeFile, is_out_of_memory

# Booleans, numbers, bytes, text and objects; no fields, no raw memory, no times.
DTYPE = re.compile(
    r"[<>|=]?(?:[?bBhHiIlLqQefdgFDG]|b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)|[SUa]\d{1,9}|O[48]?)"
)
FACTORIES = (None, list, dict, set, int)  # what a defaultdict may start with


def _check(condition: Any, what: str) -> None:
    if not condition:
        raise UnsafeFile(f"it asks for {what}, which no data needs")


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple | torch.Size) and all(type(n) is int and n >= 0 for n in value) and len(value) <= 32


class _Fixed:
    """What a file names or makes: without attributes that the file could set, as it could those of a function."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise UnsafeFile("it sets the state of a function or class, which no data needs")


class _Call(_Fixed):
    __slots__ = ("make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make

    def __call__(self, *args: Any) -> Any:
        return self.make(*args)


NDARRAY = _Call(lambda *_: _check(False, "a call of ndarray"))


class _DType(_Fixed):
    """A dtype of plain numbers, text or objects, of which the state may change the byte order only."""

    __slots__ = ("copied", "value")

    def __init__(self, code: str | bytes, align: bool = False, copy: bool = False) -> None:  # noqa: ARG002 (numpy's)
        code = code.decode("latin1") if isinstance(code, bytes) else code
        _check(isinstance(code, str) and DTYPE.fullmatch(code), f"the dtype {str(code)[:40]!r}")
        self.copied = copy in (1, True)  # else numpy would change the dtype that all arrays share
        self.value = np.dtype("O" if code.lstrip("<>|=").startswith("O") else code)

    def __setstate__(self, state: Any) -> None:
        value, what = self.value, "a dtype with fields, sizes or a byte order of its own"
        _check(self.copied and type(state) is tuple and 7 <= len(state) <= 9, what)
        order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        sizes = state[5] in (-1, value.itemsize) and state[6] in (-1, 1, value.alignment)
        flags = state[7:8] in ((), (value.flags,)) and state[8:] in ((), (None,), ({},))
        _check(state[2:5] == (None,) * 3 and sizes and flags and order in ("<", ">", "=", "|"), what)
        self.value = value.newbyteorder(order)


class _Array(np.ndarray):
    """An array that takes a state (version, shape, dtype, column-major, content) whose parts fit each other."""

    def __setstate__(self, state: Any) -> None:
        state = (1, *state) if isinstance(state, tuple) and len(state) == 4 else state  # the oldest have no version
        _check(isinstance(state, tuple) and len(state) == 5 and self.shape == (0,), "an array with another state")
        _, shape, dtype, columns, content = state
        _check(type(dtype) is _DType and _is_shape(shape), "an array of a dtype or a shape that is none")
        content = content.encode("latin1") if isinstance(content, str) else content  # of Python 2
        dtype = dtype.value
        _check(type(content) is (list if dtype.hasobject else bytes), "an array with another kind of content")
        size = math.prod(shape) * (1 if dtype.hasobject else dtype.itemsize)
        _check(len(content) == size, "an array larger or smaller than its content")
        super().__setstate__((1, tuple(shape), dtype, bool(columns), content))


def _array(kind: Any, shape: Any, _code: Any) -> _Array:
    _check(kind is NDARRAY and shape == (0,), "an array of another kind or shape")
    return np.ndarray.__new__(_Array, (0,), np.int8)


def _array_from_buffer(content: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    _check(isinstance(content, bytes | bytearray) and order in ("C", "F", "A"), "an array whose content is no bytes")
    array = _array(NDARRAY, (0,), None)
    array.__setstate__((1, shape, dtype, order == "F", bytes(content)))
    return array.astype(dtype.value, copy=False)  # of the same byte order


def _scalar(dtype: Any, content: Any = b"") -> Any:
    array = _array(NDARRAY, (0,), None)
    array.__setstate__((1, (1,), dtype, False, content))
    _check(not array.dtype.hasobject and array.itemsize, "a scalar of an object")
    return array.view(np.ndarray)[0]


def _encode_latin1(content: Any = b"", encoding: Any = "latin1") -> bytes:
    _check(content == b"" or (isinstance(content, str) and encoding in ("latin1", "latin-1")), "bytes of something")
    return content.encode("latin1") if isinstance(content, str) else b""


def _default_dict(factory: Any = None) -> defaultdict:
    _check(any(factory is kind for kind in FACTORIES), "a defaultdict of something else than plain containers")
    return defaultdict(factory)


class _Storage(_Fixed):
    __slots__ = ("size",)

    def __init__(self, content: Any = None) -> None:
        read = load_torch(io.BytesIO(content)) if type(content) is bytes else None
        _check(isinstance(read, torch.storage.TypedStorage | torch.UntypedStorage), "a tensor without a storage")
        # The public method of a typed storage warns that such storages will go, in the log of every user.
        self.size = read._size() if isinstance(read, torch.storage.TypedStorage) else read.size()


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> _Fixed:
    """Check that a tensor is inside its storage; it is not made."""
    _check(type(storage) is _Storage and _is_shape((offset,)) and _is_shape(size) and _is_shape(stride), "a tensor")
    end = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1 if all(size) else offset
    _check(end <= storage.size, "a tensor beyond its storage")
    return _Fixed()


class _Sparse(_Fixed):
    """A sparse matrix of scipy, in which all indices must be those of its entries; it is not made."""

    __slots__ = ()
    major: int | None = None  # the dimension that is compressed; None for coordinates

    def __setstate__(self, state: Any) -> None:
        _check(type(state) is dict, "a sparse matrix without a state")
        shape = tuple(map(int, state.get("_shape", state.get("shape"))))
        names = ("row", "col") if self.major is None else ("indices", "indptr")
        data, *index = (state.get("data"), *(state["coords"] if "coords" in state else map(state.get, names)))
        arrays = all(isinstance(part, _Array) and part.ndim == 1 for part in (data, *index)) and len(index) == 2
        kinds = arrays and data.dtype.kind in "biufc" and all(part.dtype.kind in "iu" for part in index)
        _check(kinds and _is_shape(shape) and len(shape) == 2, "a sparse matrix of something else than arrays")
        if self.major is not None:
            indices, bounds = index
            rising = len(bounds) == shape[self.major] + 1 and bounds[0] == 0 and bool((bounds[1:] >= bounds[:-1]).all())
            _check(rising and bounds[-1] == len(indices), "a sparse matrix with entries that are not there")
            shape, index = (shape[1 - self.major],), [indices]
        for part, size in zip(index, shape, strict=True):
            inside = len(part) == len(data) and not ((part < 0) | (part >= size)).any()
            _check(inside, "a sparse matrix with entries that are not there")


def _reconstruct(cls: Any, base: Any, state: Any) -> _Sparse:
    allowed = base is object and state is None and any(cls is kind for kind in SPARSE.values())
    _check(allowed, "an object of a class on top of another one")
    return cls()


FORMATS = {"csr": 0, "csc": 1, "coo": None}
SPARSE: dict[tuple[str, str], type] = {
    ("scipy.sparse", f"{name}_{kind}"): type(name, (_Sparse,), {"__slots__": (), "major": major})
    for name, major in FORMATS.items()
    for kind in ("matrix", "array")
}
MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
BUILTINS = ("builtins", "__builtin__")
ARRAYS = {
    ("numpy", "ndarray"): NDARRAY,
    ("numpy", "dtype"): _DType,
    **{(module, "_reconstruct"): _Call(_array) for module in MULTIARRAY},
    **{(module, "scalar"): _Call(_scalar) for module in MULTIARRAY},
    **{(module, "bytes"): _Call(_encode_latin1) for module in BUILTINS},  # of an array without numbers
}
NAMES: dict[tuple[str, str], Any] = {
    **ARRAYS,
    **SPARSE,
    **{(f"numpy.{core}.numeric", "_frombuffer"): _Call(_array_from_buffer) for core in ("core", "_core")},
    **{("torch._utils", f"_rebuild_tensor{version}"): _Call(_tensor) for version in ("", "_v2")},
    ("torch.storage", "_load_from_bytes"): _Storage,
    ("collections", "OrderedDict"): _Call(OrderedDict),
    ("collections", "defaultdict"): _Call(_default_dict),
    **{(module, "_reconstructor"): _Call(_reconstruct) for module in ("copyreg", "copy_reg")},
    ("_codecs", "encode"): _Call(_encode_latin1),
    **{(module, kind.__name__): kind for module in BUILTINS for kind in (object, *FACTORIES[1:], frozenset)},
}


class _SafeUnpickler(pickle.Unpickler):
    """Python's reader of pickles, in which names mean what `NAMES` says."""

    def find_class(self, module: str, name: str) -> Any:
        place = "scipy.sparse" if module.startswith("scipy.sparse.") else module  # older releases have other modules
        if (place, name) not in NAMES:
            raise UnsafeFile(f"it asks for {module}.{name}, which no data needs")
        return NAMES[place, name]


def load_pickle(file: BinaryIO) -> Any:
    """Return the object of a pickle, in which empty stand-ins take the place of tensors and sparse matrices.

    Text of Python 2 is read as Latin-1, which lets arrays through. Raises UnsafeFile if the file asks for what no data
    needs, and pickle.UnpicklingError if it is no pickle, or damaged.
    """
    try:
        return _SafeUnpickler(file, encoding="latin1").load()
    except (UnsafeFile, pickle.UnpicklingError):
        raise
    except (LookupError, AttributeError, TypeError, ValueError, OverflowError) as error:
        raise pickle.UnpicklingError(f"it is not a whole pickle ({type(error).__name__}: {error})") from error


HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def array_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the header of a file of ``numpy.save``: shape, whether columns come first, and dtype of its array."""
    version = np.lib.format.read_magic(file)
    if version not in HEADERS:
        raise UnsafeFile("it has columns with names, which no data needs")
    return HEADERS[version](file)


def load_array(file: BinaryIO) -> np.ndarray:
    """Return the array in a file of ``numpy.save``, also one of objects; raises what `load_pickle` does."""
    start, objects = file.tell(), array_header(file)[2].hasobject
    if objects:
        load_pickle(file)  # refuses what is not data
    file.seek(start)
    return np.lib.format.read_array(file, allow_pickle=objects)


GRAPHS = (Data, DataEdgeAttr, DataTensorAttr, EdgeStorage, GlobalStorage, NodeStorage)  # in files of torch only
TORCH = [(entry, f"{module}.{name}") for (module, name), entry in ARRAYS.items()]
TORCH += [(graph, f"{graph.__module__}.{graph.__qualname__}") for graph in GRAPHS]
TORCH += [(_Array, "\n")]  # its state may be set; no file can name it


def load_torch(file: Path | BinaryIO) -> Any:
    """Return the content of a file of ``torch.save``: tensors, arrays, graphs and plain containers, on the CPU.

    Raises what `load_pickle` does.
    """
    with allowing(TORCH):
        try:
            check_archive(file)
            return torch.load(file, map_location="cpu", weights_only=True)
        except UnsafeFile:
            raise
        except UnreadableFile as error:
            raise UnsafeFile(str(error)) from error
        except (pickle.UnpicklingError, RuntimeError, EOFError, TypeError) as error:
            if named := asked_for(error):
                raise UnsafeFile(f"it asks for {named}, which no data needs") from error
            if is_out_of_memory(error):
                raise
            raise pickle.UnpicklingError(reason(error)) from error  # torch's own text is a page with terminal codes


@contextmanager
def weights_only() -> Iterator[None]:
    """Let every ``torch.load`` of the process read tensors, arrays, graphs and plain containers only."""
    switch = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(switch)
    os.environ[switch] = "1"
    try:
        with allowing(TORCH):
            yield
    finally:
        if before is None:
            del os.environ[switch]
        else:
            os.environ[switch] = before
