"""Safe reading of pickles, NumPy arrays of objects and files of torch.save: data is built, no code is run.

`SafeUnpickler` interprets pickles, and builds arrays, sparse matrices, tensors and plain containers. Files of torch are
read by torch's own reader of weights, to which this module adds arrays of numbers and the graphs of torch_geometric.
Loading classes of torch_geometric read raw files by ``pickle.load``: `load_pickle` reads a file first, and refuses it.
"""

from __future__ import annotations

import io
import os
import pickle
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
from graphgps_kmip.data import pickled_values as values
from graphgps_kmip.errors import UnsafeFile, is_out_of_memory

FACTORIES = (list, dict, set, int, float, str, bool, tuple)  # what a defaultdict may start with
LARGE = 2**20  # bytes: a pickle that asks for more at once must hold them
FLAT = (str, bytes, int, float, complex, bool, type(None), np.generic)


def _ordered(items: Any = ()) -> OrderedDict:
    pairs = [tuple(pair) for pair in items] if isinstance(items, list | tuple) else [("", None, None)]
    if any(len(pair) != 2 for pair in pairs):
        raise UnsafeFile("it asks for an OrderedDict of something else than pairs, which no data needs")
    return OrderedDict((_key(key), value) for key, value in pairs)


def _default(factory: Any = None) -> defaultdict:
    factory = set if factory is _set else factory  # which a pickle may call, too
    if not any(factory is one for one in (None, *FACTORIES)):
        raise UnsafeFile("it asks for a defaultdict of something else than plain containers, which no data needs")
    return defaultdict(factory)


def _set(items: Any = ()) -> set:
    return {_key(item) for item in _listed(items)}


def _frozen(items: Any = ()) -> frozenset:
    return frozenset(_key(item) for item in _listed(items))


def _listed(items: Any) -> Any:
    if not isinstance(items, list | tuple):
        raise UnsafeFile(f"it asks for a set of a {type(items).__name__}, which no data needs")
    return items


def _key(value: Any) -> Any:
    """Return a key or an element of a set, if it is flat: the hash of nested tuples takes any time and depth."""
    parts = value if type(value) in (tuple, torch.Size) else (value,)
    if not all(isinstance(part, FLAT) for part in parts):
        raise UnsafeFile(f"it asks for a key that is a {type(value).__name__} of objects, which no data needs")
    return value


def latin1_bytes(content: Any = b"", encoding: Any = "latin1") -> bytes:
    """Return bytes, or text of Latin-1 as bytes; no number, which would be a length."""
    if not isinstance(content, str | bytes) or encoding not in ("latin1", "latin-1"):
        raise UnsafeFile("it asks for bytes of something else than text in latin1, which no data needs")
    return content.encode("latin1") if isinstance(content, str) else content


def _size(numbers: Any = ()) -> torch.Size:
    if not isinstance(numbers, list | tuple) or not all(map(values.is_count, numbers)):
        raise UnsafeFile("it asks for a torch.Size of something else than counts, which no data needs")
    return torch.Size(numbers)


def _complex(real: Any, imaginary: Any = 0.0) -> complex:
    if not isinstance(real, int | float) or not isinstance(imaginary, int | float):
        raise UnsafeFile("it asks for a complex number of something else than two numbers, which no data needs")
    return complex(real, imaginary)


def _object(cls: Any, base: Any, state: Any) -> Any:
    """Make an empty object, as Python 2's pickles of new-style classes ask for."""
    if base is not object or state is not None or cls not in values.sparse_classes().values():
        raise UnsafeFile("it asks for an object of a class on top of another one, which no data needs")
    return object.__new__(cls)


def _storage(content: Any) -> Any:
    """Read the storage of a tensor; torch's own function of this name unpickles it without limits."""
    read = load_torch(io.BytesIO(content)) if isinstance(content, bytes | bytearray) else None
    if not isinstance(read, torch.storage.TypedStorage | torch.UntypedStorage):
        raise UnsafeFile("it asks for a tensor without a storage, which no data needs")
    return read


MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")
# (modules, name) -> what makes it. A pickle may call these and nothing else.
CALLED: dict[tuple[tuple[str, ...], str], Callable[..., Any]] = {
    (MULTIARRAY, "_reconstruct"): values.array,
    (MULTIARRAY, "scalar"): values.scalar,
    (NUMERIC, "_frombuffer"): values.from_buffer,
    (("numpy",), "dtype"): values.dtype,
    (("torch._utils",), "_rebuild_tensor"): values.tensor,
    (("torch._utils",), "_rebuild_tensor_v2"): values.tensor,
    (("torch._utils",), "_rebuild_parameter"): values.parameter,
    (("torch.storage",), "_load_from_bytes"): _storage,
    (("torch",), "Size"): _size,
    (("collections",), "OrderedDict"): _ordered,
    (("collections",), "defaultdict"): _default,
    (("copyreg", "copy_reg"), "_reconstructor"): _object,
    (("_codecs",), "encode"): latin1_bytes,  # how Python 3 writes bytes for Python 2
    (("builtins", "__builtin__"), "bytes"): latin1_bytes,
    (("builtins", "__builtin__"), "bytearray"): lambda *given: bytearray(latin1_bytes(*given)),
    (("builtins", "__builtin__"), "complex"): _complex,
    (("builtins", "__builtin__"), "set"): _set,
    (("builtins", "__builtin__"), "frozenset"): _frozen,
}
FUNCTIONS = {(module, name): made for (modules, name), made in CALLED.items() for module in modules}
# Classes that a pickle may name but not call: of an array to come, of an object to come, of a defaultdict's values.
NAMED = {("numpy", "ndarray"): np.ndarray}
NAMED |= {(module, one.__name__): one for module in ("builtins", "__builtin__") for one in (object, *FACTORIES)}


