"""Runs of an experiment, one after the other, with the pictures of each and the summary of all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch_geometric.graphgym.config import cfg

from graphgps_kmip import report
from graphgps_kmip.gym.config_hash import config_hash
from graphgps_kmip.gym.experiment import execute
from graphgps_kmip.gym.planned_runs import Run
from graphgps_kmip.results.run_record import is_finished, read_record
from graphgps_kmip.train import on_rank_zero

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def train_runs(
    runs: Sequence[Run],
    fabric: Fabric,
    overwrite: bool = False,
    *,
    keep_scores: bool = False,
    prepare: Callable[[Run], Run] | None = None,
) -> None:
    """Train runs of the loaded config into ``cfg.out_dir``, draw their pictures, and write the summary.

    Args:
        runs: see `planned_runs`.
        fabric: launched.
        overwrite: repeat finished runs.
        keep_scores: write the scores of their attention, see `execute`.
        prepare (optional): makes ready what a run reads, right before it, and returns the run that knows of it.
            (default: nothing)
    """
    out_dir, experiment = Path(cfg.out_dir), config_hash(cfg, of_run=False)
    replaced = [run.name for run in runs] if overwrite else []
    on_rank_zero(fabric, lambda: report.check_results(out_dir, cfg.metric_best, cfg.metric_agg, experiment, replaced))
    for number, run in enumerate(runs, start=1):
        record = execute(run if prepare is None else prepare(run), fabric, overwrite, keep_scores)
        run_dir = out_dir / run.name
        if fabric.is_global_zero and record is not None:
            logging.info("run %d of %d is done: %s", number, len(runs), run_dir)
            show(run_dir)
        elif fabric.is_global_zero and is_finished(read_record(run_dir)):
            show(run_dir, missing=True)  # it may have been interrupted before
    if fabric.is_global_zero:
        report.aggregate(out_dir, cfg.metric_best, cfg.metric_agg, experiment)


def show(run_dir: Path, missing: bool = False) -> None:
    """Draw the pictures of a finished run.

    Args:
        run_dir (Path): its folder.
        missing (bool, optional): draw only those that are not there. (default: ``False``)
    """
    arrays, attention, curves = (run_dir / name for name in ("attention.npz", "attention.png", "curves.png"))
    pictures = []
    if arrays.exists() and not (missing and attention.exists()):
        pictures.append(report.draw_attention(arrays, attention))
    if not (missing and curves.exists()):  # the last one: where it is, the others were made
        pictures.append(report.draw_curves(run_dir, cfg.metric_best, cfg.metric_agg))
    if pictures:
        logging.info("pictures: %s", ", ".join(path.name for path in pictures))
