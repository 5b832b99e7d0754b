"""Checkpoints: model, optimizer, schedule, run state and random generators after an epoch; written, cleaned, resumed.

A run resumed from one ends with the same numbers. All types are those that `torch.load(weights_only=True)` reads.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from graphgps_kmip.common.torch_files import UnreadableFile, load_plain, save_plain, shortened
from graphgps_kmip.errors import CheckpointError
from graphgps_kmip.results.run_folder import best_checkpoint_file, checkpoint_file, numbered, stats_file, writing
from graphgps_kmip.results.run_record import sync_stats, trim_stats
from graphgps_kmip.train.distributed import gather_objects, on_rank_zero
from graphgps_kmip.train.settings import RunState, TrainSettings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

log = logging.getLogger(__name__)
# The first three are GraphGym's names, the next four are those of `RunState`.
KEYS = "model_state optimizer_state scheduler_state epoch best val_loss seconds rng config_hash".split()


class Checkpointer:
    """Keeps the state after the last completed epoch in memory, and writes it when it is due or the run is stopped.

    Model and optimizer are not wrapped by Fabric. All processes call `keep` and `resume`; the first one writes.
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
        self.run_dir, self.settings, self.fabric = run_dir, settings, fabric
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self._latest: dict[str, Any] | None = None

    def keep(self, state: RunState, new_best: bool) -> None:
        """Keep the state after an epoch, and write it if it is due or the best."""
        if not self.settings.enable_ckpt:
            return
        rng = gather_objects(random_state())
        if not self.fabric.is_global_zero:
            return
        self._latest = {
            "model_state": _copy_to_cpu(self.model.state_dict()),
            "optimizer_state": _copy_to_cpu(self.optimizer.state_dict()),
            "scheduler_state": _copy_to_cpu(self.scheduler.state_dict()),
            **asdict(state),
            "rng": rng,
            "config_hash": self.settings.config_hash,
        }
        if self.settings.ckpt_best and new_best:
            _write_checkpoint(best_checkpoint_file(self.run_dir), self._latest)
        if self.settings.is_due(state.epoch, self.settings.ckpt_period):
            self.write_latest()

    def write_latest(self) -> None:
        """Write the state after the last completed epoch, unless it is on disk already."""
        if self._latest is None:
            return
        path = checkpoint_file(self.run_dir, self._latest["epoch"])
        if not path.exists():
            sync_stats(self.run_dir)
            _write_checkpoint(path, self._latest)
        if self.settings.ckpt_clean:
            self._remove(lambda epoch: epoch < self._latest["epoch"])

    def describe_newest(self) -> str:
        """Return from where a run that ends now can go on, for messages."""
        path = next(reversed(numbered(self.run_dir).values()), None)
        if path is None:
            return "no checkpoint was written."
        return f"the last good checkpoint is {path}; train.auto_resume True goes on from it."

    def resume(self) -> RunState:
        """Load the newest checkpoint, or that of `epoch_resume`, drop what came later, and return the state after it.

        Raises:
            CheckpointError: it cannot be used; nothing was changed on disk.
            ResultsError: a stats.json is damaged; nothing was changed on disk.
        """
        path = on_rank_zero(self.fabric, self._choose_checkpoint)
        state = RunState()
        if path is not None:
            content = read_checkpoint(path, self.settings.config_hash)
            if len(content["rng"]) != self.fabric.world_size:
                raise CheckpointError(
                    f"The checkpoint {path} is of {len(content['rng'])} processes, this run has "
                    f"{self.fabric.world_size}; set devices {len(content['rng'])}."
                )
            load_model_state(self.model, content["model_state"], path)
            self.optimizer.load_state_dict(content["optimizer_state"])
            self.scheduler.load_state_dict(content["scheduler_state"])
            _set_random_state(content["rng"][self.fabric.global_rank])
            state = RunState(**{field.name: content[field.name] for field in fields(RunState) if field.name in content})
        on_rank_zero(self.fabric, lambda: self._drop_after(state.epoch))
        return state

    def _choose_checkpoint(self) -> Path | None:
        checkpoints = numbered(self.run_dir)
        epoch = self.settings.epoch_resume if self.settings.epoch_resume >= 0 else max(checkpoints, default=-1)
        if epoch < 0 and stats_file(self.run_dir, "train").exists():
            log.warning("%s has no checkpoint: the run starts again from epoch 0", self.run_dir / "ckpt")
        if epoch >= 0 and epoch not in checkpoints:
            epochs = ", ".join(map(str, checkpoints)) or "none"
            raise CheckpointError(
                f"train.epoch_resume is {epoch}; {self.run_dir / 'ckpt'} has the epochs {epochs}; choose one of them, "
                "or -1 for the newest."
            )
        return checkpoints.get(epoch)

    def _drop_after(self, epoch: int) -> None:
        # Checkpoints first: killed in between, the next resume finds lines to trim, never a checkpoint without lines.
        self._remove(lambda later: later > epoch)
        trim_stats(self.run_dir, epoch)

    def _remove(self, is_unneeded: Callable[[int], bool]) -> None:
        for epoch, path in numbered(self.run_dir).items():
            if is_unneeded(epoch):
                with writing(path):
                    path.unlink()


