"""Benchmarks on fewer instructions than the CPU has: the package's kernels, and what it is compared with, alike.

Torch's own loops, MKL, oneDNN and faiss with OpenBLAS choose their code by environment variables of their own, at their
first use. Intel's MKL follows ``MKL_ENABLE_INSTRUCTIONS`` on Intel's CPUs only; the sgemm rate of a record shows it.
"""

from __future__ import annotations

import argparse
import os
import sys

from graphgps_kmip.errors import InputError
from graphgps_kmip.native import compile_kernels
from graphgps_kmip.native.instruction_sets import AUTO, INSTRUCTION_SETS, VARIABLE, chosen_instruction_set

VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "FAISS_OPT_LEVEL",
    "OPENBLAS_CORETYPE",
)
LIMITS = {
    "portable": ("default", "SSE4_2", "SSE41", "generic", "Nehalem"),
    "avx2": ("avx2", "AVX2", "AVX2", "avx2", "Haswell"),
    "avxvnni": ("avx2", "AVX2", "AVX2_VNNI", "avx2", "Haswell"),
    "avx512": ("avx512", "AVX512", "AVX512_CORE", "avx512", "SkylakeX"),
    "avx512vnni": ("avx512", "AVX512", "AVX512_CORE_VNNI", "avx512", "SkylakeX"),
    "neon": ("default", "", "ADVSIMD", "generic", "ARMV8"),  # Arm: there is no MKL
    "dotprod": ("default", "", "ADVSIMD", "generic", "NEOVERSEN1"),
    "i8mm": ("default", "", "ADVSIMD", "generic", "NEOVERSEN1"),
}
CHOICES = (AUTO, *INSTRUCTION_SETS)


def limit_instructions(name: str) -> None:
    """Limit this process and those that it starts, before torch computes anything; "auto" changes nothing.

    Raises:
        ValueError: this CPU does not have the instructions.
    """
    if name == AUTO:
        return
    os.environ[VARIABLE] = name
    try:
        chosen_instruction_set()
    except InputError as error:
        raise ValueError(f"--isa {name}: {str(error).partition(': ')[2]}") from error
    os.environ.update(zip(VARIABLES, LIMITS[name], strict=True))


def restart_limited(words: list[str]) -> None:
    """Start this command anew if it has ``--isa``: torch chose its code while torch_geometric was imported.

    Raises:
        ValueError: this CPU does not have the instructions.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--isa", default=AUTO)
    name = parser.parse_known_args(words)[0].isa
    if name in LIMITS and os.environ.get(VARIABLE) != name:
        limit_instructions(name)
        os.execv(sys.executable, sys.orig_argv)


def native_flags() -> str:
    """Return the compiler's words for the instructions in use, for libraries that compile code of their own."""
    chosen = chosen_instruction_set()
    return compile_kernels.native_flag() if chosen == AUTO else " ".join(INSTRUCTION_SETS[chosen].flags)
