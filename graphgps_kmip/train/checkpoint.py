"""Checkpoints: the whole state of a run after an epoch, so that a run resumed from it ends with the same numbers."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from graphgps_kmip.files import replace_file
from graphgps_kmip.train.errors import CheckpointError

# The first three are GraphGym's names, the next four are those of `RunState`.
KEYS = (
    *("model_state", "optimizer_state", "scheduler_state"),
    *("epoch", "best", "val_loss", "seconds"),
    *("rng", "config_hash"),
)


def checkpoint_file(run_dir: Path, epoch: int) -> Path:
    """Return where the state after `epoch` stands."""
    return run_dir / "ckpt" / f"{epoch}.ckpt"


def numbered(run_dir: Path) -> dict[int, Path]:
    """Return the run's checkpoints by epoch, oldest first, without `best.ckpt`."""
    paths = {int(path.stem): path for path in (run_dir / "ckpt").glob("*.ckpt") if path.stem.isdecimal()}
    return dict(sorted(paths.items()))


def on_cpu(value: Any) -> Any:
    """Return a copy of a state dict that later steps do not change, its tensors on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: on_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(on_cpu(item) for item in value)
    return value


def write_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint; `path` holds the old content or the new, whenever the process is killed.

    Raises:
        CheckpointError: it cannot be written; earlier checkpoints are as they were.
    """
    buffer = io.BytesIO()
    torch.save(dict(content), buffer)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, buffer.getbuffer())
    except OSError as error:
        raise CheckpointError(
            f"Cannot write the checkpoint {path}: {error.strerror}; make room or make it writable, then go on with "
            "train.auto_resume True. Earlier checkpoints are untouched."
        ) from error


def read_checkpoint(path: Path, config_hash: str) -> dict[str, Any]:
    """Return the content of a checkpoint, on the CPU; only plain data is unpickled.

    Raises:
        CheckpointError: it is missing, damaged, not one of ours, or of another configuration; names the mend.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch.load does not look at the checksums
        if damaged:
            raise zipfile.BadZipFile(f"wrong checksum of {damaged}")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, KeyError, ValueError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise CheckpointError(f"The checkpoint {path} cannot be read ({_first_line(error)}); {_mend(path)}") from error
    missing = [key for key in KEYS if key not in content] if isinstance(content, dict) else KEYS
    if missing:
        raise CheckpointError(f"The checkpoint {path} lacks {', '.join(missing)}; {_mend(path)}")
    if content["config_hash"] != config_hash:
        raise CheckpointError(
            f"The checkpoint {path} is of configuration {content['config_hash']!r}, this run of {config_hash!r}; set "
            "train.auto_resume False to move the old run aside and start anew."
        )
    return content


def load_model_state(model: nn.Module, state: Mapping[str, Any], path: Path) -> None:
    """Load a model's state.

    Raises:
        CheckpointError: parameters are missing, too many, or of other shapes; names up to three of them.
    """
    own = model.state_dict()
    problems = [f"{name} is missing" for name in own if name not in state]
    problems += [f"{name} is unknown" for name in state if name not in own]
    problems += [
        f"{name} is {tuple(state[name].shape)}, the model's {tuple(value.shape)}"
        for name, value in own.items()
        if isinstance(value, Tensor) and name in state and state[name].shape != value.shape
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise CheckpointError(
            f"The checkpoint {path} does not fit the model: {'; '.join(problems[:3])}{more}; build the model with the "
            "settings the checkpoint was made with."
        )
    model.load_state_dict(state)


def _mend(path: Path) -> str:
    others = {epoch: other for epoch, other in numbered(path.parent.parent).items() if other != path}
    if not others:
        return "there is no other one: delete it to start from epoch 0."
    epoch, other = max(others.items())
    return f"delete it to go on from {other}, or set train.epoch_resume {epoch}."


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
