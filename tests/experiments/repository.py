"""The experiments of this repository, read once for all tests, for it takes a second."""

from __future__ import annotations

from pathlib import Path

from graphgps_kmip.experiments.manifest import load_manifest, load_printed
from graphgps_kmip.experiments.search_space import load_ranges

ROOT = Path(__file__).parents[2]
EXPERIMENTS = load_manifest(ROOT / "run/experiments")
PRINTED = load_printed(ROOT / "run/experiments/printed")
PRINTED_RANGES = load_ranges(ROOT / "run/experiments/ranges")
