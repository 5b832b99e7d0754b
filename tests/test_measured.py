"""What config heads say was measured is what the table of docs/experiments.md says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = (ROOT / "docs" / "experiments.md").read_text().split("## Results on two cores")[1].split("\n## ")[0]
MODELS = {
    "gcn": "GCN", "gat": "GAT", "gatedgcn": "GatedGCN", "transformer": "GPS+Transformer", "exphormer": "Exphormer",
    "kmip": "GPS+kMIP", "grit": "GRIT", "ppgt": "PPGT", "geco": "GPS+GECO",
}  # fmt: skip
FOLDERS = {"Heterophilous/minesweeper": "Minesweeper", "Heterophilous/tolokers": "Tolokers"}


def printed(data: str, model: str) -> str:
    """Return mean and deviation of a cell of the table, such as "89.9 ± 0.3"."""
    header, _, *rows = [line.strip("|").split("|") for line in TABLE.splitlines() if line.startswith("|")]
    column = next(number for number, title in enumerate(header) if title.strip().startswith(data))
    cell = next(row[column] for row in rows if row[0].strip() == model)
    return " ".join(cell.split("(")[0].split())


def measured(config: Path) -> str:
    """Return mean and deviation on the test part in a config's head; "" if it does not say."""
    head = " ".join(line.lstrip("# ") for line in config.read_text().splitlines() if line.startswith("#"))
    match = re.search(r"(\d+\.\d) \+- (\d+\.\d) % on test", head)
    return f"{match[1]} ± {match[2]}" if match else ""


CONFIGS = {
    f"{folder}-{short}": (data, model)
    for folder, data in FOLDERS.items()
    for short, model in MODELS.items()
    if (config := ROOT / "configs" / f"{folder}-{short}.yaml").exists() and measured(config)
}


def test_most_configs_of_the_table_say_what_was_measured() -> None:
    assert len(CONFIGS) >= 14


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_head_and_the_table_agree(name: str) -> None:
    assert measured(ROOT / "configs" / f"{name}.yaml") == printed(*CONFIGS[name])
