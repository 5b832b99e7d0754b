"""Evaluation of a trained model: statistics of each split, or its raw outputs, without training."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphgps_kmip.common.signals import Stopped, StopSignals
from graphgps_kmip.results.run_record import write_record, write_stats
from graphgps_kmip.task.task import Task
from graphgps_kmip.train.distributed import on_rank_zero
from graphgps_kmip.train.loop import Session, SharedGraph, explain_errors, prepare, run_epoch
from graphgps_kmip.train.reporter import Writer, closing
from graphgps_kmip.train.run_recording import closed_record, locked, open_record
from graphgps_kmip.train.settings import RunState, TrainSettings

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def evaluate(
    model: nn.Module,
    loaders: Mapping[str, Iterable],
    task: Task,
    settings: TrainSettings,
    run_dir: Path,
    fabric: Fabric,
    writers: Sequence[Writer] = (),
) -> dict[str, Any]:
    """Evaluate a model, and write what training writes for one epoch: stats.json of each split, record.json.

    Args:
        model: `model(batch) -> (pred, true)`, trained; finds `batch.split`, and `batch.progress` 1.
        loaders: split -> loader.
        task: loss, score and metrics.
        settings: digits, precision, seed, hash and name; all else belongs to training.
        run_dir: made ready by `prepare_run_dir`.
        fabric: launched.
        writers: get the same statistics, in the first process.

    Returns:
        The content of record.json; its best epoch is the only one.

    Raises:
        RunError: out of memory, or a loss that is not finite.
        SystemExit: 130 after Ctrl-C, 143 after SIGTERM; nothing is kept.
    """
    began, settings = time.perf_counter(), replace(settings, max_epoch=1)
    writers = writers if fabric.is_global_zero else ()
    with ExitStack() as stack:
        on_rank_zero(fabric, lambda: stack.enter_context(locked(run_dir)))
        stop = stack.enter_context(StopSignals(obey=fabric.is_global_zero))
        stack.enter_context(closing(writers))
        num_params = sum(parameter.numel() for parameter in model.parameters())
        session = Session(fabric, fabric.setup_module(model), None, task, settings, stop, num_params)
        record = on_rank_zero(fabric, lambda: open_record(run_dir, settings))
        try:
            shared = SharedGraph(session.model, loaders.values())
            stats = {split: run_epoch(session, loader, split, 0, shared) for split, loader in loaders.items()}
        except Stopped:
            raise SystemExit(stop.exit_code) from None
        state = RunState(epoch=0, seconds=time.perf_counter() - began)
        state.best = {"epoch": 0, "value": stats.get("val", {}).get(task.metric_best), **stats}
        record = closed_record(record, session, state, state.seconds)

        def report() -> None:
            for split, line in stats.items():
                write_stats(run_dir, split, line)
                for writer in writers:
                    writer.log(split, line, 0)
            write_record(run_dir, record)

        on_rank_zero(fabric, report)
    return record


@torch.no_grad()
def predict_batches(
    model: nn.Module,
    loader: Iterable,
    settings: TrainSettings,
    fabric: Fabric,
    split: str,
    progress: float = 1.0,
) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """Yield each batch of a split with the raw outputs of a model and the labels; in one process only.

    Args:
        model: in eval mode, set up by ``fabric``.
        loader: of the split, whose order the batches have.
        settings: precision.
        fabric: launched.
        split: ``batch.split``.
        progress: ``batch.progress``: that of the epoch whose parameters the model has.
    """
    session = Session(fabric, model, None, None, settings, StopSignals(), 0)
    for loaded in loader:
        batch = prepare(session, loaded, split, 0)
        batch.progress = progress
        with explain_errors(batch, f"the predictions for {split}"):
            yield batch, *model(batch)
