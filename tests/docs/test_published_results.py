"""A table of results in the docs says what its command prints: the first table after a `table ID --published`."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pandas as pd
import pytest

from graphgps_kmip import reproduce

ROOT = Path(__file__).parents[2]
KINDS = {"test": "score", "parameters": "params", "s an epoch": "epoch_seconds", "peak memory": "memory_mb"}
RESULTS = re.compile(r"`table (\S+) --published(?: --partial)?`.*?\n\n((?:\|[^\n]*\n)+)", re.DOTALL)
TABLES = [
    (page.name, key, table)
    for page in sorted((ROOT / "docs").glob("*.md"))
    for key, table in RESULTS.findall(page.read_text("utf-8"))
]


def read_table(text: str) -> pd.DataFrame:
    """Return a table in Markdown, its first column as the index."""
    header, _, *lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines()]
    return pd.DataFrame([line[1:] for line in lines], index=[line[0] for line in lines], columns=header[1:])


def round_like(cell: str, numbers: list[float]) -> str:
    """Return numbers in the format of a cell, ``97.5 ± 0.4`` or ``1,234``."""
    decimals = [len(number.partition(".")[2]) for number in re.findall(r"[\d.]+", cell.replace(",", ""))]
    return " ± ".join(f"{number:,.{places}f}" for number, places in zip(numbers, decimals, strict=False))


def test_there_are_such_tables() -> None:
    assert TABLES


@pytest.mark.parametrize(("page", "key", "text"), TABLES, ids=[f"{page}-{key}" for page, key, _ in TABLES])
def test_a_table_of_the_docs_is_that_of_its_command(
    page: str, key: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["table", key, "--published", "--partial", "--format", "csv", "--out", str(tmp_path)]
    assert reproduce.main(command) == 0
    lines = pd.read_csv(io.StringIO(capsys.readouterr().out), dtype={"column": str}).to_dict("records")
    cells = {(line["row"], line["column"]): line for line in lines}
    columns = {line["column"] for line in lines}
    for row, line in read_table(text).iterrows():
        for head, cell in line.items():
            kind = next((kind for start, kind in KINDS.items() if head.startswith(start)), head)
            (column,) = (column for column in columns if column == kind or column.endswith(f" {kind}"))
            if cell:
                exact = cells[row, column]
                assert round_like(cell, [exact["ours_mean"], exact["ours_std"]]) == cell, f"{page}: {row}, {head}"
