"""CITATION.cff names this version."""

from __future__ import annotations

from pathlib import Path

import yaml

from graphgps_kmip import __version__

ROOT = Path(__file__).parents[2]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def test_the_version_is_that_of_the_package() -> None:
    assert CITATION["version"] == __version__