class SafeUnpickler(pickle._Unpickler):
    """Python's interpreter of pickles, without the instructions and calls that no data needs.

    Args:
        file: open for reading bytes.
        **options: ``encoding``, ``errors`` and ``fix_imports``, as of ``pickle.load``.
    """

    def __init__(self, file: Any, **options: Any) -> None:
        options = {key: value for key, value in options.items() if key in ("encoding", "errors", "fix_imports")}
        super().__init__(file, **options)
        self._file, self._file_read = file, self._bounded

    def load(self) -> Any:
        """Return the object.

        Raises:
            UnsafeFile: it asks for what no data needs.
            pickle.UnpicklingError: it is no pickle, or damaged.
        """
        try:
            return super().load()
        except (KeyError, IndexError, AttributeError, TypeError, AssertionError, OverflowError) as error:
            raise pickle.UnpicklingError(f"it is not a whole pickle ({type(error).__name__}: {error})") from error

    def _bounded(self, size: int = -1) -> bytes:
        """Read, without making room for more than there is."""
        if size > LARGE:
            here = self._file.tell()
            left = self._file.seek(0, io.SEEK_END) - here
            self._file.seek(here)
            if size > left:
                raise UnsafeFile(f"it claims {size:,} bytes where it has {left:,}")
        return self._file.read(size)

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle means by a name, if it is one that data may use."""
        if module == "scipy.sparse" or module.startswith("scipy.sparse."):  # older releases keep them in other modules
            found = values.sparse_classes().get(name)
        else:
            found = FUNCTIONS.get((module, name), NAMED.get((module, name)))
        if found is None and module == "torch":
            named = getattr(torch, name, None) if name.isidentifier() else None
            found = named if isinstance(named, torch.dtype) else None
        if found is None:
            raise UnsafeFile(f"it asks for {module}.{name}, which no data needs")
        return found

    def _reduce(self) -> None:
        args, function = self.stack.pop(), self.stack[-1]
        known = next((one for one in CALLED.values() if one is function), None)
        if known is None or type(args) is not tuple:
            raise UnsafeFile(f"it calls {getattr(function, '__name__', type(function).__name__)}, which no data needs")
        self.stack[-1] = known(*args)

    def _newobj(self) -> None:
        args, cls = self.stack.pop(), self.stack.pop()
        if args != () or not any(cls is one for one in values.sparse_classes().values()):
            raise UnsafeFile(f"it makes an object of {getattr(cls, '__name__', cls)}, which no data needs")
        self.append(object.__new__(cls))

    def _build(self) -> None:
        state, value = self.stack.pop(), self.stack[-1]
        if type(value) is np.ndarray:
            values.set_array(value, state)
        elif isinstance(value, np.dtype):
            values.set_dtype(value, state)
        elif type(value) in values.sparse_classes().values():
            values.set_sparse(value, state)
        else:
            raise UnsafeFile(f"it sets the state of a {type(value).__name__}, which no data needs")

    def _extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise UnsafeFile(f"it appends to a {type(self.stack[-1]).__name__}, which no data needs")
        self.stack[-1].extend(items)

    def _set_one(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._update([key, value])

    def _dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._update(items)

    def _update(self, items: list[Any]) -> None:
        if type(self.stack[-1]) not in (dict, OrderedDict, defaultdict):
            raise UnsafeFile(f"it sets items of a {type(self.stack[-1]).__name__}, which no data needs")
        self.stack[-1].update((_key(key), value) for key, value in zip(items[::2], items[1::2], strict=True))

    def _add_all(self) -> None:
        items = self.pop_mark()
        if type(self.stack[-1]) is not set:
            raise UnsafeFile(f"it adds to a {type(self.stack[-1]).__name__}, which no data needs")
        self.stack[-1].update(map(_key, items))

    def _frozenset(self) -> None:
        items = self.pop_mark()  # first: it changes what `append` is
        self.append(_frozen(items))

    def _bytearray(self) -> None:
        size = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(size)))  # Python's own makes room before it reads

    def _refuse(self) -> None:
        raise UnsafeFile("it uses an instruction of pickles that no data needs")

    dispatch = {
        **pickle._Unpickler.dispatch,
        pickle.REDUCE[0]: _reduce,
        pickle.NEWOBJ[0]: _newobj,
        pickle.BUILD[0]: _build,
        pickle.APPEND[0]: lambda self: self._extend([self.stack.pop()]),
        pickle.APPENDS[0]: lambda self: self._extend(self.pop_mark()),
        pickle.SETITEM[0]: _set_one,
        pickle.SETITEMS[0]: lambda self: self._update(self.pop_mark()),
        pickle.DICT[0]: _dict,
        pickle.ADDITEMS[0]: _add_all,
        pickle.FROZENSET[0]: _frozenset,
        pickle.BYTEARRAY8[0]: _bytearray,
        **dict.fromkeys((pickle.INST[0], pickle.OBJ[0], pickle.NEWOBJ_EX[0]), _refuse),
        **dict.fromkeys((pickle.EXT1[0], pickle.EXT2[0], pickle.EXT4[0]), _refuse),
        **dict.fromkeys((pickle.PERSID[0], pickle.BINPERSID[0]), _refuse),
        **dict.fromkeys((pickle.NEXT_BUFFER[0], pickle.READONLY_BUFFER[0]), _refuse),
    }


def load_pickle(file: BinaryIO) -> Any:
    """Return the object of a pickle; text that Python 2 wrote is read as Latin-1, which lets arrays through.

    Raises:
        UnsafeFile: it asks for what no data needs.
        pickle.UnpicklingError: it is no pickle, or damaged.
    """
    return SafeUnpickler(file, encoding="latin1").load()


HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def array_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, whether columns come first, and dtype of the array in a file of ``numpy.save``; reads its header.

    Raises:
        ValueError: there is no array, or one with names of columns (version 3.0).
    """
    version = np.lib.format.read_magic(file)
    if version not in HEADERS:
        raise UnsafeFile("it has columns with names, which no data needs")
    return HEADERS[version](file)


