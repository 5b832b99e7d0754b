"""Train mode ``brec``: a model of its own for each pair of BREC, results in the run folder, the table by category."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg
from yacs.config import CfgNode

from graphgps_kmip.common.signals import StopSignals
from graphgps_kmip.data.sets.brec import CATEGORIES, pair_graphs
from graphgps_kmip.errors import TrainingDiverged
from graphgps_kmip.expressivity.brec_protocol import TOTAL, PairTest, Result, category_rows, run_to_file, table_text
from graphgps_kmip.gym.network_building import build_model
from graphgps_kmip.gym.train_modes import (
    Loaders,
    Record,
    current_optimizer,
    current_scheduler,
    current_settings,
    current_task,
)
from graphgps_kmip.registry import register
from graphgps_kmip.results.run_folder import SPLITS, writing
from graphgps_kmip.results.run_record import write_record, write_stats
from graphgps_kmip.train.loop import Session
from graphgps_kmip.train.run_recording import closed_record, open_record
from graphgps_kmip.train.settings import RunState

if TYPE_CHECKING:
    from lightning_fabric import Fabric

RESULTS = "brec.jsonl"
DTYPES = {"32-true": torch.float32, "64-true": torch.float64}


@register("train_mode", "brec")
def brec(
    loaders: Loaders, model: nn.Module, optimizer: Optimizer, scheduler: Any, fabric: Fabric, *, config: CfgNode
) -> Record:
    """Train and test a new model on each pair of BREC, and count the pairs that it tells apart."""
    del optimizer, scheduler  # each pair has its own
    graphs, run_dir = loaders[0].dataset.dataset, Path(cfg.run_dir)
    pairs = getattr(graphs, "graphs", graphs).pairs  # those without encodings know their numbers
    settings = replace(current_settings(), max_epoch=1)
    with writing(run_dir):
        record = open_record(run_dir, settings)
        results = _run(config, graphs, pairs, fabric.device, run_dir / RESULTS)
    if all(result["failed"] for result in results.values()):
        raise TrainingDiverged("No pair gave finite outputs; lower optim.base_lr, or set train.precision 64-true.")
    categories = {name: sorted(set(members) & set(pairs)) for name, members in CATEGORIES.items()}
    rows = category_rows(results, {name: members for name, members in categories.items() if members})
    logging.info("BREC, %s\n%s", "a made-up SAMPLE" if cfg.dataset.sample else cfg.brec.protocol, table_text(rows))
    stats = _statistics(results, {row.category: row.distinguished for row in rows})
    for split, line in stats.items():
        write_stats(run_dir, split, line)
    seconds = sum(result["seconds"] for result in results.values())
    count = sum(parameter.numel() for parameter in model.parameters())
    state = RunState(epoch=0, best={"epoch": 0, "value": None, **stats}, seconds=seconds)
    session = Session(fabric, model, None, current_task(config.share.dim_out), settings, StopSignals(), count)
    record = closed_record(record, session, state, seconds)
    write_record(run_dir, record)
    return record


def _run(
    config: CfgNode, graphs: Sequence[Data], pairs: Sequence[int], device: torch.device, path: Path
) -> dict[int, Result]:
    test = PairTest(
        lambda: build_model(config),
        lambda model: (optimizer := current_optimizer(model), current_scheduler(optimizer)),
        cfg.optim.max_epoch,
        cfg.brec.protocol,
        cfg.seed,
        DTYPES[cfg.train.precision],
        device,
        cfg.brec.loss_threshold,
    )
    place = {pair: number for number, pair in enumerate(pairs)}
    workers = torch.get_num_threads() if device.type == "cpu" else 1
    began, done = time.perf_counter(), 0

    def tell(result: Result) -> None:
        nonlocal done
        done += 1
        word = result["failed"] or ("distinguished" if result["distinguished"] else "not distinguished")
        word += "" if result["reliable"] or result["failed"] else ", not reliable"
        passed = time.perf_counter() - began
        logging.info("pair %d: %s (%d pairs in %.0f s)", result["pair"], word, done, passed)

    try:
        return run_to_file(test, pairs, lambda pair: pair_graphs(graphs, place[pair]), path, workers, tell=tell)
    except KeyboardInterrupt:
        logging.warning("stopped after %d pairs; the same command goes on from %s", done, path)
        raise SystemExit(130) from None


def _statistics(results: Mapping[int, Result], counts: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return the line of training, the mean loss of the last epochs, and that of the test, with counts of pairs."""
    tested = [result["loss"] for result in results.values() if result["loss"] is not None]
    trained = [result["last_loss"] for result in results.values() if result["last_loss"] is not None]
    train, _, test = SPLITS
    verdicts = {
        "accuracy": counts[TOTAL] / len(results),
        "distinguished": counts[TOTAL],
        **{name: count for name, count in counts.items() if name != TOTAL},
        "tested": len(results),
        "unreliable": sum(not result["reliable"] and not result["failed"] for result in results.values()),
        "failed": sum(bool(result["failed"]) for result in results.values()),
    }
    losses = {train: trained or tested, test: tested}  # untrained: the loss of the initial weights
    lines = {split: {"epoch": 0, "loss": sum(of) / len(of)} if of else {"epoch": 0} for split, of in losses.items()}
    return {train: lines[train], test: lines[test] | verdicts}
