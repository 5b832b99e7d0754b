"""Five pairs of BREC as published: of 10, 10, 16, 10 and 18 nodes, with all orders of their nodes, 640 strings."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from graphgps_kmip.data.sets.brec import BRECGraphs

BASIC, SIMPLE_REGULAR, STRONGLY_REGULAR, EXTENSION, CFI = 0, 60, 110, 160, 265


@functools.cache
def brec_pairs() -> BRECGraphs:
    with np.load(Path(__file__).with_suffix(".npz")) as file:
        return BRECGraphs(file["texts"].tolist(), file["pairs"].tolist())
