"""Safe reading of pickles, NumPy arrays of objects and files of torch.save: only names of `NAMES` are looked up.

No code of a file is run. As with torch's ``weights_only``, sizes and dtypes in it are left to NumPy, SciPy and torch.
"""

from __future__ import annotations

import codecs
import copyreg
import io
import os
import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy
import torch
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import EdgeStorage, GlobalStorage, NodeStorage

from graphgps_kmip.common.torch_files import allowing, check_archive
from graphgps_kmip.errors import UnsafeFile

RECONSTRUCT, SCALAR = (value.__reduce__()[0] for value in (np.zeros(1), np.float64(1)))
FROM_BUFFER = np.zeros(1).__reduce_ex__(5)[0]
ARRAYS: dict[tuple[str, str], Callable[..., Any]] = {  # module and name -> function; NumPy 1 and 2 differ in modules
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): codecs.encode,
    **{(module, "bytes"): bytes for module in ("builtins", "__builtin__")},  # of an array without numbers
    **{(f"numpy.{core}.multiarray", "_reconstruct"): RECONSTRUCT for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): SCALAR for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): FROM_BUFFER for core in ("core", "_core")},
}
SPARSE = [f"{layout}_{kind}" for layout in ("csr", "csc", "coo") for kind in ("matrix", "array")]
PLAIN = (object, int, list, dict, set, frozenset)
NAMES: dict[tuple[str, str], Callable[..., Any]] = {
    **ARRAYS,
    **{(module, kind.__name__): kind for module in ("builtins", "__builtin__") for kind in PLAIN},
    **{(module, "_reconstructor"): copyreg._reconstructor for module in ("copyreg", "copy_reg")},
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): defaultdict,
    ("torch._utils", "_rebuild_tensor"): torch._utils._rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch.storage", "_load_from_bytes"): lambda content: load_torch(io.BytesIO(content)),
}


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[:2] == ["scipy", "sparse"] and name in SPARSE:  # older releases have other modules
            return getattr(scipy.sparse, name)
        if (module, name) not in NAMES:
            raise UnsafeFile(f"it asks for {module}.{name}, which no data needs")
        return NAMES[module, name]


def load_pickle(file: BinaryIO) -> Any:
    """Return the object of a pickle; text of Python 2 is read as Latin-1, which lets arrays through.

    Raises UnsafeFile if the file asks for what no data needs, and what `reading` turns into `DamagedFile` if it is
    damaged.
    """
    return _SafeUnpickler(file, encoding="latin1").load()


HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def holds_objects(file: BinaryIO) -> bool:
    """Read the header of a file of ``numpy.save``, and return whether objects follow, which `load_pickle` reads."""
    return HEADERS[np.lib.format.read_magic(file)](file)[2].hasobject


GRAPHS = (Data, DataEdgeAttr, DataTensorAttr, EdgeStorage, GlobalStorage, NodeStorage)  # in files of torch only
DTYPES = [getattr(np.dtypes, name) for name in np.dtypes.__all__]  # torch asks for the class whose state is set
TORCH = [(entry, f"{module}.{name}") for (module, name), entry in ARRAYS.items()]
TORCH += [(kind, f"{kind.__module__}.{kind.__qualname__}") for kind in (*GRAPHS, *DTYPES)]


def load_torch(file: Path | BinaryIO) -> Any:
    """Return the content of a file of ``torch.save``: tensors, arrays, graphs and plain containers, on the CPU.

    Raises what `reading` turns into `DamagedFile` if the file is damaged, or asks for something else.
    """
    with allowing(TORCH):
        check_archive(file)
        return torch.load(file, map_location="cpu", weights_only=True)


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
