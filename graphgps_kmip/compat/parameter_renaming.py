"""Parameters of another code, under its names, for a model of ours: each must find its place, and fill it.

`Names` is an ordered table of patterns, such as those of the public codes in ``checkpoint_names``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from graphgps_kmip.common.torch_files import UnreadableFile, load_leaving_objects
from graphgps_kmip.errors import CheckpointError

State = dict[str, Tensor]
SHOWN = 3  # problems of a kind that an error names
# Beginnings that are ignored where all names have them: of DistributedDataParallel and of GraphGym.
WRAPPERS = ("module.", "model.")
# Pattern in an error -> reason why a parameter may not fit.
REASONS = {
    r"(atom|bond)_embedding_list": "the vocabularies of atoms and bonds differ between versions of ogb",
    r"\.mean_scale\b": "GraphNorm's, which gt.layer_norm means in the dialects exphormer and kmip-thesis",
    r"\bpost_mp\.|\bhead\.": "for a new prediction head set pretrained.reset_prediction_head True",
}


class States(NamedTuple):
    """Tensors of the file and of our model, by names without wrappers."""

    file: Mapping[str, Tensor]
    model: Mapping[str, Tensor]


# The part of our name in place of a match in theirs: a template of `re` (``r"layers.\1.conv."``), or a function, which
# may return None.
Form = str | Callable[[re.Match[str], States], str | None]
Condition = Callable[[re.Match[str], Mapping[str, Tensor]], bool]  # of a match and the tensors of the file


@dataclass(frozen=True)
class Names:
    """How the names of another code become ours; all patterns are searched for."""

    # (pattern, forms), applied in this order to the results of earlier rules, each at the first place of its pattern;
    # of several forms the first that leads to a name of ours counts
    rules: tuple[tuple[str, tuple[Form, ...]], ...]
    # (pattern, condition or None: always) of tensors of theirs that ours does not need
    dropped: tuple[tuple[str, Condition | None], ...] = ()
    # pattern of tensors of ours that they do not have -> value; None: they stay as they are
    filled: Mapping[str, float | None] = field(default_factory=dict)


def read_state(path: Path) -> State:
    """Return the parameters in a checkpoint of ours, of GraphGym or of Lightning, on the CPU; no code is unpickled."""
    try:
        content, left = load_leaving_objects(path)
    except UnreadableFile as error:
        raise CheckpointError(f"The checkpoint {path} cannot be read ({error}); take another one.") from error
    states = (content.get(key) for key in ("model_state", "state_dict")) if isinstance(content, Mapping) else ()
    state = next((dict(state) for state in states if isinstance(state, Mapping) and state), None)
    if state is None:
        raise CheckpointError(f"The checkpoint {path} has no model_state; take one of GraphGym or this package.")
    if left:
        logging.info("of %s only the parameters are read, not the objects of %s", path, ", ".join(left))
    return state


def rename_parameters(
    state: Mapping[str, Tensor],
    model_state: Mapping[str, Tensor],
    names: Names,
    path: Path,
    left: str = "(?!)",
    constants: Mapping[str, Tensor] | None = None,
) -> State:
    """Return a full state for our model: the tensors of the file under our names.

    A file of ours comes back as it is, for our names mean themselves. Tensors without numbers may be absent.

    Args:
        state: of the file.
        model_state: of our model, whose names and shapes count.
        names: of the code that wrote it.
        path: the file, for the error.
        left: pattern of our names that keep their tensors, whatever the file has for them.
        constants: of our model, by `list_constants`; where the file holds them, they must be equal.

    Raises:
        CheckpointError: names what is left over, missing or of another shape, and constants that differ.
    """
    full_names = dict(zip(_unwrap(model_state), model_state, strict=True))  # bare name -> name
    fixed = dict(zip(_unwrap(constants or {}), (constants or {}).values(), strict=True))
    file = dict(zip(_unwrap(state), state.values(), strict=True))
    model = {bare: model_state[name] for bare, name in full_names.items()}
    places, problems = _place(file, model, fixed, names, left)
    result, missing, misshapen = {}, [], []
    for name, tensor in model.items():
        value = file.get(places.get(name, ""))
        if value is None:
            fills = [fill for pattern, fill in names.filled.items() if re.search(pattern, name)]
            if not fills and not re.search(left, name) and tensor.numel():
                missing.append(f"{name} {_show_shape(tensor)} is missing in the file")
            value = tensor if not fills or fills[0] is None else torch.full_like(tensor, fills[0])
        elif value.shape != tensor.shape:
            misshapen.append(f"{name} {_show_shape(value)} in the file, {_show_shape(tensor)} here")
        result[full_names[name]] = value
    _raise_problems([*problems, missing, misshapen], path)
    return result


def list_constants(model: nn.Module) -> State:
    """Return the buffers that a model keeps out of its state: published constants, which are not learned."""
    saved = model.state_dict().keys()
    return {name: value for name, value in model.named_buffers() if name not in saved}


def _place(file: State, model: State, fixed: State, names: Names, left: str) -> tuple[dict[str, str], list[list[str]]]:
    """Return our name -> name in the file, both bare, and tensors without place, with two or of a wrong value."""
    find = finder(file, model | fixed, names)
    places: dict[str, str] = {}
    unused, double, different = [], [], []
    for name, value in file.items():
        candidates = list(find(name))
        fits = [candidate for candidate in candidates if candidate in model or candidate in fixed]
        if any(re.search(left, candidate) for candidate in (fits or candidates)):
            continue
        if not fits:
            if value.numel() and not _is_dropped(name, file, names):
                unused.append(f"{name} {_show_shape(value)} is left over")
        elif fits[0] in fixed:
            if not _is_equal(value, fixed[fits[0]]):
                different.append(f"{name} differs from the constant {fits[0]} of the model")
        elif fits[0] in places:
            double.append(f"{places[fits[0]]} and {name} both are {fits[0]}")
        else:
            places[fits[0]] = name
    return places, [unused, double, different]


def _is_equal(value: Tensor, constant: Tensor) -> bool:
    if value.shape != constant.shape:
        return False
    return bool((value.double() - constant.double()).abs().le(1e-6 * constant.abs()).all())


def _unwrap(names: Iterable[str]) -> list[str]:
    names = list(names)
    for wrapper in WRAPPERS:
        if all(name.startswith(wrapper) for name in names):
            names = [name.removeprefix(wrapper) for name in names]
    return names


def _is_dropped(name: str, file: Mapping[str, Tensor], names: Names) -> bool:
    matches = ((re.search(pattern, name), condition) for pattern, condition in names.dropped)
    return any(match and (condition is None or condition(match, file)) for match, condition in matches)


def _show_shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def _raise_problems(problems: Iterable[list[str]], path: Path) -> None:
    shown = []
    for kind in problems:
        shown += kind[:SHOWN] + [f"and {len(kind) - SHOWN} more"] * (len(kind) > SHOWN)
    if shown:
        text = "; ".join(shown)
        why = "".join(f" ({reason})" for pattern, reason in REASONS.items() if re.search(pattern, text))
        raise CheckpointError(
            f"The checkpoint {path} does not fit the model: {text}{why}; build the model with the settings that the "
            "checkpoint was made with."
        )


def finder(file: Mapping[str, Tensor], model: Mapping[str, Tensor], names: Names) -> Callable[[str], Iterator[str]]:
    """Return a function from a name of theirs to its candidates in ours, most likely first."""
    states = States(file, model)
    rules = [(re.compile(pattern), forms) for pattern, forms in names.rules]

    def find(name: str) -> Iterator[str]:
        if name in model:
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
    """Return the rank of the number in a group of a match (from ``^``) among all names with the same beginning."""
    start = match.string[: match.start(group)]
    matches = (match.re.match(name) for name in names if name.startswith(start))
    numbers = {int(other[group]) for other in matches if other and other.start(group) == len(start)}
    return sorted(numbers | {int(match[group])}).index(int(match[group]))


def find_linear_maps(model: Mapping[str, Tensor], prefix: str) -> list[int]:
    """Return the numbers of the linear maps of a Sequential of this name (with its dot), in order."""
    return [i for i in _list_modules(model, prefix) if getattr(model.get(f"{prefix}{i}.weight"), "ndim", 0) == 2]


def find_modules_after(model: Mapping[str, Tensor], prefix: str, index: int) -> list[int]:
    """Return the numbers of the modules with parameters between a linear map of a Sequential and the next one."""
    maps = find_linear_maps(model, prefix)
    if index >= len(maps):
        return []
    end = maps[index + 1] if index + 1 < len(maps) else float("inf")
    return [i for i in _list_modules(model, prefix) if maps[index] < i < end]


def _list_modules(names: Mapping[str, Tensor], prefix: str) -> list[int]:
    matches = (re.match(re.escape(prefix) + r"(\d+)\.", name) for name in names)
    return sorted({int(match[1]) for match in matches if match})
