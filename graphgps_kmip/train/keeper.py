"""When checkpoints are written, which are kept, and from which one a run goes on."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import nn

from graphgps_kmip.train.checkpoint import (
    checkpoint_file,
    load_model_state,
    numbered,
    on_cpu,
    read_checkpoint,
    write_checkpoint,
)
from graphgps_kmip.train.distributed import gather_objects, on_rank_zero
from graphgps_kmip.train.errors import CheckpointError
from graphgps_kmip.train.randomness import random_state, set_random_state
from graphgps_kmip.train.results import trim_stats
from graphgps_kmip.train.settings import TrainSettings
from graphgps_kmip.train.state import RunState


class Keeper:
    """Keeps the state after the last completed epoch in memory, and writes it when it is due or the run is stopped.

    Args:
        run_dir: the run's folder.
        settings: period, best, clean, resume.
        model: the plain model, not as Fabric wraps it.
        optimizer: likewise.
        scheduler: the learning-rate scheduler.
        fabric: all processes take part in `keep` and `resume`; the first one writes.
    """

    def __init__(
        self,
        run_dir: Path,
        settings: TrainSettings,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler,
        fabric: Fabric,
    ) -> None:
        self.run_dir = run_dir
        self.settings = settings
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.fabric = fabric
        self._latest: dict | None = None

    def keep(self, state: RunState, new_best: bool) -> None:
        """Take the state after an epoch, and write it if it is due or the best."""
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
            write_checkpoint(self.run_dir / "ckpt" / "best.ckpt", self._latest)
        if self.settings.is_due(state.epoch, self.settings.ckpt_period):
            self.write_latest()

    def write_latest(self) -> None:
        """Write the state after the last completed epoch, unless it is on disk already."""
        if self._latest is None:
            return
        path = checkpoint_file(self.run_dir, self._latest["epoch"])
        if not path.exists():
            write_checkpoint(path, self._latest)
        if self.settings.ckpt_clean:
            for older in list(numbered(self.run_dir).values())[:-1]:
                older.unlink()

    def newest(self) -> Path | None:
        """Return the newest checkpoint on disk."""
        return next(reversed(numbered(self.run_dir).values()), None)

    def resume(self) -> RunState:
        """Load the newest checkpoint, or that of `epoch_resume`, and drop the results of later epochs.

        Returns:
            The state after that epoch; a fresh one if there is no checkpoint.

        Raises:
            CheckpointError: it cannot be used; nothing was changed on disk.
        """
        path = on_rank_zero(self.fabric, self._choose)
        if path is None:
            on_rank_zero(self.fabric, lambda: self._drop_after(-1))
            return RunState()
        content = read_checkpoint(path, self.settings.config_hash)
        if len(content["rng"]) != self.fabric.world_size:
            raise CheckpointError(
                f"The checkpoint {path} is of {len(content['rng'])} processes, this run has {self.fabric.world_size}; "
                f"set devices {len(content['rng'])}."
            )
        load_model_state(self.model, content["model_state"], path)
        self.optimizer.load_state_dict(content["optimizer_state"])
        self.scheduler.load_state_dict(content["scheduler_state"])
        on_rank_zero(self.fabric, lambda: self._drop_after(content["epoch"]))
        set_random_state(content["rng"][self.fabric.global_rank])
        return RunState(**{field.name: content[field.name] for field in fields(RunState)})

    def _choose(self) -> Path | None:
        if self.settings.epoch_resume < 0:
            return self.newest()
        there = numbered(self.run_dir)
        if self.settings.epoch_resume not in there:
            epochs = ", ".join(map(str, there)) or "none"
            raise CheckpointError(
                f"train.epoch_resume is {self.settings.epoch_resume}; {self.run_dir / 'ckpt'} has the epochs {epochs}; "
                "choose one of them, or -1 for the newest."
            )
        return there[self.settings.epoch_resume]

    def _drop_after(self, epoch: int) -> None:
        # Checkpoints first: killed in between, the next resume finds lines to trim, never a checkpoint without lines.
        for later, path in numbered(self.run_dir).items():
            if later > epoch:
                path.unlink()
        trim_stats(self.run_dir, epoch)
