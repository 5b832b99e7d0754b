"""Hostile files of data: nothing of them runs, no pointer, view or size of theirs is believed; real ones load."""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import struct
import zipfile
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data
from torch_geometric.data.storage import GlobalStorage

from graphgps_kmip.data.safe_pickle import load_array, load_pickle, load_torch, weights_only
from graphgps_kmip.errors import UnsafeFile

RECONSTRUCT = np.array(0).__reduce__()[0]
CORE = RECONSTRUCT.__module__


class Call:
    """Pickled as a call, and as a state that is set after it."""

    def __init__(self, function: Any, *args: Any, state: Any = None) -> None:
        self.reduced = (function, args) if state is None else (function, args, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


def new(cls: type, state: Any) -> Call:
    return Call(copyreg._reconstructor, cls, object, None, state=state)


def array(shape: Any, dtype: Any, content: Any) -> Call:
    return Call(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, shape, dtype, False, content))


def dtype(code: str, *state: Any) -> Call:
    return Call(np.dtype, code, False, True, state=state)


def view(*args: Any) -> Call:
    return Call(torch._utils._rebuild_tensor_v2, torch.arange(4.0)._typed_storage(), *args, False, OrderedDict())


POINTERS = struct.pack("<Q", 0x4141414141414141) * 3
PLAIN = (3, "<", None, None, None, -1, -1)
OBJECT = (3, "|", None, None, None, -1, -1)
FIELDS = {"a": (np.dtype("O"), 10**6)}


def csr(indices: list[int], indptr: list[int]) -> Call:
    state = {"_shape": (2, 2), "data": np.ones(1), "indices": np.array(indices), "indptr": np.array(indptr)}
    return new(scipy.sparse.csr_matrix, state)


# What pickles may ask for. Most crash Python or read beyond their memory where they are believed.
HOSTILE: dict[str, Any] = {
    "a command": Call(os.system, "touch PWNED"),
    "code": Call(eval, "open('PWNED', 'w')"),
    "an attribute": Call(getattr, Data, "__init__"),
    "an array over given bytes": Call(np.ndarray, (3,), np.dtype("O"), POINTERS),
    "an array of nothing": Call(np.ndarray, (10**6,)),
    "objects from bytes": array((3,), np.dtype("O"), POINTERS),
    "objects whose dtype denies it": array((3,), dtype("O", *OBJECT, 0), POINTERS),
    "numbers that are counted as objects": array((3,), dtype("f8", *PLAIN, 1), POINTERS),
    "a field that is an object": array((1,), dtype("V8", 3, "|", None, ("a",), FIELDS, 8, 1, 0), b"x" * 8),
    "items of another size": array((4,), dtype("S8", 3, "|", None, None, None, 10**6, 1, 0), b"x" * 32),
    "items of a subarray": array((4,), dtype("f8", 3, "<", (np.dtype("f8"), (9,)), None, None, -1, -1, 0), b"x" * 32),
    "the dtype that all arrays share": array((1,), Call(np.dtype, "f8", state=(*PLAIN, 0)), b"x" * 8),
    "a shape beyond the content": array((10**6,), np.dtype("f8"), b"x" * 8),
    "hundreds of gigabytes": array((10**11,), np.dtype("f8"), b""),
    "a shape that overflows": array((2**62, 4), np.dtype("f8"), b""),
    "a negative shape": array((-1,), np.dtype("f8"), b""),
    "a large empty array": Call(RECONSTRUCT, np.ndarray, (10**11,), b"b"),
    "a subclass of arrays": Call(RECONSTRUCT, np.memmap, (0,), b"b"),
    "a scalar of an object": Call(np.float64(1).__reduce__()[0], np.dtype("O"), POINTERS[:8]),
    "a scalar beyond its content": Call(np.float64(1).__reduce__()[0], np.dtype("U1000"), b"x"),
    "a view beyond its storage": view(0, (10**6,), (1,)),
    "a view before its storage": view(-10, (4,), (1,)),
    "a view with long strides": view(0, (2,), (10**9,)),
    "a module's state": Call(torch.nn.Linear, 2, 2, state={"training": False}),
}
PICKLED_ONLY: dict[str, Any] = {
    "bytes by their number": Call(bytes, 10**12),
    "a factory": Call(defaultdict, os.getcwd),
    "a sparse matrix beyond its data": csr([10**6], [0, 1, 1]),
    "a sparse matrix of terabytes": csr([0], [0, 10**12, 10**12]),
    "a sparse matrix without its rows": csr([0], [0, 1]),
    "coordinates beyond a sparse matrix": new(
        scipy.sparse.coo_matrix, {"_shape": (2, 2), "data": np.ones(1), "coords": (np.array([9]), np.array([0]))}
    ),
    "the attributes of a class": new(scipy.sparse.csr_matrix, (None, {"__class__": scipy.sparse.coo_matrix})),
    "a graph": new(Data, {"_store": 1}),
    "a codec": Call(__import__("_codecs").encode, "x" * 100, "idna"),
    "a storage that is none": Call(torch.storage._load_from_bytes, pickle.dumps(1)),
    "a command in a storage": Call(torch.storage._load_from_bytes, pickle.dumps(Call(os.system, "touch PWNED"))),
    "the state of a tensor": Call(
        torch._utils._rebuild_tensor_v2, torch.arange(4.0)._typed_storage(), 0, (4,), (1,), False, None, state=(1,)
    ),
}
DEFAULTS = b"(N}X\x0c\x00\x00\x00__defaults__)stb."  # state (None, {"__defaults__": ()})
RAW: dict[str, bytes] = {  # written by hand: no writer of pickles makes them
    "the defaults of a function": b"ctorch._utils\n_rebuild_tensor_v2\n" + DEFAULTS,
    "the attributes of dtypes": b"cnumpy\ndtype\n" + DEFAULTS,
    "the attributes of a sparse class": b"cscipy.sparse\ncsr_matrix\n" + DEFAULTS,
    "the attributes of a list": b"cbuiltins\nlist\n" + DEFAULTS,
    "an array's class called": b"cnumpy\nndarray\n(K\x03tR.",
    "a number called": b"K\x01)R.",
    "a name with dots": b"\x8c\x05numpy\x8c\x0edtype.__init__\x93.",
    "an instance of old": b"(ios\nsystem\n.",
    "an extension": b"\x82\x01.",
    "a persistent object": b"K\x01Q.",
    "an object made anew": b"cnumpy\nndarray\n(K\x03t\x81.",
    "bytes that are not there": b"\x8e" + (10**12).to_bytes(8, "little") + b"x.",
    "an unknown instruction": b"\xf0.",
    "an empty stack": b".",
}


