"""From the names of another code's parameters to ours: rules as data, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain


@dataclass(frozen=True)
class Dropped:
    """Tensors of the other code that ours does not need.

    Args:
        name: pattern of their names, searched for.
        why: the reason.
        unless: pattern; they are needed where a name begins so. Groups of `name` may stand in it.
        zero: only if all their numbers are 0.
        same: only if equal to the tensor of the name in which this stands in place of what `name` found.
    """

    name: str
    why: str
    unless: str = ""
    zero: bool = False
    same: str = ""


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
    r"""How the names of another code become ours.

    Args:
        wrappers: beginnings that count for nothing where all names have them, in their names and in ours.
        rules: (pattern, our forms), applied in this order to what earlier rules made; of several forms the first that
            leads to a name of ours counts. In a form ``<\1*3+2>`` is arithmetic, ``{2}`` the place of group 2 among
            the numbers that stand there in the file, and ``[0]`` or ``[-1]`` the first or last linear map of a
            Sequential of ours, ``[0]+1`` the module after it.
        dropped: what of theirs may be left.
        filled: what of ours may stay.
        reasons: pattern of a name -> why it may not fit.
    """

    wrappers: tuple[str, ...]
    rules: tuple[tuple[str, tuple[str, ...]], ...]
    dropped: tuple[Dropped, ...] = ()
    filled: tuple[Filled, ...] = ()
    reasons: tuple[tuple[str, str], ...] = ()


def finder(theirs: Iterable[str], ours: Iterable[str], names: Names) -> Callable[[str], Iterator[str]]:
    """Return a function from a name of theirs to all that it may be in ours, most likely first."""
    theirs, ours = list(theirs), set(ours)
    places: dict[tuple[str, str], list[int]] = {}

    def place(pattern: str, match: re.Match[str], group: int) -> str:
        """Return which one it is of the numbers that stand behind the same beginning in the file."""
        start = match.string[: match.start(group)]
        if (pattern, start) not in places:
            found = (re.match(pattern, other) for other in theirs)
            numbers = {int(one[group]) for one in found if one and one.string[: one.start(group)] == start}
            places[pattern, start] = sorted(numbers)
        return str(places[pattern, start].index(int(match[group])))

    def forms(pattern: str, forms_: tuple[str, ...], name: str) -> Iterator[str]:
        match = re.search(pattern, name)
        if match is None:
            yield name
            return
        for form in forms_:
            form = re.sub(r"\{(\d)\}", lambda group: place(pattern, match, int(group[1])), form)
            yield name[: match.start()] + _calculated(match.expand(form)) + name[match.end() :]

    def find(name: str) -> Iterator[str]:
        if name in ours:
            yield name
            return
        candidates = [name]
        for pattern, forms_ in names.rules:
            candidates = list(chain.from_iterable(forms(pattern, forms_, one) for one in candidates))
        yield from (_counted(one, ours) for one in candidates)

    return find


def _calculated(name: str) -> str:
    def value(match: re.Match[str]) -> str:
        return str(int(match[1]) * int(match[2] or 1) + int(match[3] or 0))

    return re.sub(r"<(\d+)(?:\*(\d+))?([+-]\d+)?>", value, name)


def _counted(name: str, ours: Iterable[str]) -> str:
    """Replace ``[i]`` by the number that the i-th linear map of a Sequential has."""
    match = re.match(r"(.*\.)\[(-?\d+)\](?:\+(\d+))?", name)
    if match is None:
        return name
    weights = (re.fullmatch(re.escape(match[1]) + r"(\d+)\.weight", one) for one in ours)
    maps = sorted(int(one[1]) for one in weights if one)  # norms of ours are one level deeper
    index = int(match[2])
    if not -len(maps) <= index < len(maps):
        return name
    return f"{match[1]}{maps[index] + int(match[3] or 0)}{name[match.end() :]}"
