"""Parameter names of another code translated to ours: an ordered table of patterns, and what it is applied to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from torch import Tensor


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
            candidates = list(chain.from_iterable(_translated(one, pattern, forms, states) for one in candidates))
        yield from candidates

    return find


def _translated(name: str, pattern: re.Pattern[str], forms: tuple[Form, ...], states: States) -> list[str]:
    match = pattern.search(name)
    if match is None:
        return [name]
    middles = [match.expand(form) if isinstance(form, str) else form(match, states) for form in forms]
    return [name[: match.start()] + one + name[match.end() :] for one in middles if one is not None] or [name]


def rank(match: re.Match[str], group: int, names: Mapping[str, Tensor]) -> int:
    """Return which one a matched number is among those that names have at its place behind the same beginning.

    Args:
        match: of a pattern that begins with ``^``.
        group: of the number in the pattern.
        names: where the others are looked for.
    """
    start = match.string[: match.start(group)]
    found = (match.re.match(name) for name in names if name.startswith(start))
    numbers = {int(one[group]) for one in found if one and one.start(group) == len(start)} | {int(match[group])}
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
    found = (re.match(re.escape(prefix) + r"(\d+)\.", name) for name in names)
    return sorted({int(one[1]) for one in found if one})
