"""Hostile files of data: nothing of them runs; real ones load."""

from __future__ import annotations

import io
import os
import pickle
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

from graphgps_kmip.common.torch_files import UnreadableFile
from graphgps_kmip.data.safe_pickle import holds_objects, load_pickle, load_torch, weights_only
from graphgps_kmip.errors import UnsafeFile


class Call:
    """Pickled as a call, and as a state that is set after it."""

    def __init__(self, function: Any, *args: Any, state: Any = None) -> None:
        self.reduced = (function, args) if state is None else (function, args, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


# What pickles may ask for.
HOSTILE: dict[str, Any] = {
    "a command": Call(os.system, "touch PWNED"),
    "code": Call(eval, "open('PWNED', 'w')"),
    "an attribute": Call(getattr, Data, "__init__"),
    "a module's state": Call(torch.nn.Linear, 2, 2, state={"training": False}),
}
PICKLED_ONLY: dict[str, Any] = {
    "a factory": Call(defaultdict, os.getcwd),
    "a command in a storage": Call(torch.storage._load_from_bytes, pickle.dumps(Call(os.system, "touch PWNED"))),
}
RAW: dict[str, bytes] = {  # written by hand: no writer of pickles makes them
    "a name with dots": b"\x8c\x05numpy\x8c\x0edtype.__init__\x93.",
    "an instance of old": b"(ios\nsystem\n.",
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
    "numpy": (in_array, lambda file: holds_objects(file) and load_pickle(file)),
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


def test_a_compressed_archive_of_torch_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(saved(True, {"x": torch.zeros(10**5)})) as archive:
        with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as again:
            for name in archive.namelist():
                again.writestr(name, archive.read(name))
    with pytest.raises(UnreadableFile, match="compressed, which torch.save never does"):
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
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if scipy.sparse.issparse(left):
        return bool((left.toarray() == right.toarray()).all())
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("kind", [*REAL, *MORE])
def test_data_is_read_from_pickles_of_every_protocol_as_pickle_itself_reads_it(kind: str, protocol: int) -> None:
    content = pickle.dumps((REAL | MORE)[kind], protocol)
    assert same(load_pickle(io.BytesIO(content)), pickle.loads(content))


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
