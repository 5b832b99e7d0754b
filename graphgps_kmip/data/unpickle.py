"""Reading pickled data without running the code that a pickle may carry.

torch_geometric and ogb read downloaded files by ``pickle.load`` and by ``torch.load(weights_only=False)``, either of
which runs whatever the file says. Inside `safe_unpickling` the same calls build tensors, arrays, sparse matrices and
plain containers, and refuse everything else.
"""

from __future__ import annotations

import io
import pickle
import re
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.sparse
import torch
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import EdgeStorage, GlobalStorage, NodeStorage

from graphgps_kmip.data.errors import UnsafeFile

_PICKLE_LOAD, _TORCH_LOAD = pickle.load, torch.load
BUILTINS = ("set", "frozenset", "list", "dict", "tuple", "int", "float", "complex", "bool", "str", "bytes", "bytearray")
SPARSE = ("csr_matrix", "csc_matrix", "coo_matrix", "csr_array", "csc_array", "coo_array")
# Functions by which numpy, scipy and torch rebuild their values. None of them calls what the file gives it.
NUMPY = ("_reconstruct", "scalar", "ndarray", "dtype", "_frombuffer")
TORCH = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter")
CLASSES = (Data, DataEdgeAttr, DataTensorAttr, EdgeStorage, GlobalStorage, NodeStorage, OrderedDict, defaultdict)


def _numpy_function(name: str) -> Any:
    return {
        "_reconstruct": np._core.multiarray._reconstruct,
        "scalar": np._core.multiarray.scalar,
        "_frombuffer": np._core.numeric._frombuffer,
        "ndarray": np.ndarray,
        "dtype": np.dtype,
    }[name]


def _find(module: str, name: str) -> Any:
    """Return what a pickle means by a global name, if it is one that data may use.

    Raises:
        UnsafeFile: it is not.
    """
    top = module.split(".")[0]
    if module in ("builtins", "__builtin__") and name in BUILTINS:
        return getattr(__import__("builtins"), name)
    if module in ("builtins", "__builtin__") and name == "object":
        return object
    if module in ("copyreg", "copy_reg") and name == "_reconstructor":  # Python 2 built its objects by it
        return _reconstructor
    if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes for Python 2
        return _latin1
    if top == "numpy" and name in NUMPY:
        return _numpy_function(name)
    if top == "numpy" and name.endswith("DType") and module == "numpy.dtypes":
        return getattr(np.dtypes, name)
    if top == "scipy" and name in SPARSE:  # older releases keep them in other modules
        return getattr(scipy.sparse, name)
    if module == "torch._utils" and name in TORCH:
        return getattr(torch._utils, name)
    if module == "torch.storage" and name == "_load_from_bytes":
        return _load_from_bytes
    if module == "torch" and (name.endswith("Storage") or name in ("Size", "device")):
        return getattr(torch, name)
    if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
        return getattr(torch, name)
    for known in CLASSES:
        if (module, name) == (known.__module__, known.__qualname__):
            return known
    raise UnsafeFile(f"it asks for {module}.{name}, which no data needs")


def _reconstructor(cls: type, base: type, _state: Any) -> Any:
    """Make an empty object of an allowed class, as Python 2's pickles of new-style classes ask for."""
    if base is not object:
        raise UnsafeFile(f"it asks for an object of {cls.__name__} on top of {base.__name__}, which no data needs")
    return object.__new__(cls)


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise UnsafeFile(f"it asks for the encoding {encoding}, which no data needs")
    return text.encode("latin1")


def _load_from_bytes(content: bytes) -> Any:
    """Read the storage of a tensor; torch's own function of this name unpickles it without limits."""
    return _torch_load(io.BytesIO(content))


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _find(module, name)


def _pickle_load(file: Any, **options: Any) -> Any:
    options = {key: value for key, value in options.items() if key in ("encoding", "errors", "fix_imports")}
    return _Unpickler(file, **options).load()


def _torch_load(file: Any, *positional: Any, **options: Any) -> Any:
    """``torch.load`` that takes tensors, arrays and graphs only, whatever ``weights_only`` says."""
    options = {**options, "weights_only": True}
    options.pop("pickle_module", None)
    # ogb gives "rb" as the device; its processed files are ours to read on the CPU anyway.
    positional = tuple(value for value in positional if value != "rb")
    try:
        with torch.serialization.safe_globals(_torch_globals()):
            return _TORCH_LOAD(file, *positional, **options)
    except pickle.UnpicklingError as error:
        if named := re.search(r"GLOBAL (\S+)", str(error)):
            raise UnsafeFile(f"it asks for {named[1]}, which no data needs") from error
        raise


def _torch_globals() -> list[Callable | tuple[Callable, str]]:
    functions = [_numpy_function(name) for name in NUMPY]
    old_names = [(_numpy_function(name), f"numpy.core.multiarray.{name}") for name in ("_reconstruct", "scalar")]
    dtypes = [getattr(np.dtypes, name) for name in dir(np.dtypes) if name.endswith("DType")]
    return [*CLASSES, *functions, *old_names, *dtypes]


@contextmanager
def safe_unpickling() -> Iterator[None]:
    """Swap the calls that unpickle files, process-wide, for ones that refuse code.

    Raises (inside):
        UnsafeFile: a file asks for a class or function that is not on the list.
    """
    with (
        patch.object(pickle, "load", _pickle_load),
        patch.object(pickle, "loads", lambda content, **options: _pickle_load(io.BytesIO(content), **options)),
        patch.object(torch, "load", _torch_load),
    ):
        yield
