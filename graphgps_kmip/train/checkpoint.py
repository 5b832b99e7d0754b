"""Checkpoint files: model, optimizer, schedule, run state and random generators after an epoch.

A run resumed from one ends with the same numbers. All types are those that `torch.load(weights_only=True)` reads.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from graphgps_kmip.common.json_files import is_number
from graphgps_kmip.common.torch_files import UnreadableFile, load_plain, save_plain
from graphgps_kmip.errors import CheckpointError
from graphgps_kmip.results.run_folder import numbered

__all__ = [
    *("checkpoint_file", "load_model_state", "load_training_state", "numbered"),
    *("on_cpu", "read_checkpoint", "write_checkpoint"),
]

# The first three are GraphGym's names, the next four are those of `RunState`.
KEYS = (
    *("model_state", "optimizer_state", "scheduler_state"),
    *("epoch", "best", "val_loss", "seconds"),
    *("rng", "config_hash"),
)


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
        raise CheckpointError(f"The checkpoint {path} cannot be read ({error}); {_fix(path)}") from error
    missing = [key for key in KEYS if key not in content] if isinstance(content, dict) else KEYS
    if missing:
        raise CheckpointError(f"The checkpoint {path} lacks {', '.join(missing)}; {_fix(path)}")
    if path.stem.isdecimal() and int(path.stem) != content["epoch"]:
        raise CheckpointError(f"The checkpoint {path} says that it is of epoch {content['epoch']}; {_fix(path)}")
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
        f"{name} is {_shape(state[name])}, the model's {_shape(value)}"
        for name, value in own.items()
        if isinstance(value, Tensor) and name in state and _shape(state[name]) != _shape(value)
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise CheckpointError(
            f"The checkpoint {path} does not fit the model: {'; '.join(problems[:3])}{more}; build the model with the "
            "settings the checkpoint was made with."
        )
    model.load_state_dict(state)


def _fix(path: Path) -> str:
    others = {epoch: other for epoch, other in numbered(path.parent.parent).items() if other != path}
    if not others:
        return "there is no other one: delete it to start from epoch 0."
    epoch, other = max(others.items())
    return f"delete it to go on from {other}, or set train.epoch_resume {epoch}."


def load_training_state(optimizer: Optimizer, scheduler: LRScheduler, content: Mapping[str, Any], path: Path) -> None:
    """Load the states of optimizer and scheduler.

    Raises:
        CheckpointError: they are not those of this optimizer and scheduler.
    """
    state = content["optimizer_state"]
    try:
        _check_moments(state["state"], [one for group in optimizer.param_groups for one in group["params"]])
        optimizer.load_state_dict(state)
        _check_keys(scheduler.state_dict(), content["scheduler_state"])
        scheduler.load_state_dict(content["scheduler_state"])
    except (KeyError, IndexError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"The checkpoint {path} does not fit the optimizer or its schedule ({_first_line(error)}); {_fix(path)}"
        ) from error


def _check_moments(state: Mapping[int, Mapping[str, Any]], parameters: Sequence[nn.Parameter]) -> None:
    """Check shapes beforehand: load_state_dict accepts any, and a wrong one would only show in the first step."""
    for index, values in state.items():
        if index not in range(len(parameters)):
            raise CheckpointError(f"it has a state of parameter {index}, the model {len(parameters)} parameters")
        own = parameters[index]
        for name, value in values.items():
            # Scalars count steps, and factored moments have fewer dimensions.
            if isinstance(value, Tensor) and 0 < value.ndim == own.ndim and value.shape != own.shape:
                raise CheckpointError(f"{name} of parameter {index} is {_shape(value)}, the parameter {_shape(own)}")


def _check_keys(own: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Check names and types beforehand: a schedule loads any state."""
    for key in own.keys() | state.keys():
        if key not in own or key not in state:
            raise KeyError(f"{key} is only in one of the schedule and its state")
        numbers = is_number(own[key]), is_number(state[key])
        if numbers[0] != numbers[1] and None not in (own[key], state[key]):
            raise TypeError(f"{key} of the schedule is {str(state[key])[:40]}")


def _shape(value: Any) -> tuple[int, ...] | str:
    return tuple(value.shape) if isinstance(value, Tensor) else f"of type {type(value).__name__}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def random_state() -> dict:
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


def set_random_state(state: dict) -> None:
    """Put all generators back into a state that `random_state` returned."""
    keys, *rest = state["numpy"]
    torch.set_rng_state(state["torch"])
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
