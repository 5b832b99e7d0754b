"""Instruction sets that give the operators other than the search different code: by the width of their vectors."""

from __future__ import annotations

import pytest

from graphgps_kmip.ops.native.instruction_sets import AUTO, runnable
from tests.native.emulated_cpu import CPUS, missing

# Sets that this CPU does not have, and that an emulator runs where it is installed.
EMULATED = {
    name: pytest.param(name, marks=[pytest.mark.thorough, pytest.mark.skipif(bool(missing()), reason=missing())])
    for name in CPUS
    if name not in runnable()
}
# For @pytest.mark.parametrize("instruction_set", VECTOR_UNITS, indirect=True), after @pytest.mark.usefixtures.
VECTOR_UNITS = [
    AUTO,
    *(pytest.param(name, marks=pytest.mark.thorough) for name in runnable() if "vnni" not in name),
    *(param for name, param in EMULATED.items() if name == "neon"),
]
