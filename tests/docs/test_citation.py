"""CITATION.cff names this version, and the papers that the README names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from graphgps_kmip import __version__

ROOT = Path(__file__).parents[2]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
README = re.sub(r"[{}]", "", (ROOT / "README.md").read_text(encoding="utf-8"))


def test_the_version_is_that_of_the_package() -> None:
    assert CITATION["version"] == __version__


@pytest.mark.parametrize(
    "work", [CITATION["preferred-citation"], *CITATION["references"]], ids=lambda work: work["type"]
)
def test_a_cited_work_is_that_of_the_readme(work: dict) -> None:
    entry = README[README.index(work["title"]) :].split("\n@")[0]
    assert f"year    = {work['year']}" in entry or f"year   = {work['year']}" in entry
    assert all(author["given-names"] in entry for author in work["authors"])
