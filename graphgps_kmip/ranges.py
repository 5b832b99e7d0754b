"""Allowed values of settings: ranges, choices and lengths, declared with the default that they belong to.

``str(rule)`` says what a rule allows, and `refusal` why it refuses a value. Rules do not convert.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from graphgps_kmip.common.near_misses import suggest

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


class Rule(Protocol):
    """What a setting may be."""

    def allows(self, value: Any) -> bool:
        """Return whether the value is allowed."""
        ...


@dataclass(frozen=True)
class Default:
    """A default and the rule for the values that may replace it."""

    value: Any
    rule: Rule


def read_default(entry: Any) -> Any:
    """Return the default of a table's entry, which may be alone or have a rule."""
    return entry.value if isinstance(entry, Default) else entry


@dataclass(frozen=True)
class Range:
    """Finite numbers from ``low`` to ``high``, without ``low`` itself if ``above``, without ``high`` if ``below``."""

    low: float | None = None
    high: float | None = None
    above: bool = False
    below: bool = False
    whole: bool = False

    def allows(self, value: Any) -> bool:
        """Return whether the value is a number of this range."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return False
        over = self.low is None or (value > self.low if self.above else value >= self.low)
        under = self.high is None or (value < self.high if self.below else value <= self.high)
        return over and under

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a finite number"
        if self.low is not None and self.high is not None and not (self.above or self.below):
            return f"{kind} from {self.low} to {self.high}"
        ends = []
        if self.low is not None:
            ends.append(f"above {self.low}" if self.above else f"of at least {self.low}")
        if self.high is not None:
            ends.append(f"below {self.high}" if self.below else f"of at most {self.high}")
        return f"{kind} {' and '.join(ends)}".strip()


@dataclass(frozen=True)
class Choice:
    """One of some names; ``names`` may be a function for names that are registered later."""

    names: Iterable[Any] | Callable[[], Iterable[Any]]

    def all(self) -> list[Any]:
        """Return the names."""
        return list(self.names() if callable(self.names) else self.names)

    def allows(self, value: Any) -> bool:
        """Return whether the value is one of the names."""
        return any(type(value) is type(name) and value == name for name in self.all())

    def __str__(self) -> str:
        names = [repr(name) if name in ("", None) else str(name) for name in self.all()]
        return " or ".join(names) if len(names) == 1 or self == FLAG else f"one of {', '.join(names)}"


@dataclass(frozen=True)
class Text:
    """Text that can be printed, such as a path; ``limit`` bytes at most, and ``part`` in each part of a path."""

    limit: int = 4096
    empty: bool = True
    part: int = 4096

    def allows(self, value: Any) -> bool:
        """Return whether the value is such text."""
        return (
            isinstance(value, str)
            and (self.empty or bool(value.strip()))
            and len(value.encode(errors="surrogatepass")) <= self.limit
            and max(map(len, value.encode(errors="surrogatepass").split(b"/"))) <= self.part
            and not any(ord(sign) < 32 or ord(sign) == 127 for sign in value)
        )

    def __str__(self) -> str:
        parts = f" and {self.part} in each part of a path" if self.part < self.limit else ""
        kind = "text" if self.empty else "non-empty text"
        return f"{kind} without control characters, of at most {self.limit} bytes{parts}"


@dataclass(frozen=True)
class Pattern:
    """Text that a regular expression matches as a whole; the description says which texts these are."""

    pattern: str
    description: str

    def allows(self, value: Any) -> bool:
        """Return whether the value is such a text."""
        return isinstance(value, str) and re.fullmatch(self.pattern, value) is not None

    def __str__(self) -> str:
        return self.description


@dataclass(frozen=True)
class Each:
    """A list of ``low`` to ``high`` entries that all satisfy one rule."""

    rule: Rule
    low: int = 0
    high: int = 1000

    def allows(self, value: Any) -> bool:
        """Return whether the value is such a list."""
        return (
            isinstance(value, (list, tuple))
            and self.low <= len(value) <= self.high
            and all(self.rule.allows(entry) for entry in value)
        )

    def __str__(self) -> str:
        length = f"{self.low}" if self.low == self.high else f"{self.low} to {self.high}"
        return f"a list of {length} entries, each {self.rule}"


@dataclass(frozen=True)
class Either:
    """What one of some rules allows."""

    rules: tuple[Rule, ...]

    def allows(self, value: Any) -> bool:
        """Return whether one of the rules allows the value."""
        return any(rule.allows(value) for rule in self.rules)

    def __str__(self) -> str:
        return " or ".join(map(str, self.rules))


@dataclass(frozen=True)
class Registered:
    """Text that names registry entries, which are looked up, with near misses, when they are built."""

    where: str

    def allows(self, value: Any) -> bool:
        """Return whether the value can be a name at all."""
        return Text(1000).allows(value)

    def __str__(self) -> str:
        return f"a name ({self.where})"


def whole(low: int | None = None, high: int | None = None) -> Range:
    """Return the range of whole numbers from ``low`` to ``high``."""
    return Range(low, high, whole=True)


def optional(rule: Rule) -> Either:
    """Return the rule that allows None as well."""
    return Either((rule, Choice((None,))))


# Ranges that many settings share. The upper bounds catch typos (an extra digit) before they exhaust memory.
FLAG = Choice((True, False))
COUNT = whole(1, 10**9)
NATURAL = whole(0, 10**9)
WIDTH = whole(1, 65_536)
LAYERS = whole(1, 1000)
SOME_LAYERS = whole(0, 1000)
HEADS = whole(1, 1024)
FRACTION = Range(0, 1)
DROPOUT = Range(0, 1, below=True)
POSITIVE = Range(0, 1e30, above=True)
RATIO = Range(0, 1000, above=True)  # of two widths
NOT_NEGATIVE = Range(0, 1e30)
SEED = whole(0, 2**32 - 1)  # what numpy's generators take
TEXT = Text()
PATH = Text(2000, part=200)  # file systems take 255 bytes in a part; file names of ours begin with some of them


def refusal(rule: Rule, value: Any) -> str:
    """Return why a rule refuses a value, in words that follow the name of the setting; "" if it allows it."""
    if rule.allows(value):
        return ""
    hint = ""
    if isinstance(rule, Choice) and isinstance(value, str):
        hint = suggest(value[:100], [name for name in rule.all() if isinstance(name, str)])
        hint = hint if "Did you mean" in hint else ""
    return f"expected {rule}, got {_SHORT.repr(value)}.{hint}"
