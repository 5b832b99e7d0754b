"""The numbers that the k-MIP paper prints, to stand beside ours: see `paper.yaml`."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("paper.yaml")
# Our contestant, by how its name begins -> the paper's. Its k-MIP stands beside every backend of ours.
BESIDE = {
    "k-MIP naive": "kmip_naive",
    "k-MIP ours": "kmip",
    "full eager": "full",
    "sdpa flash float16": "flash_fp16",
}


@functools.cache
def numbers() -> dict[str, Any]:
    """Return the content of the file."""
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def printed(row: dict[str, Any]) -> dict[str, float | str]:
    """Return what the paper prints for a row: total, forward and backward in ms, memory in MB, or "OOM".

    Empty where the paper has no such row: another setting, size, width or k, several heads, or other data.
    """
    paper = numbers()
    name = next((paper_name for ours, paper_name in BESIDE.items() if row["contestant"].startswith(ours)), None)
    same = (row["dim"], row["k"], row["heads"], row["data"]) == (paper["dim"], paper["k"], 1, "gaussian")
    if name is None or not same:
        return {}
    sizes = paper["contestants"][name].get(row["setting"], {})
    return sizes.get(f"{math.log10(row['n']):.1f}", {}) if _on_grid(row["n"]) else {}


def _on_grid(n: int) -> bool:
    return n == round(10 ** (round(2 * math.log10(n)) / 2))
