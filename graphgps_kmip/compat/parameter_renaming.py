"""Parameters of another code, under its names, for a model of ours: every one must find its place, and fill it.

`Names` says how: an ordered table of patterns, as the one of the public codes in ``checkpoint_names``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from graphgps_kmip.common.torch_files import UnreadableFile, load_leaving_objects
from graphgps_kmip.errors import CheckpointError

State = dict[str, Tensor]
SHOWN = 3  # problems of a kind that an error names


@dataclass(frozen=True)
class States:
    """The two states between which a rule translates, by names without wrappers.

    Args:
        theirs: tensors of the file.
        ours: tensors of our model.
    """

    theirs: Mapping[str, Tensor]
    ours: Mapping[str, Tensor]


# What stands in a name of ours where the pattern matched theirs: a template of `re` (``r"layers.\1.conv."``), or a
# function, which returns None where it has no answer.
Form = str | Callable[[re.Match[str], States], str | None]


@dataclass(frozen=True)
class Dropped:
    """Tensors of the other code that ours does not need.

    Args:
        name: pattern of their names, searched for.
        why: the reason.
        where: only where this holds of the match and the tensors of the file; None: always.
    """

    name: str
    why: str
    where: Callable[[re.Match[str], Mapping[str, Tensor]], bool] | None = None


@dataclass(frozen=True)
class Filled:
    """Tensors of ours that the other code does not have.

    Args:
        name: pattern of their names, searched for.
        why: the reason.
        value: what they get; None: they stay as they are.
    """

    name: str
    why: str
    value: float | None = None


@dataclass(frozen=True)
class Names:
    """How the names of another code become ours.

    Args:
        wrappers: beginnings that count for nothing where all names have them, in their names and in ours.
        rules: (pattern, forms), applied in this order to what earlier rules made, each at the first place where its
            pattern is found; of several forms the first that leads to a name of ours counts.
        dropped: what of theirs may be left.
        filled: what of ours may stay.
        reasons: pattern of a name -> why it may not fit.
    """

    wrappers: tuple[str, ...]
    rules: tuple[tuple[str, tuple[Form, ...]], ...]
    dropped: tuple[Dropped, ...] = ()
    filled: tuple[Filled, ...] = ()
    reasons: tuple[tuple[str, str], ...] = ()


def read_state(path: Path) -> State:
    """Return the parameters in a checkpoint of ours, of GraphGym or of Lightning, on the CPU; no code is unpickled.

    What such a file holds besides, an optimizer inside the scheduler's state for one, is not looked at.

    Raises:
        CheckpointError: it cannot be read, or holds no parameters.
    """
    try:
        content, left = load_leaving_objects(path)
    except UnreadableFile as error:
        raise CheckpointError(f"The checkpoint {path} cannot be read ({error}); take another one.") from error
    states = (content.get(key) for key in ("model_state", "state_dict")) if isinstance(content, Mapping) else ()
    state = next((dict(state) for state in states if isinstance(state, Mapping) and state), None)
    if state is None:
        raise CheckpointError(f"The checkpoint {path} has no model_state; take one of GraphGym or this package.")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise CheckpointError(
                f"The checkpoint {path} holds {name} as {type(value).__name__} instead of a tensor; take another one."
            )
    if left:
        logging.info("of %s only the parameters are read, not the objects of %s", path, ", ".join(left))
    return state


def renamed(
    state: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    names: Names,
    path: Path,
    left: str = "(?!)",
    constants: Mapping[str, Tensor] | None = None,
) -> State:
    """Return a full state for our model: the tensors of the file under our names.

    A file of ours comes back as it is, for our names mean themselves. Tensors without numbers may be absent.

    Args:
        state: of the file.
        own: state of our model, whose names and shapes count.
        names: of the code that wrote it.
        path: the file, for the error.
        left: pattern of our names that keep their tensors, whatever the file has for them.
        constants: `constants_of` our model; where the file holds them, they must be equal.

    Raises:
        CheckpointError: names what is left over, missing or of another shape, and constants that differ.
    """
    ours = dict(zip(_unwrap(own, names.wrappers), own, strict=True))  # bare name -> name
    fixed = dict(zip(_unwrap(constants or {}, names.wrappers), (constants or {}).values(), strict=True))
    theirs = dict(zip(_unwrap(state, names.wrappers), state.values(), strict=True))
    found, problems = _place(theirs, {bare: own[name] for bare, name in ours.items()}, fixed, names, left)
    result, missing, misshapen = {}, [], []
    for name, wrapped in ours.items():
        value = theirs.get(found.get(name, ""))
        fill = next((row for row in names.filled if re.search(row.name, name)), None)
        if value is None:
            if not fill and not re.search(left, name) and own[wrapped].numel():
                missing.append(f"{name} {_show_shape(own[wrapped])} is missing in the file")
            value = own[wrapped] if not fill or fill.value is None else torch.full_like(own[wrapped], fill.value)
        elif value.shape != own[wrapped].shape:
            misshapen.append(f"{name} {_show_shape(value)} in the file, {_show_shape(own[wrapped])} here")
        result[wrapped] = value
    _complain([*problems, missing, misshapen], names.reasons, path)
    return result


def constants_of(model: nn.Module) -> State:
    """Return the buffers that a model keeps out of its state: what is published, not learned."""
    saved = model.state_dict().keys()
    return {name: value for name, value in model.named_buffers() if name not in saved}


def _place(theirs: State, ours: State, fixed: State, names: Names, left: str) -> tuple[dict[str, str], list[list[str]]]:
    """Return which tensor of the file each of ours is, by bare names, and what has no place, two or a wrong value."""
    find = finder(theirs, ours | fixed, names)
    found: dict[str, str] = {}  # ours -> theirs
    over, double, other = [], [], []
    for name, value in theirs.items():
        candidates = list(find(name))
        fits = [candidate for candidate in candidates if candidate in ours or candidate in fixed]
        if any(re.search(left, candidate) for candidate in (fits or candidates)):
            continue
        if not fits:
            needed = value.numel() and not _is_dropped(name, theirs, names.dropped)
            over += [f"{name} {_show_shape(value)} is left over"] if needed else []
        elif fits[0] in fixed:
            same = _is_equal(value, fixed[fits[0]])
            other += [] if same else [f"{name} differs from the constant {fits[0]} of the model"]
        elif fits[0] in found:
            double.append(f"{found[fits[0]]} and {name} both are {fits[0]}")
        else:
            found[fits[0]] = name
    return found, [over, double, other]


def _is_equal(value: Tensor, constant: Tensor) -> bool:
    """Tell whether two constants are equal but for the rounding of float32."""
    if value.shape != constant.shape:
        return False
    return bool((value.double() - constant.double()).abs().le(1e-6 * constant.abs()).all())


def _unwrap(names: Iterable[str], wrappers: Iterable[str]) -> list[str]:
    names = list(names)
    for wrapper in wrappers:
        if all(name.startswith(wrapper) for name in names):
            names = [name.removeprefix(wrapper) for name in names]
    return names


def _is_dropped(name: str, theirs: Mapping[str, Tensor], dropped: Iterable[Dropped]) -> bool:
    matches = ((re.search(row.name, name), row.where) for row in dropped)
    return any(match and (where is None or where(match, theirs)) for match, where in matches)


def _show_shape(tensor: Tensor) -> str:
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


def finder(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], names: Names) -> Callable[[str], Iterator[str]]:
    """Return a function from a name of theirs to all that it may be in ours, most likely first."""
    states = States(theirs, ours)
    rules = [(re.compile(pattern), forms) for pattern, forms in names.rules]

    def find(name: str) -> Iterator[str]:
        if name in ours:
            yield name
            return
        candidates = [name]
        for pattern, forms in rules:
            candidates = list(chain.from_iterable(_translate_name(name, pattern, forms, states) for name in candidates))
        yield from candidates

    return find


def _translate_name(name: str, pattern: re.Pattern[str], forms: tuple[Form, ...], states: States) -> list[str]:
    match = pattern.search(name)
    if match is None:
        return [name]
    middles = [match.expand(form) if isinstance(form, str) else form(match, states) for form in forms]
    return [name[: match.start()] + part + name[match.end() :] for part in middles if part is not None] or [name]


def rank(match: re.Match[str], group: int, names: Mapping[str, Tensor]) -> int:
    """Return which one a matched number is among those that names have at its place behind the same beginning.

    Args:
        match: of a pattern that begins with ``^``.
        group: of the number in the pattern.
        names: where the others are looked for.
    """
    start = match.string[: match.start(group)]
    matches = (match.re.match(name) for name in names if name.startswith(start))
    numbers = {int(other[group]) for other in matches if other and other.start(group) == len(start)} | {
        int(match[group])
    }
    return sorted(numbers).index(int(match[group]))


def linear_maps(ours: Mapping[str, Tensor], prefix: str) -> list[int]:
    """Return the numbers of the linear maps of a Sequential, in order.

    Args:
        ours: tensors of our model.
        prefix: name of the Sequential, with its dot.
    """
    return [i for i in _numbers(ours, prefix) if getattr(ours.get(f"{prefix}{i}.weight"), "ndim", 0) == 2]


def behind_linear(ours: Mapping[str, Tensor], prefix: str, index: int) -> list[int]:
    """Return the numbers of the modules with parameters between a linear map of a Sequential and the next one.

    Args:
        ours: tensors of our model.
        prefix: name of the Sequential, with its dot.
        index: which linear map, counted from 0.
    """
    maps = linear_maps(ours, prefix)
    if index >= len(maps):
        return []
    end = maps[index + 1] if index + 1 < len(maps) else float("inf")
    return [i for i in _numbers(ours, prefix) if maps[index] < i < end]


def _numbers(names: Mapping[str, Tensor], prefix: str) -> list[int]:
    matches = (re.match(re.escape(prefix) + r"(\d+)\.", name) for name in names)
    return sorted({int(match[1]) for match in matches if match})