def load_array(file: BinaryIO) -> np.ndarray:
    """Return the array in a file of ``numpy.save``, also one of objects.

    Raises:
        UnsafeFile, pickle.UnpicklingError, ValueError, EOFError: it asks for what no data needs, or is damaged.
    """
    start = file.tell()
    if array_header(file)[2].hasobject:
        return load_pickle(file)
    file.seek(start)
    return np.lib.format.read_array(file, allow_pickle=False)


GRAPHS = (Data, DataEdgeAttr, DataTensorAttr, EdgeStorage, GlobalStorage, NodeStorage)  # in files of torch only


class _DType:
    """A dtype while torch's reader makes it: it would let the file set the state of a real one."""

    def __init__(self, *given: Any) -> None:
        self.value = values.dtype(*given)

    def __setstate__(self, state: Any) -> None:
        values.set_dtype(self.value, state)


class _Array(np.ndarray):
    """An array that torch's reader makes: to a real one the file could give any state."""

    def __setstate__(self, state: Any) -> None:
        values.set_array(self, tuple(map(_bare, state)) if isinstance(state, tuple) else state)


class _ArrayClass:
    """The name ``numpy.ndarray``, which is not called."""

    def __init__(self, *_: Any) -> None:
        raise UnsafeFile("it calls ndarray, which no data needs")


def _array(kind: Any, shape: Any, code: Any) -> np.ndarray:
    empty = values.array(np.ndarray if kind is _ArrayClass else kind, shape, code)
    return np.ndarray.__new__(_Array, empty.shape, empty.dtype)


def _scalar(kind: Any, *content: Any) -> Any:
    return values.scalar(_bare(kind), *content)


def _bare(part: Any) -> Any:
    return part.value if isinstance(part, _DType) else part


def _torch_globals() -> list[tuple[Callable, str]]:
    """Return what torch's reader may build beside its own types: (ours, name in the file)."""
    made: dict[str, Callable] = {"numpy.ndarray": _ArrayClass, "numpy.dtype": _DType}
    made |= {f"{module}._reconstruct": _array for module in MULTIARRAY}
    made |= {f"{module}.scalar": _scalar for module in MULTIARRAY}
    made |= {f"{module}.bytes": latin1_bytes for module in ("builtins", "__builtin__")}  # of an array without numbers
    made |= {f"{one.__module__}.{one.__qualname__}": one for one in GRAPHS}
    made["\n"] = _Array  # its state may be set; no file can name it
    return [(one, name) for name, one in made.items()]


def load_torch(file: Path | BinaryIO) -> Any:
    """Return the content of a file of ``torch.save``: tensors, arrays, graphs and plain containers, on the CPU.

    Raises:
        UnsafeFile: it asks for a class or function that is not on the list, or gives one of these what it must not.
        pickle.UnpicklingError: it is damaged.
    """
    with allowing(_torch_globals()):
        try:
            check_archive(file)
            return torch.load(file, map_location="cpu", weights_only=True)
        except UnreadableFile as error:
            raise UnsafeFile(str(error)) from error
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            if named := asked_for(error):
                raise UnsafeFile(f"it asks for {named}, which no data needs") from error
            if is_out_of_memory(error):
                raise
            raise pickle.UnpicklingError(reason(error)) from error  # torch's own text is a page with terminal codes


@contextmanager
def weights_only() -> Iterator[None]:
    """Let every ``torch.load`` of the process read tensors, arrays, graphs and plain containers only.

    By torch's own switch, for loading classes that ask for ``weights_only=False``, or do so where True fails.
    """
    switch = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(switch)
    os.environ[switch] = "1"
    try:
        with allowing(_torch_globals()):
            yield
    finally:
        if before is None:
            del os.environ[switch]
        else:
            os.environ[switch] = before