def _write_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_plain(path, dict(content))
    except OSError as error:
        raise CheckpointError(
            f"Cannot write the checkpoint {path}: {error.strerror}; make room or make it writable, then go on with "
            "train.auto_resume True. Earlier checkpoints are untouched."
        ) from error


def read_checkpoint(path: Path, config_hash: str) -> dict[str, Any]:
    """Return the content of a checkpoint, on the CPU; only plain data is unpickled.

    Raises:
        CheckpointError: it is missing, damaged, not one of ours, or of another configuration; names the fix.
    """
    try:
        content = load_plain(path)
    except UnreadableFile as error:
        raise CheckpointError(f"The checkpoint {path} cannot be read ({error}); {_suggest_fix(path)}") from error
    if not isinstance(content, dict) or not content.keys() >= set(KEYS):
        raise CheckpointError(f"The checkpoint {path} is not one of this package; {_suggest_fix(path)}")
    if content["config_hash"] != config_hash:
        raise CheckpointError(
            f"The checkpoint {path} is of configuration {content['config_hash']!r}, this run of {config_hash!r}; set "
            "train.auto_resume False to move the old run aside and start anew."
        )
    return content


def load_model_state(model: nn.Module, state: Mapping[str, Any], path: Path) -> None:
    """Load a model's state; a CheckpointError names parameters that are missing, too many, or of other shapes."""
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        problems = shortened(str(error).partition(":")[2])
        raise CheckpointError(
            f"The checkpoint {path} does not fit the model: {problems}; build the model with the settings that the "
            "checkpoint was made with."
        ) from error


def _suggest_fix(path: Path) -> str:
    others = [(epoch, other) for epoch, other in numbered(path.parent.parent).items() if other != path]
    if not others:
        return "there is no other one: delete it to start from epoch 0."
    epoch, other = max(others)
    return f"delete it to go on from {other}, or set train.epoch_resume {epoch}."


def _copy_to_cpu(value: Any) -> Any:
    """Return a copy of a state dict that later steps do not change, its tensors on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _copy_to_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copy_to_cpu(item) for item in value)
    return value


def random_state() -> dict[str, Any]:
    """Return the states of torch, numpy, Python and, where it is in use, of the current CUDA device."""
    _, keys, *rest = np.random.get_state()
    state = {
        "torch": torch.get_rng_state(),
        "numpy": [torch.from_numpy(keys.astype(np.int64)), *rest],
        "python": random.getstate(),
    }
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: Mapping[str, Any]) -> None:
    keys, *rest = state["numpy"]
    torch.set_rng_state(state["torch"])
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
