"""Benchmark records: command-line options, machine description, JSON files, tables."""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import torch

from graphgps_kmip.common.atomic_write import read_artefact, replace_file, write_json
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.ops.native import NoKernel
from graphgps_kmip.search.fused_cpu import instruction_set
from graphgps_kmip.train.run_recording import code_version, hardware, package_versions

Row = dict[str, Any]
Record = dict[str, Any]

RESULTS = Path(__file__).resolve().parents[2] / "results" / "bench"
LOAD = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # of others, before our own work
BUSY = 0.25  # load by others for each core from which on times are not trusted
PLACE = ("setting", "data", "n", "dim", "k", "heads")  # rows that differ in the method only
COLUMNS = """columns of paired benchmarks:
  method      plain form, other library, or one of the package's own (ours: BACKEND)
  n, dim      nodes of all graphs together; channels of q, k and v in one head (layer: of the whole layer)
  status      not supported: WHY, out of memory, time limit, skipped (WHY) or error: WHAT
  repeats     passes measured after the first one, which is not counted
  total_ms    median of the passes; likewise forward, backward, search (full attention: its scores), softmax, gather
  cpu_ms      processor time of all threads (waiting in busy loops included), median
  memory_mib  peak memory of the first pass above its inputs: resident on cpu, torch's allocator on cuda
  vs_plain    total_ms of the plain form of the same size, data and setting, divided by total_ms"""


class Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"error: {message}\n")


def parse(argv: list[str], doc: str | None, paired: bool = False, **options: tuple[Any, Any, str]) -> Any:
    """Return the checked command line; options: name -> type (`bool`: flag; tuple: choices), default, help."""
    parser = Parser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = {
        "threads": (positive, torch.get_num_threads(), "CPU threads"),
        "out": (Path, RESULTS, "results directory"),
    }
    if paired:
        parser.epilog = COLUMNS
        shared |= {
            "device": (("cpu", "cuda", "auto"), "cpu", "where; auto: cuda if there is one"),
            "k": (positive, 10, "keys for each query"),
            "methods": (str, "*", "comma-separated patterns, such as 'ours:*,faiss*'"),
            "limit": (float, 120, "seconds that the passes of a cell may take"),
            "repeats": (positive, 7, "measured passes of a cell, 3 if one takes over 20 s"),
            "name": (str, "", "of the files instead of what was measured, when, with what code"),
        }
    for name, (kind, default, text) in (shared | options).items():
        flags = [f"--{name.replace('_', '-')}"] + ["--contestants"] * (name == "methods")
        values: dict[str, Any] = {"choices": kind} if isinstance(kind, tuple) else {"type": kind}
        values = {"action": "store_true"} if kind is bool else values | {"default": default}
        parser.add_argument(*flags, help=f"{text} (default: %(default)s)", **values)
    args = parser.parse_args(argv)
    if not getattr(args, "limit", 1) > 0:
        raise ConfigError(f"--limit must be positive, got {args.limit:g}")
    if paired and args.device == "auto":
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    if paired and args.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no CUDA device, use --device cpu")
    if options.get("dims", (int, None))[1] and args.dims % args.heads:
        raise ConfigError(f"--dims must be divisible by --heads, got {args.dims} and {args.heads}")
    return args


def positive(text: str) -> int:
    """Read an integer of at least 1; ``1e3`` is one."""
    number = float(text)
    if not 1 <= number < 1e15 or number != int(number):
        raise ValueError(text)
    return int(number)


def sizes(text: str) -> list[int]:
    """Read numbers of nodes: ``100,5000``, or ``1e2:1e6`` for half powers of ten from 10^2 to 10^6, both included."""
    if ":" not in text:
        return sorted({positive(part) for part in text.split(",")})
    first, last = (positive(part) for part in text.split(":"))
    if first > last:
        raise ValueError(text)
    steps = int(2 * math.log10(last / first) + 1e-3)
    return sorted({*(round(first * 10 ** (step / 2)) for step in range(steps + 1)), last})


def split_names(option: str, text: str, choices: Iterable[str]) -> list[str]:
    """Return the comma-separated names of an option, which must be among the choices."""
    names = text.split(",")
    if unknown := [name for name in names if name not in choices]:
        raise ConfigError(f"--{option} {', '.join(unknown)}: there are {', '.join(choices)}")
    return names


def pick(names: list[str], patterns: str, reference: str = "") -> list[str]:
    """Return the names that match one of the patterns (each must match a name), and the reference."""
    globs = [pattern.strip() for pattern in patterns.split(",")]
    for pattern in globs:
        if not fnmatch.filter(names, pattern):
            raise ConfigError(f"--methods {pattern}: no method of this name, there are {', '.join(names)}")
    return [name for name in names if name == reference or any(fnmatch.fnmatch(name, pattern) for pattern in globs)]


