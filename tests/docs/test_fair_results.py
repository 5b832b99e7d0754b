"""The tables of equally tuned models in the docs say what `run/experiments/published` holds."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from graphgps_kmip.common.yaml_files import read_yaml
from graphgps_kmip.experiments.manifest import load_manifest

ROOT = Path(__file__).parents[2]
MANIFEST = load_manifest(ROOT / "run" / "experiments")
PAGE = (ROOT / "docs" / "fair-tables.md").read_text().partition("## Results")[2]
TABLES = {  # the heading before the table
    "fair/digits": "## Digits",
    "fair/cora": "## Cora",
    "fair/citeseer": "## CiteSeer",
    "fair/minesweeper": "## Minesweeper",
    "fair/tolokers": "## Tolokers",
}
CELLS = {  # of the columns, by how their heads begin
    "test": lambda entry: f"{100 * fmean(score(entry))} ± {100 * stdev(score(entry))}",
    "validation": lambda entry: str(100 * entry["found"]["value"]),
    "parameters": lambda entry: str(fmean(entry["runs"]["values"]["params"])),
    "s an epoch": lambda entry: str(fmean(entry["runs"]["values"]["epoch_seconds"])),
    "peak memory": lambda entry: str(fmean(entry["runs"]["values"]["memory_mb"])),
}


def score(entry: dict[str, Any]) -> list[float]:
    return entry["runs"]["values"]["score"]


def rows(key: str) -> dict[str, dict[str, str]]:
    """Return model -> head of the column -> cell of the first table after the heading of `TABLES`."""
    table = re.search(r"(?:^\|.*\n)+", PAGE.split(TABLES[key], 1)[1], re.M)[0]
    header, _, *lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
    return {line[0]: dict(zip(header[1:], line[1:], strict=True)) for line in lines}


def published() -> dict[tuple[str, str], dict[str, Any]]:
    """Return (table, model) -> what is published of its search and runs."""
    found = {}
    for key in TABLES:
        folders = {one.folder: one.point["model"] for one in MANIFEST[key].trainings}
        file = ROOT / "run" / "experiments" / "published" / f"{key.replace('/', '-')}.yaml"
        entries = read_yaml(file)[key] if file.exists() else {}
        found |= {(key, folders[name]): entry for name, entry in entries.items() if "runs" in entry}
    return found


def rounded_like(cell: str, exact: str) -> str:
    """Return the exact numbers with as many decimals as those of a cell."""
    decimals = [len(number.partition(".")[2]) for number in re.findall(r"[\d.]+", cell)]
    numbers = [float(number) for number in re.findall(r"[\d.]+", exact)]
    return " ± ".join(f"{number:,.{places}f}" for number, places in zip(numbers, decimals, strict=True))


PUBLISHED = published()


def test_there_are_published_runs() -> None:
    assert len(PUBLISHED) >= 6


@pytest.mark.parametrize(("key", "model"), PUBLISHED)
def test_a_row_of_the_docs_says_what_is_published(key: str, model: str) -> None:
    for head, cell in rows(key)[model].items():
        exact = next(of for name, of in CELLS.items() if head.startswith(name))(PUBLISHED[key, model])
        assert rounded_like(cell.replace(",", ""), exact) == cell, head
