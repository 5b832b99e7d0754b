"""docs/troubleshooting.md: every error of ours stands in it, and what its first part quotes is really said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from run import error_index

ROOT = Path(__file__).parents[2]
BY_HAND = (ROOT / "docs" / "troubleshooting.md").read_text().partition("## All errors")[0]
SOURCES = " ".join(
    re.sub(r'"\s*f?"|\\\n', "", file.read_text())
    for folder, ending in (("graphgps_kmip", "*.py"), ("run", "*.py"), ("run", "*.sh"), (".", "main.py"))
    for file in sorted((ROOT / folder).rglob(ending) if folder != "." else [ROOT / "main.py"])
)
QUOTED = re.findall(r"^\| (?:a log line |the log says )?`(.+?)` \|", BY_HAND, re.M)


def test_the_list_of_errors_is_up_to_date() -> None:
    assert error_index.main(["--check"]) == 0, "python run/error_index.py brings it up to date"


def test_the_list_holds_errors_of_every_room() -> None:
    listed = {file.split("/")[1] for _, file in error_index.messages() if "/" in file}
    assert listed >= {"search", "attention", "data", "encoding", "gym", "model", "train", "task", "report"}


@pytest.mark.parametrize("text", QUOTED)
def test_a_quoted_message_is_said_somewhere(text: str) -> None:
    parts = [part.strip(" .:") for part in text.split("...")]
    assert any(len(part) >= 4 for part in parts)
    assert all(part in SOURCES for part in parts), text


def test_values_are_left_out_and_short_texts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "graphgps_kmip").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "main.py").write_text(
        'raise ValueError(f"dropout must be in [0, 1), got {dropout}")\nraise OSError("no")'
    )
    monkeypatch.setattr(error_index, "ROOT", tmp_path)
    assert list(error_index.messages()) == [("dropout must be in [0, 1), got …", "main.py")]
