"""Durations as text, and the date that goes into a record: one way each for logs, tables, progress lines and axes."""

from __future__ import annotations

from datetime import datetime

UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))  # size, unit, size and unit of the rest


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: ``0.25 s``, ``45 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    whole = round(seconds)
    for size, unit, part_size, part in UNITS:
        if whole >= size:
            rest = whole % size // part_size
            return f"{whole // size} {unit}{f' {rest} {part}' if rest else ''}"
    return f"{whole} s" if whole >= 1 or seconds == 0 else f"{seconds:.2g} s"


def axis_duration(milliseconds: float, _: object = None) -> str:
    """Return a duration in one unit, with three digits; fits matplotlib's `FuncFormatter`."""
    if milliseconds >= 1000:
        seconds = milliseconds / 1000
        return f"{seconds:,.0f} s" if seconds >= 1000 else f"{seconds:.3g} s"
    return f"{milliseconds:.3g} ms" if milliseconds >= 0.1 or milliseconds == 0 else f"{1000 * milliseconds:.3g} µs"


def now() -> str:
    """Return the date and time with the zone of this machine, as records hold them: ``2026-01-31T12:00:00+01:00``."""
    return datetime.now().astimezone().isoformat(timespec="seconds")
