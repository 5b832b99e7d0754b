"""docs/quickstart.md: a message that its troubleshooting tables quote is one that the code prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text().partition("## Troubleshooting")[2]
SOURCES = " ".join(
    re.sub(r'"\s*f?"|\\\n', "", file.read_text())
    for file in (ROOT / "main.py", *(ROOT / "graphgps_kmip").rglob("*.py"), *(ROOT / "run").glob("*.*"))
)
QUOTED = re.findall(r"^\| (?:a log line |the log says )?`(.+?)` \|", PAGE, re.M)


def test_the_page_quotes_messages() -> None:
    assert len(QUOTED) >= 10


@pytest.mark.parametrize("text", QUOTED)
def test_a_quoted_message_is_printed_somewhere(text: str) -> None:
    parts = [part.strip(" .:") for part in text.split("...")]
    assert any(len(part) >= 4 for part in parts)
    assert all(part in SOURCES for part in parts), text
