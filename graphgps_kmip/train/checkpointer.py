"""Checkpointer: writes checkpoints of a run, removes older ones, and resumes from the newest or a given one."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from graphgps_kmip.errors import CheckpointError
from graphgps_kmip.results.run_folder import best_checkpoint_file, checkpoint_file, numbered, stats_file, writing
from graphgps_kmip.results.run_stats import lost_epochs, read_stats, same_line, sync_stats, trim_stats
from graphgps_kmip.train.checkpoint import (
    load_model_state,
    load_training_state,
    on_cpu,
    random_state,
    read_checkpoint,
    set_random_state,
    write_checkpoint,
)
from graphgps_kmip.train.distributed import gather_objects, on_rank_zero
from graphgps_kmip.train.settings import RunState, TrainSettings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

log = logging.getLogger(__name__)


class Checkpointer:
    """Keeps the state after the last completed epoch in memory, and writes it when it is due or the run is stopped.

    Args:
        run_dir: the run's folder.
        settings: period, best, clean, resume.
        model: the plain model, not as Fabric wraps it.
        optimizer: likewise.
        scheduler: the learning-rate scheduler.
        splits: that the run has, of which statistics are written.
        fabric: all processes take part in `keep` and `resume`; the first one writes.
    """

    def __init__(
        self,
        run_dir: Path,
        settings: TrainSettings,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler,
        splits: Collection[str],
        fabric: Fabric,
    ) -> None:
        self.run_dir = run_dir
        self.settings = settings
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.splits = splits
        self.fabric = fabric
        self._latest: dict | None = None

    def keep(self, state: RunState, new_best: bool) -> None:
        """Keep the state after an epoch, and write it if it is due or the best."""
        if not self.settings.enable_ckpt:
            return
        rng = gather_objects(random_state())
        if not self.fabric.is_global_zero:
            return
        self._latest = {
            "model_state": on_cpu(self.model.state_dict()),
            "optimizer_state": on_cpu(self.optimizer.state_dict()),
            "scheduler_state": on_cpu(self.scheduler.state_dict()),
            **asdict(state),
            "rng": rng,
            "config_hash": self.settings.config_hash,
        }
        if self.settings.ckpt_best and new_best:
            write_checkpoint(best_checkpoint_file(self.run_dir), self._latest)
        if self.settings.is_due(state.epoch, self.settings.ckpt_period):
            self.write_latest()

    def write_latest(self) -> None:
        """Write the state after the last completed epoch, unless it is on disk already."""
        if self._latest is None:
            return
        path = checkpoint_file(self.run_dir, self._latest["epoch"])
        if not path.exists():
            sync_stats(self.run_dir)
            write_checkpoint(path, self._latest)
        if self.settings.ckpt_clean:
            for epoch, older in numbered(self.run_dir).items():
                if epoch < self._latest["epoch"]:
                    with writing(older):
                        older.unlink()

    def describe_newest(self) -> str:
        """Return from where a run that ends now can go on, for messages."""
        path = next(reversed(numbered(self.run_dir).values()), None)
        if path is None:
            return "no checkpoint was written."
        return f"the last good checkpoint is {path}; train.auto_resume True goes on from it."

    def resume(self) -> RunState:
        """Load the newest checkpoint that has its statistics, or that of `epoch_resume`, and drop what came later.

        Returns:
            The state after that epoch; a fresh one if there is no checkpoint.

        Raises:
            CheckpointError: it cannot be used, or statistics are lost; nothing was changed on disk.
            ResultsError: a stats.json is damaged; nothing was changed on disk.
        """
        path = on_rank_zero(self.fabric, self._choose)
        if path is None:
            on_rank_zero(self.fabric, self._start_again)
            return RunState()
        content = read_checkpoint(path, self.settings.config_hash)
        if len(content["rng"]) != self.fabric.world_size:
            raise CheckpointError(
                f"The checkpoint {path} is of {len(content['rng'])} processes, this run has {self.fabric.world_size}; "
                f"set devices {len(content['rng'])}."
            )
        load_model_state(self.model, content["model_state"], path)
        load_training_state(self.optimizer, self.scheduler, content, path)
        on_rank_zero(self.fabric, lambda: self._check_best(content["best"], path))
        try:
            set_random_state(content["rng"][self.fabric.global_rank])
        except (KeyError, IndexError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                f"The checkpoint {path} has no usable states of the random generators; delete it to go on from an "
                "earlier one, or set train.auto_resume False to start anew."
            ) from error
        on_rank_zero(self.fabric, lambda: self._drop_after(content["epoch"]))
        return RunState(**{field.name: content[field.name] for field in fields(RunState)})

    def _start_again(self) -> None:
        if read_stats(self.run_dir, "train"):
            log.warning("%s has no checkpoint: the run starts again from epoch 0", self.run_dir / "ckpt")
        self._drop_after(-1)

    def _choose(self) -> Path | None:
        there = numbered(self.run_dir)
        if self.settings.epoch_resume < 0:
            return self._newest_with_statistics(there)
        if self.settings.epoch_resume not in there:
            epochs = ", ".join(map(str, there)) or "none"
            raise CheckpointError(
                f"train.epoch_resume is {self.settings.epoch_resume}; {self.run_dir / 'ckpt'} has the epochs {epochs}; "
                "choose one of them, or -1 for the newest."
            )
        path = there[self.settings.epoch_resume]
        if lost := self._lost(self.settings.epoch_resume):
            raise CheckpointError(self._lost_line(path, lost))
        return path

    def _newest_with_statistics(self, there: dict[int, Path]) -> Path | None:
        """Return the newest checkpoint with the statistics of all epochs up to its own; None without a checkpoint.

        Going on from one whose statistics are lost would end in tables that lack epochs.
        """
        if not there:
            return None
        newest = max(there)
        first_lost = self._lost(newest)
        if not first_lost:
            return there[newest]
        for epoch, path in reversed(there.items()):
            if epoch != newest and not self._lost(epoch):
                log.warning("%s: the run goes back to %s, whose statistics are all there", first_lost, path)
                return path
        raise CheckpointError(self._lost_line(there[newest], first_lost))

    def _lost_line(self, path: Path, lost: str) -> str:
        return (
            f"{lost}, which came before the checkpoint {path}; restore the file, or set train.auto_resume False to "
            "move the run aside and start anew."
        )

    def _lost(self, epoch: int) -> str:
        """Return which statistics up to `epoch` are lost (``val/stats.json lacks epoch 3``); empty if none are."""
        epochs = range(epoch + 1)
        expected = {"train": epochs, "val": filter(self.settings.evaluates, epochs)}
        if self.settings.eval_test == "every":  # else which epochs it has is not known beforehand
            expected["test"] = filter(self.settings.evaluates, epochs)
        lost = (lost_epochs(self.run_dir, split, expected.get(split, ())) for split in self.splits)
        return next(filter(None, lost), "")

    def _check_best(self, best: dict[str, Any], path: Path) -> None:
        """Refuse a checkpoint whose best epoch is not what the statistics say of it."""
        for split in self.splits:
            line = read_stats(self.run_dir, split).get(best["epoch"]) if split in best else None
            if split in best and not same_line(best[split], line):
                raise CheckpointError(
                    f"The checkpoint {path} and {stats_file(self.run_dir, split)} differ in epoch {best['epoch']}, the "
                    "best one; restore the file, or set train.auto_resume False to move the run aside and start anew."
                )

    def _drop_after(self, epoch: int) -> None:
        # Checkpoints first: killed in between, the next resume finds lines to trim, never a checkpoint without lines.
        for later, path in numbered(self.run_dir).items():
            if later > epoch:
                with writing(path):
                    path.unlink()
        trim_stats(self.run_dir, epoch)