def pickled(protocol: int, value: Any) -> io.BytesIO:
    return io.BytesIO(pickle.dumps(value, protocol))


def saved(zipped: bool, value: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=zipped)
    file.seek(0)
    return file


def in_array(value: Any) -> io.BytesIO:
    file, holder = io.BytesIO(), np.empty(1, object)
    holder[0] = value
    np.save(file, holder, allow_pickle=True)
    file.seek(0)
    return file


WRITERS: dict[str, tuple[Callable[[Any], io.BytesIO], Callable[[io.BytesIO], Any]]] = {
    "pickle 2": (lambda value: pickled(2, value), load_pickle),
    "pickle 5": (lambda value: pickled(5, value), load_pickle),
    "numpy": (in_array, load_array),
    "torch": (lambda value: saved(True, value), load_torch),
    "torch before 1.6": (lambda value: saved(False, value), load_torch),
    "bytes": (lambda value: io.BytesIO(b"\x80\x04" + value), load_pickle),
}
CASES = [(value, kind, writer) for kind, value in HOSTILE.items() for writer in (*WRITERS,)[:5]]
CASES += [(value, kind, writer) for kind, value in PICKLED_ONLY.items() for writer in (*WRITERS,)[:3]]
CASES += [(value, kind, "bytes") for kind, value in RAW.items()]


