"""Predictions for absent GPUs: loops of machine code, counts of the control flow, and what the seconds are made of."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from run.bench import gpu_kernels, gpu_prediction
from run.bench.gpu_code import Code, Instruction, Loop, body, jumped_over, loops, parse, programs_at_once
from run.bench.gpu_prediction import CARDS, Card, Parts, keys_and_queries, other_seconds, parts_of, search_seconds
from run.bench.screening_counts import Counts, count

from graphgps_kmip.search.triton_tilings import Tiling
from tests.search.triton_runs import INTERPRETING, needs_triton

# A loop of groups (1 to 12) around one of blocks (3 to 10), which holds two more, and a wait behind the end.
LISTING = """
.text.search_kernel:
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0020*/              @!P0 FMNMX R3, R4, R3, !PT ;
.L_x_2:
        /*0030*/                   FSETP.GT.AND P1, PT, R3, R2, PT ;
        /*0034*/              @!P1 BRA `(.L_x_5) ;
        /*0038*/                   LDG.E R7, [R2] ;
.L_x_3:
        /*0040*/                   FFMA R5, R6, R7, R5 ;
        /*0050*/               @P1 BRA `(.L_x_3) ;
.L_x_4:
        /*0060*/                   FMNMX R3, R4, R3, !PT ;
        /*0070*/               @P2 BRA `(.L_x_4) ;
.L_x_5:
        /*0080*/              @!P3 BRA `(.L_x_2) ;
        /*0090*/                   STL [R1], R4 ;
        /*00a0*/               @P0 BRA `(.L_x_1) ;
        /*00b0*/                   EXIT ;
        /*00c0*/               @P0 BRA `(.L_x_1) ;
"""


def test_loops_and_their_bodies_are_read_from_machine_code() -> None:
    code = parse(LISTING)
    assert [one.operation for one in code[:3]] == ["IMAD", "HMMA", "FMNMX"]
    assert loops(code) == [Loop(1, 12), Loop(1, 14), Loop(3, 10), Loop(6, 7), Loop(8, 9)]
    assert body(code, Loop(1, 12)) == {"HMMA": 1, "FMNMX": 1, "STL": 1, "BRA": 1}
    assert body(code, Loop(3, 10)) == {"FSETP": 1, "BRA": 2, "LDG": 1}
    assert jumped_over(code, Loop(3, 10)) == 1  # the load
    assert jumped_over(code, Loop(6, 7)) == 0


def test_the_parts_of_the_search_are_told_apart_or_not_found() -> None:
    code = parse(LISTING)
    assert parts_of(Code("", code, 128, 0, 0, 4)) == Parts(screening=4, visit=3, entry=1, whole=2, insertion=2)
    straight = [Instruction(one.operation) for one in code]
    assert parts_of(Code("", straight, 128, 0, 0, 4)) is None


@pytest.mark.parametrize(
    ("registers", "warps", "expected"), [(128, 4, 4), (255, 4, 2), (129, 4, 3), (32, 4, 7), (32, 32, 2)]
)
def test_programs_at_once_are_bound_by_registers_shared_memory_or_warps(
    registers: int, warps: int, expected: int
) -> None:
    code = Code("", [], registers, 0, 8 << 10, warps)
    assert programs_at_once(code, registers=65536, shared=64 << 10, warps=64) == expected


def plain_count(q: torch.Tensor, k: torch.Tensor, num_keys: int, tiling: Tiling) -> Counts:
    """The kernel's control flow, key by key."""
    k = k[torch.linalg.vector_norm(k, dim=1).argsort(descending=True)]
    best = [[float("-inf")] * num_keys for _ in q]
    screened = visited = entered = whole = rounds = 0
    for first in range(0, len(k), tiling.keys * tiling.step):
        if all(row.norm() * k[first].norm() <= min(kept) for row, kept in zip(q, best, strict=True)):
            break
        screened += 1
        group = k[first : first + tiling.keys * tiling.step]
        if not any((row @ key) > min(kept) for row, kept in zip(q, best, strict=True) for key in group):
            continue
        visited += 1
        for block in group.split(tiling.keys):
            inserted, candidates = [], []
            for row, kept in zip(q, best, strict=True):
                scores = sorted(((row @ key).item() for key in block), reverse=True)
                candidates.append(sum(score > min(kept) for score in scores))
                inserted.append(0)
                for score in scores:
                    if score > min(kept):
                        kept.remove(min(kept))
                        kept.append(score)
                        inserted[-1] += 1
            entered += max(candidates) > 0
            whole += max(candidates) > 1 << (num_keys - 1).bit_length()
            rounds += max(inserted)
    return Counts(screened, visited, entered, whole, rounds)


@pytest.mark.parametrize("data", gpu_prediction.DATA)
def test_counts_are_those_of_the_control_flow(data: str) -> None:
    tiling = Tiling(4, 8, 2, 1)
    q, k = keys_and_queries(data, 300, 3, tiling.queries, seed=0)
    expected = plain_count(q, k, 3, tiling)
    assert count(q, k, 3, tiling, chunk=3) == expected
    assert expected.visited < expected.screened <= 19
    assert (expected.screened < 19) == (data == "gaussian")  # keys of one norm end nothing


def test_seconds_are_instructions_over_their_rate_and_bytes_over_bandwidth() -> None:
    card = Card(80, 10, 1e9, 1e12, 0)
    seconds = search_seconds(
        card, Parts(100, 20, 9, 5, 7), [Counts(4, 2, 6, 1, 3)], Tiling(64, 32, 8, 4), n=640, dim=10
    )
    assert seconds == pytest.approx(10 * 4 * (4 * 100 + 2 * 8 * 20 + 6 * 9 + 10 * 5 + 3 * 7) / (10 * 4 * 1e9))
    assert 0 < other_seconds(card, 1000, 10, training=False) < other_seconds(card, 1000, 10, training=True)
    assert other_seconds(card, 2000, 10, True) == pytest.approx(2 * other_seconds(card, 1000, 10, True))


@needs_triton
@pytest.mark.skipif(INTERPRETING, reason="an interpreted kernel has no parameters to list")
def test_the_table_of_kernels_has_every_kernel_of_the_package_and_its_constants() -> None:
    launches = list(gpu_kernels.launches())
    for one in launches:
        wanted = {param.name for param in one.kernel.params if param.is_constexpr}
        assert wanted <= one.constants.keys(), one.name
    package = Path(gpu_kernels.__file__).parents[2] / "graphgps_kmip"
    entry = re.compile(r"^def (\w+_kernel)\(", re.MULTILINE)
    kernels = {
        (file.stem, name) for file in package.rglob("triton_*_kernels.py") for name in entry.findall(file.read_text())
    }
    listed = {(one.kernel.fn.__module__.rpartition(".")[2], one.kernel.fn.__name__) for one in launches}
    assert listed == kernels - {("triton_search_kernels", "search_kernel")}


def test_a_cell_has_registers_spills_shared_memory_and_warps_at_once() -> None:
    card = Card(80, 10, 1e9, 1e12, shared=100 << 10)
    assert gpu_kernels.cell(Code("", [], 128, 24, 4096, 4), card) == "128, 24, 4,096, 16"
    assert gpu_kernels.cell(Code("", [], 32, 0, 0, 1), card) == "32, 0, 0, 32"  # programs are what bounds them


@pytest.mark.parametrize("command", [gpu_prediction, gpu_kernels])
def test_an_unknown_card_is_one_line(command: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--cards", "A1000"])
    assert ended.value.code == 2
    assert f"there are {', '.join(CARDS)}" in capsys.readouterr().err
