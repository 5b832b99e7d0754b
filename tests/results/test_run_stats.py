"""stats.json: every kind of damage is one line with file, line and fix; a cut-off end is none."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from graphgps_kmip.errors import ResultsError, RunFolderError
from graphgps_kmip.results.run_stats import append_stats, lost_epochs, read_run, read_stats, trim_stats
from tests.results.damages import DAMAGES, refuse_reading


def write(run_dir: Path, *lines: object) -> Path:
    path = run_dir / "val" / "stats.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    return path


def line(epoch: int, **values: object) -> dict:
    return {"epoch": epoch, "loss": 0.5, "accuracy": 0.25, **values}


@pytest.mark.parametrize("damage", [one for one in DAMAGES if one not in ("empty", "truncated", "zeros")])
def test_a_damaged_file_is_one_line_that_names_it(damage: str, tmp_path: Path) -> None:
    path = write(tmp_path, line(0))
    DAMAGES[damage](path)
    with pytest.raises(ResultsError, match=r"val/stats\.json, line 1 is not a JSON line .*; restore the file") as error:
        read_run(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        '{"loss": 1}',
        '{"epoch": "1"}',
        '{"epoch": true}',
        '{"epoch": -1}',
        '{"epoch": 1.5}',
        '{"epoch": 1, "loss": "low"}',
        '{"epoch": 1, "loss": 0.5, "accuracy": "0.9"}',
        '{"epoch": 1, "loss": 0.5, "accuracy": null}',
        "[]",
        '{"epoch": 1, "lo',
        "\x00\x00",
    ],
)
def test_a_wrong_line_is_named_wherever_it_is(wrong: str, tmp_path: Path) -> None:
    write(tmp_path, line(0), wrong, line(2))
    with pytest.raises(ResultsError, match=r"val/stats\.json, line 2 "):
        read_stats(tmp_path, "val")
    write(tmp_path, line(0), line(1), wrong)
    with pytest.raises(ResultsError, match=r"val/stats\.json, line 3 "):
        read_stats(tmp_path, "val")


@pytest.mark.parametrize("end", [b'{"epoch": 2, "lo', bytes(100), b'{"epoch": "a"}', b"\xff"])
def test_what_follows_the_last_end_of_line_was_cut_off_and_is_left_out(end: bytes, tmp_path: Path) -> None:
    path = write(tmp_path, line(0), line(1))
    path.write_bytes(path.read_bytes() + end)
    assert list(read_stats(tmp_path, "val")) == [0, 1]
    trim_stats(tmp_path, 1)
    assert path.read_text() == "".join(json.dumps(line(epoch)) + "\n" for epoch in range(2))


def test_a_whole_line_that_lacks_its_end_counts(tmp_path: Path) -> None:
    path = write(tmp_path, line(0), line(1))
    path.write_bytes(path.read_bytes()[:-1])
    assert list(read_stats(tmp_path, "val")) == [0, 1]


def test_nan_and_infinity_are_values(tmp_path: Path) -> None:
    write(tmp_path, line(0, accuracy=float("nan")), line(1, accuracy=float("inf")))
    assert str(read_stats(tmp_path, "val")[0]["accuracy"]) == "nan"


def test_a_file_that_is_damaged_is_not_trimmed(tmp_path: Path) -> None:
    path = write(tmp_path, line(0), "{", line(2))
    before = path.read_bytes()
    with pytest.raises(ResultsError, match="line 2"):
        trim_stats(tmp_path, 0)
    assert path.read_bytes() == before


def test_lost_epochs_are_named(tmp_path: Path) -> None:
    write(tmp_path, line(0), line(5))
    assert lost_epochs(tmp_path, "val", [0, 5]) == ""
    assert lost_epochs(tmp_path, "val", range(6)).endswith("val/stats.json lacks epochs 1, 2, 3 and more")
    assert lost_epochs(tmp_path, "train", [0]).endswith("train/stats.json lacks epoch 0")


def test_a_disk_that_is_full_leaves_the_earlier_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_stats(tmp_path, "val", line(0))
    before = (tmp_path / "val" / "stats.json").read_bytes()

    class Full:
        """Takes a part of what is written, as a full disk does."""

        def __init__(self, path: Path) -> None:
            self.path = path

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def write(self, text: str) -> None:
            with self.path.open("a") as file:
                file.write(text[:7])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("graphgps_kmip.results.run_stats.open", lambda path, *_, **__: Full(path), raising=False)
    with pytest.raises(RunFolderError, match=r"^Cannot write .*val/stats.json: No space left .*; make room"):
        append_stats(tmp_path, "val", line(1))
    assert (tmp_path / "val" / "stats.json").read_bytes() == before


def test_a_file_that_the_system_does_not_let_us_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, line(0))
    refuse_reading(monkeypatch, "stats.json", errno.EIO)
    with pytest.raises(RunFolderError, match="Cannot read .*stats.json: Input/output error"):
        read_stats(tmp_path, "val")
