"""Reading pickled data without running the code that a pickle may carry.

torch_geometric and ogb read downloaded files by ``pickle.load`` and by ``torch.load(weights_only=False)``, either of
which runs whatever the file says. Inside `safe_unpickling` the same calls build tensors, arrays, sparse matrices and
plain containers, and refuse everything else: pickles by `SafeUnpickler`, files of torch by torch's own reader of
weights.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import EdgeStorage, GlobalStorage, NodeStorage

from graphgps_kmip.common.torch_files import UnreadableFile, allowing, asked_for, check_archive, reason
from graphgps_kmip.data import pickled_values as values
from graphgps_kmip.data.safe_pickle import MULTIARRAY, NUMERIC, SafeUnpickler, latin1_bytes
from graphgps_kmip.errors import UnsafeFile, is_out_of_memory

_TORCH_LOAD = torch.load
GRAPHS = (Data, DataEdgeAttr, DataTensorAttr, EdgeStorage, GlobalStorage, NodeStorage)  # in files of torch only


def _pickle_load(file: Any, **options: Any) -> Any:
    return SafeUnpickler(file, **options).load()


def _pickle_loads(content: Any, **options: Any) -> Any:
    return SafeUnpickler(io.BytesIO(content), **options).load()


class _DType:
    """A dtype while torch's reader makes it: it would let the file set the state of a real one."""

    def __init__(self, *given: Any) -> None:
        self.value = values.dtype(*given)

    def __setstate__(self, state: Any) -> None:
        values.set_dtype(self.value, state)


class _Array:
    """An array while torch's reader makes it, for the same reason."""

    def __init__(self, kind: Any, shape: Any, code: Any) -> None:
        self.value = values.array(np.ndarray if kind is _ArrayClass else kind, shape, code)

    def __setstate__(self, state: Any) -> None:
        parts = state if isinstance(state, tuple) else ()
        values.set_array(self.value, _finished(tuple(map(_bare, parts))))


class _ArrayClass:
    """The name ``numpy.ndarray``, which is not called."""

    def __init__(self, *_: Any) -> None:
        raise UnsafeFile("it calls ndarray, which no data needs")


def _bare(part: Any) -> Any:
    return part.value if isinstance(part, _DType) else part


def _torch_globals() -> list[tuple[Callable, str]]:
    """Return what torch's reader may call beside its own functions: (ours, name in the file)."""
    made: dict[str, Callable] = {"numpy.ndarray": _ArrayClass, "numpy.dtype": _DType}
    made |= {f"{module}._reconstruct": _Array for module in MULTIARRAY}
    made |= {f"{module}.scalar": _scalar for module in MULTIARRAY}
    made |= {f"{module}.bytes": latin1_bytes for module in ("builtins", "__builtin__")}  # of an array without numbers
    made |= {f"{module}._frombuffer": _from_buffer for module in NUMERIC}
    made |= {f"{one.__module__}.{one.__qualname__}": one for one in GRAPHS}
    return [(one, name) for name, one in made.items()]


def _scalar(kind: Any, *content: Any) -> Any:
    return values.scalar(_bare(kind), *content)


def _from_buffer(content: Any, kind: Any, *more: Any) -> np.ndarray:
    return values.from_buffer(content, _bare(kind), *more)


def _finished(content: Any) -> Any:
    """Return content with the arrays in place of what stood for them, in containers changed in place.

    Raises:
        UnsafeFile: its containers stand in each other a thousand deep.
    """
    done: dict[int, tuple[Any, Any]] = {}  # of what was seen: itself, so that its id stays its own, and what it became

    def finish(one: Any) -> Any:
        if id(one) in done:
            return done[id(one)][1]
        if isinstance(one, _Array | _DType):
            return one.value
        if not isinstance(one, (dict, list, tuple, *GRAPHS)):
            return one
        done[id(one)] = (one, one)
        if isinstance(one, dict):
            one.update({key: finish(value) for key, value in one.items()})
        elif type(one) is list:
            one[:] = [finish(value) for value in one]
        elif type(one) is tuple:
            done[id(one)] = (one, tuple(finish(value) for value in one))
        elif isinstance(one, GRAPHS):
            finish(vars(one))
        return done[id(one)][1]

    try:
        return finish(content)
    except RecursionError as error:
        raise UnsafeFile("it holds containers in containers, deeper than any data") from error


def _torch_load(file: Any, *positional: Any, **options: Any) -> Any:
    """``torch.load`` that takes tensors, arrays and graphs only, whatever ``weights_only`` says."""
    options = {**options, "weights_only": True}
    options.pop("pickle_module", None)
    # ogb gives "rb" as the device; its processed files are ours to read on the CPU anyway.
    positional = tuple(value for value in positional if value != "rb")
    try:
        check_archive(file)
        return _finished(_TORCH_LOAD(file, *positional, **options))
    except UnreadableFile as error:
        raise UnsafeFile(str(error)) from error
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        if named := asked_for(error):
            raise UnsafeFile(f"it asks for {named}, which no data needs") from error
        if is_out_of_memory(error):
            raise
        raise pickle.UnpicklingError(reason(error)) from error  # torch's own text is a page with terminal codes


@contextmanager
def safe_unpickling() -> Iterator[None]:
    """Swap the calls that unpickle files, process-wide, for ones that refuse code.

    Raises (inside):
        UnsafeFile: a file asks for a class or function that is not on the list, or gives one of these what it must not.
    """
    with (
        patch.object(pickle, "load", _pickle_load),
        patch.object(pickle, "loads", _pickle_loads),
        patch.object(torch, "load", _torch_load),
        allowing(_torch_globals()),
    ):
        yield
