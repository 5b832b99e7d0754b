"""Results in README and docs are those that their commands print, `table ID --published`.

These are the first table after each such command, and every difference with its interval on a page that has some.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from graphgps_kmip import reproduce

ROOT = Path(__file__).parents[2]
KINDS = {"test": "score", "parameters": "params", "s an epoch": "epoch_seconds", "peak memory": "memory_mb"}
RESULTS = re.compile(r"`table (\S+) --published(?: --partial)?`.*?\n\n((?:\|[^\n]*\n)+)", re.DOTALL)
COMMAND = re.compile(r"table\s((?:\w+/\w+\s)+)--published")
DIFFERENCE = re.compile(r"([+-]?[\d.]+)\s+\[([+-]?[\d.]+),\s+([+-]?[\d.]+)\]")
PAGES = [
    page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if COMMAND.search(page.read_text())
]
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
        column = ""
        for head, cell in line[line != ""].items():
            if head == "printed":  # of the column before
                assert cells[row, column]["paper_text"] == cell, f"{page}: {row}, {head}"
                continue
            kind = next((kind for start, kind in KINDS.items() if head.startswith(start)), head)
            (column,) = (column for column in columns if column == kind or column.endswith(f" {kind}"))
            exact = cells[row, column]
            assert round_like(cell, [exact["ours_mean"], exact["ours_std"]]) == cell, f"{page}: {row}, {head}"


def test_a_difference_in_the_text_is_one_that_a_command_of_its_page_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed: dict[str, list[tuple[str, ...]]] = {}
    wrong = []
    for page in PAGES:
        text = page.read_text("utf-8")
        numbers, keys = DIFFERENCE.findall(text), {key for keys in COMMAND.findall(text) for key in keys.split()}
        for key in sorted(keys - printed.keys()) if numbers else ():
            assert reproduce.main(["table", key, "--published", "--partial", "--out", str(tmp_path)]) == 0
            printed[key] = DIFFERENCE.findall(capsys.readouterr().out)
        exact = [values for key in keys for values in printed.get(key, ())]
        wrong += [(page.name, *values) for values in numbers if not any(map(partial(are_rounded, values), exact))]
    assert wrong == []


def are_rounded(numbers: Sequence[str], printed: Sequence[str]) -> bool:
    """Return whether numbers are the printed ones, of other digits or as ``a - b`` for ``b - a``."""
    value, low, high = map(float, printed)
    digits, printed_digits = (len(number.partition(".")[2]) for number in (numbers[0], printed[0]))
    slack = 0.501 * (10**-digits + 10**-printed_digits) if digits < printed_digits else 1e-9
    return any(
        all(abs(float(number) - exact) <= slack for number, exact in zip(numbers, other, strict=True))
        for other in ((value, low, high), (-value, -high, -low))
    )