def machine_facts(device: str, threads: int) -> dict[str, Any]:
    """Return hardware, kernels' instructions, packages, load by others, rates of a matrix product and of copying."""
    torch.set_num_threads(threads)
    side = {"cpu": 2048, "cuda": 8192}[device]  # of square matrices whose product runs at the full rate (no TF32)
    a, b = torch.randn(2, side, side, device=device)
    source, target = torch.ones(2, 2**26, device=device)  # 256 MiB each, beyond every cache
    seconds, processor = _measure_best(lambda: torch.mm(a, b), device)
    copied = 2 * source.nbytes / _measure_best(lambda: target.copy_(source), device)[0] / 1e9  # read and written
    rates = {"sgemm_gflops": round(2 * side**3 / seconds / 1e9, 1), "stream_gb_per_s": round(copied, 1)}
    if device == "cpu":
        rates["sgemm_gflop_per_cpu_s"] = round(2 * side**3 / processor / 1e9, 1)
    try:
        isa = instruction_set()
    except NoKernel:  # no C compiler
        isa = None
    instructions = {"isa": isa, "torch_isa": torch.backends.cpu.get_cpu_capability()}
    facts = {**hardware(torch.device(device)), **instructions, "threads": threads, "load": LOAD, **rates}
    return {**facts, "packages": package_versions()}


def _measure_best(work: Callable[[], object], device: str) -> tuple[float, float]:
    wall, processor = [], []
    for _ in range(6):
        start = time.perf_counter(), time.process_time()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        wall.append(time.perf_counter() - start[0])
        processor.append(time.process_time() - start[1])
    return min(wall[1:]), min(processor[1:])  # the first one starts threads


def write(bench: str, args: argparse.Namespace, rows: list[Row], **more: Any) -> tuple[Record, Path]:
    """Write NAME.json, by default named after benchmark, setting and time; return record and file."""
    now, code = datetime.now().astimezone(), code_version()
    options = {key: value for key, value in vars(args).items() if key not in ("out", "name")}
    options = {key: value.name if isinstance(value, Path) else value for key, value in options.items()}
    machine = machine_facts(getattr(args, "device", "cpu"), args.threads)
    record = {"bench": bench, "created": now.isoformat(timespec="seconds"), "code": code, "options": options}
    record |= {"machine": machine, **more, "rows": rows}
    what = "-".join(dict.fromkeys([bench, options.get("setting", bench)]))
    path = args.out / f"{getattr(args, 'name', '') or f'{what}-{now:%Y%m%d-%H%M%S}-{code}'}.json"
    args.out.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(record, indent=1, default=str) + "\n").encode())
    return record, path


def save(
    args: argparse.Namespace,
    rows: list[Row],
    columns: Iterable[str],
    reference: str = "",
    table_content: Mapping[str, Any] | None = None,
) -> int:
    """Write and print the rows of `harness.measure`, and ``args.table``; return the exit code."""
    plain = {_place(row): row["total_ms"] for row in rows if row.get("method") == reference and "total_ms" in row}
    for row in rows:
        if "total_ms" in row and _place(row) in plain:
            row["vs_plain"] = plain[_place(row)] / row["total_ms"]
    record, path = write(rows[0]["bench"], args, rows, reference=reference)
    machine = record["machine"]
    if getattr(args, "table", None):
        write_json(args.table, {**table_content, "hardware": machine})
    where = f"{machine.get('gpu', machine['cpu'])}, {machine['threads']} thread{'s' * (machine['threads'] > 1)}, "
    where += f"{machine['isa']}, " if machine.get("isa") else ""
    where += f"sgemm {machine['sgemm_gflops']:g} GFLOP/s"
    if "sgemm_gflop_per_cpu_s" in machine:
        where += f" ({machine['sgemm_gflop_per_cpu_s']:g} GFLOP per processor second)"
    where += f", copy {machine['stream_gb_per_s']:g} GB/s, {record['code']}"
    if LOAD > BUSY * machine["cores"]:
        where += f"; busy with others (load {LOAD:.1f}): do not trust absolute times"
    print(f"\n{where}\n\n{table(rows, columns)}\n\n{path}")
    return 0


def read(path: Path) -> Record:
    """Return a stored record."""
    record = read_artefact(path)
    if not {"bench", "reference", "rows", "machine", "options"} <= record.keys():
        raise ConfigError(f"{path}: no record of a benchmark, give a JSON file that this benchmark wrote")
    return record


def table(rows: list[Row], columns: Iterable[str]) -> str:
    """Return rows as a Markdown table; columns without any value are left out, and "status" where all are ok."""
    shown = [key for key in columns if {row.get(key) for row in rows} - {None, "ok"}]
    lines = [shown, *([number(row.get(key)) for key in shown] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |" for line in lines
    )


def number(value: Any) -> str:
    """Print a number in three to four digits, text cut to 60 characters, and nothing for None."""
    if not isinstance(value, float):
        return "" if value is None else str(value)[:60]
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _place(row: Row) -> tuple:
    return tuple(row.get(key) for key in PLACE)
