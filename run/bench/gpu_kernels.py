"""Registers, spills, shared memory and occupancy of the Triton kernels beside the search; no GPU is needed.

  python -m run.bench.gpu_kernels                    # A100, H100 and B200
  python -m run.bench.gpu_kernels --cards H100

Each kernel is compiled as its host code launches it: GatedGCN with 64 channels, attentions with 4 heads of 16 channels,
10 keys for k-MIP. A cell has the registers of a thread, bytes of it that are spilled to memory, bytes of shared memory
of a program, and how many warps a multiprocessor, which has room for 64, holds at once. The search is in
`gpu_prediction`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from graphgps_kmip.attention.triton_full_attention import _largest_tile, _precision
from graphgps_kmip.attention.triton_sparse_attention import _tile
from graphgps_kmip.common.triton_lists import CHUNK

from .gpu_code import Code, compile_for, programs_at_once
from .gpu_prediction import CARDS, Card

HEADS, DIM, CHANNELS, NUM_KEYS = 4, 16, 64, 10
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Launch(NamedTuple):
    """A kernel as its host code launches it.

    Args:
        name (str): what it computes.
        kernel (object): a function under ``triton.jit``.
        dtype (str): Triton's name of the element type.
        constants (dict): values of its ``tl.constexpr`` arguments, and more.
        options (dict): of the compiler.
    """

    name: str
    kernel: Any
    dtype: str
    constants: dict[str, Any]
    options: dict[str, int]


def launches() -> Iterator[Launch]:
    """Yield every kernel but the search's, with typical sizes."""
    yield from _of_sparse_attention()
    yield from _of_lists()
    yield from _of_full_attention()


def _of_sparse_attention() -> Iterator[Launch]:
    from graphgps_kmip.attention import triton_sparse_attention_kernels as kernels

    constants = {"TEMPERATURE": DIM**0.5, "KEPT_PART": 0.9, "HAS_KEEP": True, "C": DIM, "D": DIM}
    constants |= _tile(NUM_KEYS, DIM)
    yield Launch("k-MIP attention, forward", kernels.forward_kernel, "fp32", constants, {})
    yield Launch("k-MIP attention, queries' gradients", kernels.backward_kernel, "fp32", constants, {})
    constants = {"C": DIM, "WIDTH": DIM, "ENTRIES": 512 // DIM, "WEIGHTED": True}
    yield Launch("k-MIP attention, keys' gradients", kernels.segment_kernel, "fp32", constants, {"num_warps": 1})


def _of_lists() -> Iterator[Launch]:
    from graphgps_kmip.attention import triton_clamped_attention_kernels as clamped
    from graphgps_kmip.mpnn import triton_gated_mean_kernels as gated

    lists, one_warp = {"CHUNK": CHUNK, "ENTRIES": 8, "FINISH": False}, {"num_warps": 1}
    own = {"WIDTH": CHANNELS, "C": CHANNELS, "EPS": 1e-6, "HAS_FACTOR": False, "HAS_GRAD_GATE": True}
    for dtype in DTYPES:
        for part, kernel in (
            ("forward", gated.forward_kernel),
            ("targets' gradients", gated.backward_targets_kernel),
            ("sources' gradients", gated.backward_sources_kernel),
        ):
            yield Launch(f"GatedGCN, {part}", kernel, dtype, lists | own, one_warp)
    own = {"LIMIT": 5.0, "EPS": 1e-6, "SCALE": 0.25, "KEPT_PART": 1.0, "H": HEADS, "D": DIM, "ED": DIM, "WIDTH": DIM}
    own |= {"HAS_BIAS": False, "HAS_KEEP": False, "HAS_SECOND": True, "HAS_TOTAL": True}
    for part, kernel in (
        ("forward", clamped.forward_kernel),
        ("queries' gradients", clamped.backward_kernel),
        ("other gradients", clamped.product_sum_kernel),
    ):
        yield Launch(f"Exphormer, {part}", kernel, "fp32", lists | own, one_warp)


def _of_full_attention() -> Iterator[Launch]:
    from graphgps_kmip.attention import triton_full_attention_kernels as kernels

    for title, dtype, pairs in (
        ("full attention", "fp32", False),
        ("full attention", "bf16", False),
        ("PPGT", "fp32", True),
        ("PPGT", "bf16", True),
    ):
        kind = DTYPES[dtype]
        constants = {"SCALE": 0.25, "DROPPED": 2**31, "KEPT_PART": 0.5, "H": HEADS, "D": DIM, "WIDTH": DIM}
        constants |= {"TILE": _largest_tile(torch.empty(0, dtype=kind), DIM, pairs), "PRECISION": _precision(kind)}
        flags = ("HAS_KEY_BIAS", "HAS_THETA", "HAS_PHI", "GRAD_KEY_BIAS", "GRAD_THETA", "GRAD_PHI")
        constants |= dict.fromkeys(flags, pairs)
        for part, kernel in (
            ("forward", kernels.forward_kernel),
            ("keys' gradients", kernels.backward_keys_kernel),
            ("queries' gradients", kernels.backward_queries_kernel),
        ):
            yield Launch(f"{title}, {part}", kernel, dtype, constants, {"num_warps": 4, "num_stages": 2})


def table(names: list[str]) -> Iterator[str]:
    """Yield a table of all kernels by card."""
    yield f"| kernel | dtype | {' | '.join(names)} |"
    yield "|---|---|" + "---|" * len(names)
    for one in launches():
        cells = (cell(_compiled(CARDS[name], one), CARDS[name]) for name in names)
        yield f"| {one.name} | {one.dtype} | {' | '.join(cells)} |"


def _compiled(card: Card, one: Launch) -> Code:
    return compile_for(card.capability, one.kernel, one.constants, one.dtype, **one.options)


def cell(code: Code, card: Card) -> str:
    """Return registers, spilled bytes, shared bytes and warps at once."""
    warps = programs_at_once(code, 65536, card.shared, 64) * code.warps
    return f"{code.registers}, {code.spilled}, {code.shared:,}, {warps}"


def main(words: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cards", default=",".join(CARDS), help=f"of {', '.join(CARDS)}")
    names = parser.parse_args(words).cards.split(",")
    if unknown := [name for name in names if name not in CARDS]:
        parser.error(f"--cards {unknown[0]}: no such card; there are {', '.join(CARDS)}")
    for line in table(names):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
