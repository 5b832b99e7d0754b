"""Downloads of raw files, from a server on this machine."""

from __future__ import annotations

import shutil
import threading
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from graphgps_kmip.data import DataError, DatasetRecord, find, open_dataset
from tests.data.sets import test_heterophilous, test_ogb_graph, test_planetoid
from tests.data.sets.raw_ogb import pack

OPEN = urllib.request.urlopen


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder whose files answer every download, whatever its address, by their names."""
    folder = tmp_path / "server"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}"

        def local(url: str, **options: Any) -> Any:
            return OPEN(f"{here}/{url.split('?')[0].rsplit('/', 1)[-1]}", timeout=options["timeout"])

        monkeypatch.setattr("graphgps_kmip.data.downloads.urlopen", local)
        monkeypatch.setattr("graphgps_kmip.data.raw_files.SHA256", {})  # the files here are tiny
        yield folder
        server.shutdown()


def place_molhiv(record: DatasetRecord, root: Path) -> None:
    pack(test_ogb_graph.place(record, root), "hiv")


PLACES: dict[tuple[str, str], Callable[[DatasetRecord, Path], Any]] = {
    ("PyG-Planetoid", "Cora"): test_planetoid.place,
    ("PyG-Heterophilous", "Minesweeper"): test_heterophilous.place,
    ("OGB", "ogbg-molhiv"): place_molhiv,
}


@pytest.mark.parametrize("key", PLACES, ids="/".join)
def test_what_is_downloaded_is_what_is_loaded_and_is_not_downloaded_again(
    key: tuple[str, str], tmp_path: Path, served: Path
) -> None:
    record = find(*key)
    PLACES[key](record, tmp_path / "original")
    for file in (tmp_path / "original").rglob("*"):
        if file.is_file():
            shutil.copy(file, served)
    first = open_dataset(record, tmp_path / "data")
    for file in served.iterdir():
        file.unlink()
    again = open_dataset(record, tmp_path / "data")
    assert len(first) == len(again) > 0
    assert [graph.edge_index.tolist() for graph in first.graphs] == [
        graph.edge_index.tolist() for graph in again.graphs
    ]
    assert all((tmp_path / "data" / record.raw.folder / file).exists() for file in record.raw.files)


@pytest.mark.parametrize("key", PLACES, ids="/".join)
def test_a_server_without_the_file_is_one_line(key: tuple[str, str], tmp_path: Path, served: Path) -> None:
    assert not list(served.iterdir())
    with pytest.raises(DataError, match=r"raw files are missing \(fetching them: .*(Not Found|File not found)"):
        open_dataset(find(*key), tmp_path / "data")


def test_what_was_downloaded_before_an_error_stays_and_is_not_asked_for(tmp_path: Path, served: Path) -> None:
    record = find("PyG-Planetoid", "Cora")
    test_planetoid.place(record, served)
    for file in (served / record.raw.folder / "raw").iterdir():
        file.rename(served / file.name)
    last = (served / "ind.cora.test.index").rename(tmp_path / "last")
    with pytest.raises(DataError, match=r"fetching them: File not found\): place raw/ind.cora.test.index from"):
        open_dataset(record, tmp_path / "data")
    last.rename(served / "ind.cora.test.index")
    for file in served.glob("ind.cora.[!t]*"):
        file.unlink()
    assert len(open_dataset(record, tmp_path / "data")) == 1
