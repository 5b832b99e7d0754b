"""Small tables for every drawing function, and the words of a figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from graphgps_kmip.experiments.experiment_spec import Command, Experiment, FigureSpec
from graphgps_kmip.experiments.manifest import PrintedCell
from graphgps_kmip.experiments.run_status import State, Status
from graphgps_kmip.report.result_table import Cell, Ours, ResultTable

TREE = Command("tree", "run/x.py", "run/x.py --small", ("tree.json",))
EXPERIMENT = Experiment("T/1", "An experiment", commands={"tree": TREE})
RUN = Status(
    State.DONE, Path("a/0"), {"hardware": {"gpu": "A card"}, "finished_at": "2026-01-02", "code_version": "c0"}
)
SIZES = ("N=10^2.0", "N=10^3.0", "N=10^4.0", "N=10^5.0", "N=10^6.0")
GROWN = (2048, 8192, 32768, 131072, 524288)
LINES = {"lines": {"one": ["p/growth", "time"]}, "speedups": {"gain": ["p/growth", "gain"]}}
STAGES = {"search": "search", "backward": "backward"}
PANELS = {"time": {"ours and theirs": ["p/sizes", "total"], "another": ["p/sizes", "other"]}}


def table(key: str, columns: Mapping[str, dict], rows: Mapping[str, list[Cell]]) -> ResultTable:
    cells = {row: dict(zip(columns, values, strict=True)) for row, values in rows.items()}
    return ResultTable(key, key, "T/1", columns, cells, {}, printed_hardware="an old card")


def cell(measured: float | str | None, printed: float | str | None = None) -> Cell:
    if isinstance(measured, str):
        our_side = Ours(text=measured)
    else:
        our_side = Ours((measured, measured * 1.1), (0, 1), 2, {}, {0: RUN, 1: RUN})
    paper = PrintedCell(printed) if isinstance(printed, str) else PrintedCell(str(printed), printed)
    return Cell(our_side, None if printed is None else paper)


def tables() -> dict[str, ResultTable]:
    score, time = {"metric": "accuracy", "better": "higher", "unit": "%"}, {"metric": "time", "unit": "s"}
    sizes = {
        name: [cell(10.0 * 4**i, 20.0 * 4**i), cell(4.0 * 9**i if i < 3 else "OOM", "OOM" if i > 1 else 5.0 * 9**i)]
        for i, name in enumerate(SIZES)
    }
    return {
        "p/sizes": table("p/sizes", {"total": {"unit": "ms"}, "other": {"unit": "ms"}}, sizes),
        "p/growth": table(
            "p/growth",
            {"time": {"unit": "ms"}, "gain": {}},
            {f"N={n}": [cell(3e-5 * n**1.5), cell(n / 1e4, n / 1e3)] for n in GROWN},
        ),
        "p/stages": table(
            "p/stages", dict.fromkeys(STAGES, {}), {"full": [cell(9.0), cell(30.0)], "k-MIP": [cell(2.0), cell(0.1)]}
        ),
        "p/score": table("p/score", {"A": score}, {f"k={k}": [cell(70.0 + k, 69.0 + k)] for k in (1, 2, 5)}),
        "p/variants": table(
            "p/variants",
            {"ZINC": {"metric": "MAE"}},
            {"SDP+BN": [cell(0.08)], "sL2+BN": [Cell()], "+SPE": [cell(0.05)]},
        ),
        "p/batches": table(
            "p/batches",
            {size: {"metric": "MAE"} for size in ("8", "64", "256")},
            {"BN": [cell(0.09), cell(0.07), Cell()], "RMSN": [cell(0.06), cell(0.05), cell(0.04)]},
        ),
        "p/fair": table(
            "p/fair",
            {"A score": score, "A epoch_seconds": time, "A memory_mb": {"metric": "peak memory", "unit": "MB"}},
            {
                "GCN": [cell(80.0, 81.5), cell(0.1), cell(600.0)],
                "GCN+kMIP": [cell(81.0), cell(0.9), cell(700.0)],
                "GAT": [cell(79.0), cell(0.2), cell(650.0)],
            },
        ),
        "p/time": table("p/time", {"A": time}, {f"k={k}": [cell(1.0 + k, 2.0 * k)] for k in (1, 2, 5)}),
    }


SPECS = {
    "ablation": FigureSpec("f", "ablation", tables=("p/variants",)),
    "batch_sizes": FigureSpec("f", "batch_sizes", tables=("p/batches",)),
    "runtimes": FigureSpec("f", "runtimes", tables=("p/sizes",), options={"panels": PANELS}),
    "scaling": FigureSpec("f", "scaling", tables=("p/growth",), options=LINES),
    "breakdown": FigureSpec("f", "breakdown", tables=("p/stages",), options={"stages": STAGES}),
    "time_against_score": FigureSpec("f", "time_against_score", tables=("p/score", "p/time")),
    "pareto": FigureSpec("f", "pareto", tables=("p/score", "p/time")),
    "score_against_cost": FigureSpec("f", "score_against_cost", tables=("p/fair",)),
    "ball_tree_nodes": FigureSpec("f", "ball_tree_nodes", sources=("tree/tree.json",)),
    "ball_tree_time": FigureSpec("f", "ball_tree_time", sources=("tree/tree.json",)),
}


def texts(figure: Figure) -> list[str]:
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    notes = [text for part in (figure, *figure.axes) for text in part.texts]
    return [text.get_text() for text in (*notes, *(text for legend in legends for text in legend.get_texts()))]
