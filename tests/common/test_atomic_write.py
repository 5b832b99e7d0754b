"""Atomic writes: the old content or the new, never a part, and nothing left over."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphgps_kmip.common.atomic_write import replace_file, replacing


def test_a_file_is_replaced_and_nothing_is_left_over(tmp_path: Path) -> None:
    replace_file(tmp_path / "a", b"one")
    replace_file(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_two_processes_that_write_one_file_at_once_do_not_meet(tmp_path: Path) -> None:
    with replacing(tmp_path / "a") as first:
        first.write_bytes(b"one")
        with replacing(tmp_path / "a") as second:
            second.write_bytes(b"two")
        assert (tmp_path / "a").read_bytes() == b"two"
    assert (tmp_path / "a").read_bytes() == b"one"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def break_off(path: Path, error: type[BaseException]) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(b"a part of two")
        raise error


@pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt])
def test_an_error_while_writing_leaves_the_old_content_alone(tmp_path: Path, error: type[BaseException]) -> None:
    replace_file(tmp_path / "a", b"one")
    with pytest.raises(error):
        break_off(tmp_path / "a", error)
    assert (tmp_path / "a").read_bytes() == b"one"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
