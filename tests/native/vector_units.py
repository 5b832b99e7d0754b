"""Instruction sets that give the operators other than the search different code: by the width of their vectors."""

from __future__ import annotations

import pytest

from graphgps_kmip.native.instruction_sets import AUTO, runnable

# For @pytest.mark.parametrize("instruction_set", VECTOR_UNITS, indirect=True), after @pytest.mark.usefixtures.
VECTOR_UNITS = [
    AUTO,
    *(pytest.param(name, marks=pytest.mark.thorough) for name in runnable() if "vnni" not in name),
]
