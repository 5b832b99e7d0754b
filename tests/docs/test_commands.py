"""Commands of the documentation: each is one that the command line knows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from graphgps_kmip import command_line, reproduce

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"^python (main|run/reproduce)\.py (.*)$", re.MULTILINE)


def commands() -> list[tuple[str, str, str]]:
    """Return (page, script, its arguments) of the code blocks."""
    return [
        (page.name, script, line)
        for page in PAGES
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
        for script, line in COMMAND.findall(block.replace("\\\n", " "))
    ]


@pytest.mark.parametrize("script", ["main", "run/reproduce"])
def test_the_flags_of_every_command_exist(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused = []
    lines = [(page, line) for page, name, line in commands() if name == script]
    for page, line in lines:
        words = shlex.split(line, comments=True)
        try:
            if script == "main":
                command_line.parse(words)
            else:
                reproduce.parse(words, "", reproduce.ACTIONS)
        except SystemExit:
            refused.append(f"{page}: {line}: {capsys.readouterr().err[-200:]}")
    assert refused == []
    assert len(lines) > 20
