"""Parameters of another code, under its names, for a model of ours: every one must find its place, and fill it."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from graphgps_kmip.train.errors import CheckpointError
from graphgps_kmip.train.naming import Dropped, Names, finder

State = dict[str, Tensor]
SHOWN = 3  # problems of a kind that an error names


def read_state(path: Path) -> State:
    """Return the parameters in a checkpoint of ours, of GraphGym or of Lightning, on the CPU; no code is unpickled.

    Raises:
        CheckpointError: it cannot be read, or holds no parameters.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, KeyError, ValueError, pickle.UnpicklingError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise CheckpointError(f"The checkpoint {path} cannot be read ({line}); take another one.") from error
    for key in ("model_state", "state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            return dict(content[key])
    raise CheckpointError(f"The checkpoint {path} has no model_state; take one that GraphGym or this package wrote.")


def renamed(
    state: Mapping[str, Tensor], own: Mapping[str, Tensor], names: Names, path: Path, left: str = "(?!)"
) -> State:
    """Return a full state for our model: the tensors of the file under our names.

    A file of ours comes back as it is, for our names mean themselves.

    Args:
        state: of the file.
        own: state of our model, whose names and shapes count.
        names: of the code that wrote it.
        path: the file, for the error.
        left: pattern of our names that keep their tensors, whatever the file has for them.

    Raises:
        CheckpointError: names what is left over, missing or of another shape.
    """
    ours = dict(zip(_unwrapped(own, names.wrappers), own, strict=True))  # bare name -> name
    theirs = dict(zip(_unwrapped(state, names.wrappers), state.values(), strict=True))
    find = finder(theirs, ours, names)
    found: dict[str, str] = {}  # ours -> theirs, bare
    problems: list[list[str]] = [[], [], [], []]
    for name, value in theirs.items():
        fits = [one for one in find(name) if one in ours]
        if any(re.search(left, one) for one in (fits or list(find(name)))):
            continue
        if not fits:
            problems[0] += [] if _is_dropped(name, theirs, names.dropped) else [f"{name} {_shape(value)} is left over"]
        elif fits[0] in found:
            problems[1].append(f"{found[fits[0]]} and {name} both are {fits[0]}")
        else:
            found[fits[0]] = name
    result = {}
    for name, wrapped in ours.items():
        value = theirs.get(found.get(name, ""))
        fill = next((row for row in names.filled if re.search(row.name, name)), None)
        if value is None:
            if not fill and not re.search(left, name):
                problems[2].append(f"{name} {_shape(own[wrapped])} is missing in the file")
            value = own[wrapped] if not fill or fill.value is None else torch.full_like(own[wrapped], fill.value)
        elif value.shape != own[wrapped].shape:
            problems[3].append(f"{name} {_shape(value)} in the file, {_shape(own[wrapped])} here")
        result[wrapped] = value
    _complain(problems, names.reasons, path)
    return result


def _unwrapped(names: Iterable[str], wrappers: Iterable[str]) -> list[str]:
    names = list(names)
    for wrapper in wrappers:
        if all(name.startswith(wrapper) for name in names):
            names = [name.removeprefix(wrapper) for name in names]
    return names


def _is_dropped(name: str, theirs: Mapping[str, Tensor], dropped: Iterable[Dropped]) -> bool:
    for row in dropped:
        match = re.search(row.name, name)
        if not match or (row.unless and any(re.match(match.expand(row.unless), other) for other in theirs)):
            continue
        twin = theirs.get(name.replace(match[0], row.same)) if row.same else theirs[name]
        if twin is not None and torch.equal(twin, theirs[name]) and not (row.zero and bool(theirs[name].any())):
            return True
    return False


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def _complain(problems: Iterable[list[str]], reasons: Iterable[tuple[str, str]], path: Path) -> None:
    shown = []
    for kind in problems:
        more = [f"and {len(kind) - SHOWN} more"] if len(kind) > SHOWN else []
        shown += [*kind[:SHOWN], *more]
    if shown:
        text = "; ".join(shown)
        why = "".join(f" ({reason})" for pattern, reason in reasons if re.search(pattern, text))
        raise CheckpointError(
            f"The checkpoint {path} does not fit the model: {text}{why}; build the model with the settings that the "
            "checkpoint was made with."
        )
