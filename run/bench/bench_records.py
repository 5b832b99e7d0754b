"""Records of a benchmark: JSON and CSV whose name is their provenance, and the comparison with a stored one."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.train.run_recording import code_version
from run.bench.paper import printed

Row = dict[str, Any]
Record = dict[str, Any]

COLUMNS = {
    "contestant": "who: frozen baseline, other library, or one of the package's own (ours: BACKEND)",
    "setting": "search, inference, training, breakdown, layer or epoch",
    "data": "the data set (--data)",
    "n": "nodes of all graphs together",
    "graphs": "graphs",
    "heads": "attention heads",
    "dim": "channels of q, k and v in one head (layer: of the whole layer)",
    "k": "keys found for each query and head",
    "device": "cpu or cuda",
    "threads": "CPU threads",
    "status": "ok, not supported: WHY, out of memory, time limit, skipped (WHY) or error: WHAT",
    "repeats": "turns measured after the first one, which is not counted",
    "total_ms": "median of the turns, milliseconds for one pass",
    "total_min_ms": "fastest turn",
    "total_max_ms": "slowest turn",
    "forward_ms": "median of the forward (training, layer)",
    "backward_ms": "median of the backward (training, layer, breakdown)",
    "search_ms": "breakdown: the search; full attention: its scores",
    "softmax_ms": "breakdown: the softmax",
    "gather_ms": "breakdown: gather and weighted sum; full attention: the weighted sum",
    "attn_dropout": "share of attention weights that training drops (epoch)",
    "nodes_per_s": "nodes / total (epoch)",
    "memory_mib": "peak memory of the first pass above its inputs: resident on cpu, torch's allocator on cuda",
    "vs_frozen": "total_ms of the frozen baseline of the same size, data and setting, divided by total_ms",
    "sgemm_share": "2 dim pairs / total / measured rate of a large float32 matrix product (search)",
    "recall": "share of the true best scores found, 256 queries against float64 brute force (search)",
    "pairs_seen": "share of the pairs that were scored or screened, where known (search)",
    "paper_ms": "the total that the k-MIP paper prints, on its A100",
    "paper_mb": "the peak memory that it prints, MB",
}


def enrich(rows: list[Row], reference: str, sgemm_gflops: float) -> list[Row]:
    """Return the rows with the columns that follow from others: vs_frozen, sgemm_share and the paper's numbers."""
    rows = [row | {"data": _nameless(row["data"])} for row in rows]
    frozen = {_place(row): row["total_ms"] for row in rows if row["contestant"] == reference and "total_ms" in row}
    result = []
    for row in rows:
        row, paper = dict(row), printed(row)
        pairs = row.pop("num_pairs", None)
        if row["status"] == "ok":
            if _place(row) in frozen:
                row["vs_frozen"] = frozen[_place(row)] / row["total_ms"]
            if row["setting"] == "epoch":
                row["nodes_per_s"] = row["n"] / (row["total_ms"] / 1000)
            if row["setting"] == "search" and pairs:
                row["sgemm_share"] = 2 * row["dim"] * pairs / (row["total_ms"] / 1000) / (sgemm_gflops * 1e9)
        if paper:
            row |= {"paper_ms": paper["total"]} | ({"paper_mb": paper["memory"]} if "memory" in paper else {})
        result.append(row)
    return result


def make_record(
    bench: str, options: dict[str, Any], machine: dict[str, Any], rows: list[Row], reference: str
) -> Record:
    """Return the record of a run; ``reference`` names the frozen contestant that stored runs are compared by."""
    return {
        "bench": bench,
        "created": datetime.now().astimezone().isoformat(timespec="seconds"),
        "code": code_version(),
        "reference": reference,
        "options": options | {"data": _nameless(options["data"])},
        "machine": machine,
        "rows": enrich(rows, reference, machine["sgemm_gflops"]),
    }


def name_of(record: Record) -> str:
    """Return the file name of a record, without an ending: what was measured, when, and with which code."""
    options = record["options"]
    data = re.sub(r"[^\w.]+", "_", options["data"].removeprefix("captured:").removesuffix(".pt"))
    when = datetime.fromisoformat(record["created"]).strftime("%Y%m%d-%H%M%S")
    where = f"{options['device']}-{record['machine']['threads']}threads"
    sizes = f"d{options['dims']}-k{options['k']}-h{options['heads']}"
    setting = [options["setting"]] if options["setting"] != record["bench"] else []
    return "-".join([record["bench"], where, *setting, data, sizes, when, record["code"]])


def write(record: Record, folder: Path, name: str = "") -> Path:
    """Write NAME.json and NAME.csv, by default named after the record, and return the path of the JSON file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name or name_of(record)}.json"
    replace_file(path, (json.dumps(record, indent=1) + "\n").encode())
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(record["rows"])
    replace_file(path.with_suffix(".csv"), text.getvalue().encode())
    return path


def read(path: Path) -> Record:
    """Return a stored record.

    Raises:
        ValueError: the file is missing or no record of a benchmark.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({error}), give a JSON file that this benchmark wrote") from error
    if not isinstance(record, dict) or not {"bench", "reference", "rows", "machine", "options"} <= record.keys():
        raise ValueError(f"{path}: no record of a benchmark, give a JSON file that this benchmark wrote")
    return record


def compare(new: Record, old: Record, tolerance: float) -> tuple[list[str], int]:
    """Return a line for each row that became worse, and how many rows could be compared.

    Worse is: slower than ``tolerance`` times the old median, both divided by the frozen baseline of their own record,
    so that runs on unlike machines compare; or without a result where there was one.
    """
    before, after = _ratios(old), _ratios(new)
    results = {_key(row): row["status"] for row in new["rows"]}
    lines, compared = [], 0
    for key, ratio in before.items():
        status = results.get(key, "skipped (not measured)")
        if key in after:
            compared += 1
            if after[key] > tolerance * ratio:
                grown = after[key] / ratio
                lines.append(f"{_words(key)}: {grown:.2f} x slower ({ratio:.3g} -> {after[key]:.3g} of the baseline)")
        elif status.startswith(("out of memory", "time limit", "error", "not supported")):
            compared += 1
            lines.append(f"{_words(key)}: {status} (had a result)")
    return lines, compared


def _ratios(record: Record) -> dict[tuple, float]:
    done = [row for row in record["rows"] if row["status"] == "ok"]
    frozen = {_place(row): row["total_ms"] for row in done if row["contestant"] == record["reference"]}
    others = [row for row in done if _place(row) in frozen and row["contestant"] != record["reference"]]
    return {_key(row): row["total_ms"] / frozen[_place(row)] for row in others}


def _nameless(data: str) -> str:
    """Where a captured file lies is this machine's affair."""
    return f"captured:{Path(data).name}" if data.startswith("captured:") else data


def _place(row: Row) -> tuple:
    return tuple(row[key] for key in ("setting", "data", "n", "dim", "k", "heads"))


def _key(row: Row) -> tuple:
    return (row["contestant"], *_place(row))


def _words(key: tuple) -> str:
    contestant, setting, data, n, *_ = key
    return f"{contestant} ({setting}, {data}, n = {n})"