@pytest.mark.parametrize(("value", "kind", "writer"), CASES, ids=[f"{kind}-{writer}" for _, kind, writer in CASES])
def test_a_hostile_file_is_refused(
    value: Any, kind: str, writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write, read = WRITERS[writer]
    file = write(value)
    with pytest.raises((UnsafeFile, pickle.UnpicklingError, RuntimeError, EOFError, MemoryError)):
        read(file)
    assert "PWNED" not in os.listdir(), kind
    assert np.dtype("f8").isnative


def test_a_compressed_archive_of_torch_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(saved(True, {"x": torch.zeros(10**5)})) as archive:
        with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as again:
            for name in archive.namelist():
                again.writestr(name, archive.read(name))
    with pytest.raises(UnsafeFile, match="compressed, which torch.save never does"):
        load_torch(tmp_path / "bomb.pt")


REAL: dict[str, Any] = {
    "numbers": [np.arange(5.0), np.arange(6, dtype=">i4").reshape(2, 3), np.zeros((0, 3)), np.array(1.5)],
    "columns first": [np.asfortranarray(np.arange(6).reshape(2, 3)), np.ones(2, bool)],
    "text": [np.array(["a", "bcd"]), np.array([b"x", b"yy"]), b"", b"abc", "é"],
    "scalars": [np.float32(3.5), np.int64(2), np.bool_(True), np.str_("ab")],
    "splits, as of LINKX": np.array([{"train": np.arange(3), "test": np.arange(2)}, None], dtype=object),
    "containers": [{1: {"a": [None, True]}, (1, "b"): 3}, OrderedDict(a=1), 10**30, float("inf"), [(), ((1,), 2)]],
}
MORE: dict[str, Any] = {
    "sets": [{1, 2}, frozenset([1, "a"]), set()],
    "graphs as of Planetoid": [defaultdict(list, {0: [1, 2]}), defaultdict(set)],
}
STAND_INS: dict[str, Any] = {  # checked, not made
    "sparse": [scipy.sparse.csc_array(np.eye(3)), scipy.sparse.coo_matrix(np.eye(3)), scipy.sparse.csr_array((2, 2))],
    "tensors": [torch.arange(5), torch.randn(3, 4).t(), torch.zeros(0), torch.tensor(3), torch.ones(1).expand(9)],
}


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        alike = isinstance(right, np.ndarray) and (right.dtype, right.shape) == (left.dtype, left.shape)
        alike = alike and (left.size < 2 or left.strides == right.strides)
        return alike and all(map(same, left.ravel().tolist(), right.ravel().tolist()))
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("kind", [*REAL, *MORE, *STAND_INS])
def test_data_is_read_from_pickles_of_every_protocol_as_pickle_itself_reads_it(kind: str, protocol: int) -> None:
    content = pickle.dumps((REAL | MORE | STAND_INS)[kind], protocol)
    expected, loaded = pickle.loads(content), load_pickle(io.BytesIO(content))
    assert same(loaded, expected) if kind not in STAND_INS else len(loaded) == len(expected)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kind", REAL)
def test_data_is_read_from_files_of_torch_as_torch_itself_reads_it(kind: str, zipped: bool) -> None:
    file = saved(zipped, {"a": REAL[kind], "b": [(REAL[kind],)]})
    expected = torch.load(file, weights_only=False)
    file.seek(0)
    result = load_torch(file)
    assert same(result, expected)


def test_graphs_are_read_from_files_of_torch() -> None:
    graph = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]), names=np.array([1, 2]))
    result, again = load_torch(saved(True, [graph, graph]))
    assert result is again
    assert result.names.tolist() == [1, 2]
    assert torch.equal(result.x, graph.x)
    assert isinstance(result._store, GlobalStorage)
    assert result.num_nodes == 2


def test_python_2_wrote_bytes_as_text() -> None:
    written = (
        b"cnumpy.core.multiarray\n_reconstruct\np1\n(cnumpy\nndarray\np2\n(I0\ntS'b'\ntRp3\n(I1\n(I2\ntcnumpy\ndtype\n"
    )
    written += b"(S'f8'\nI0\nI1\ntRp4\n(I3\nS'<'\nNNNI-1\nI-1\nI0\ntbI00\nS'" + b"\\x00" * 16 + b"'\ntb."
    assert same(load_pickle(io.BytesIO(written)), np.zeros(2))


@pytest.mark.parametrize("zipped", [True, False])
def test_loading_classes_read_tensors_and_graphs_whatever_they_ask_for(
    zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    graph = saved(zipped, (Data(x=torch.ones(2, 3), names=np.arange(2)), None))
    code = saved(zipped, HOSTILE["a command"])
    with weights_only():
        result = torch.load(graph, weights_only=False)[0]
        assert (result.x.shape, result.names.tolist()) == ((2, 3), [0, 1])
        with pytest.raises(pickle.UnpicklingError, match="system"):
            torch.load(code, weights_only=False)
    assert os.listdir() == []
    assert os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD") is None
    code.seek(0)
    torch.load(code, weights_only=False)
    assert os.listdir() == ["PWNED"], "it does run where nobody is careful"
