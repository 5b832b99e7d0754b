"""Instruction sets of the C kernels: all that this CPU has ("auto"), or fewer, to test and measure other paths.

``GRAPHGPS_KMIP_ISA`` names one of `INSTRUCTION_SETS`, read when a process first loads a kernel; results differ in
rounding alone.
"""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path
from typing import NamedTuple

from graphgps_kmip.errors import InputError

VARIABLE = "GRAPHGPS_KMIP_ISA"
AUTO = "auto"
X86, ARM = "x86_64", "aarch64"
OTHER_NAMES = {"AMD64": X86, "arm64": ARM}  # of Windows and macOS


class InstructionSet(NamedTuple):
    """Flags of the compiler (GCC and clang share them), and what the CPU must have, as Linux names it."""

    flags: tuple[str, ...]
    needs: str = ""
    machine: str = X86


AVX2 = "avx2 fma bmi1 bmi2 f16c movbe abm"
AVX512 = f"{AVX2} avx512f avx512bw avx512cd avx512dq avx512vl"
INSTRUCTION_SETS = {
    "portable": InstructionSet(("-march=x86-64",)),
    "avx2": InstructionSet(("-march=haswell",), AVX2),
    "avxvnni": InstructionSet(("-march=haswell", "-mavxvnni"), f"{AVX2} avx_vnni"),
    "avx512": InstructionSet(("-march=skylake-avx512",), AVX512),
    "avx512vnni": InstructionSet(("-march=skylake-avx512", "-mavx512vnni"), f"{AVX512} avx512_vnni"),
    "neon": InstructionSet(("-march=armv8-a",), "asimd", ARM),
    "dotprod": InstructionSet(("-march=armv8.2-a+dotprod",), "asimd asimddp", ARM),
    "i8mm": InstructionSet(("-march=armv8.2-a+dotprod+i8mm",), "asimd asimddp i8mm", ARM),
}


def machine() -> str:
    """Return `X86`, `ARM`, or what else the system calls the CPU."""
    return OTHER_NAMES.get(platform.machine(), platform.machine())


def runnable() -> list[str]:
    """Return the names of the instruction sets that this CPU has: none on other CPUs than x86-64 and 64-bit Arm."""
    sets = {name: isa for name, isa in INSTRUCTION_SETS.items() if isa.machine == machine()}
    return [name for name, isa in sets.items() if set(isa.needs.split()) <= _cpu_flags()]


def read_instruction_set() -> str:
    """Return the name in ``GRAPHGPS_KMIP_ISA``, "auto" without one; an `InputError` if this CPU does not have it."""
    name = os.environ.get(VARIABLE) or AUTO
    if name != AUTO and name not in runnable():
        fault = "this CPU does not have it" if name in INSTRUCTION_SETS else "no instruction set of the kernels"
        raise InputError(f"{VARIABLE}={name}: {fault}, allowed are {', '.join([AUTO, *runnable()])}")
    return name


@functools.cache
def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux: what cannot be asked for is not forced
        return frozenset()
    flags = [line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))]
    return frozenset("".join(flags[:1]).split())
