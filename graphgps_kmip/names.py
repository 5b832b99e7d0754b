"""Near misses of a misspelt name, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(name: str, allowed: Iterable[str], limit: int = 3) -> str:
    """Return `` Did you mean a or b?`` where something is near, else `` Allowed: ...`` with all names."""
    names = {str(one).lower(): str(one) for one in sorted(allowed, key=str)}
    close = [names[one] for one in difflib.get_close_matches(str(name).lower(), names, n=limit)]
    if close:
        return f" Did you mean {' or '.join(close)}?"
    return f" Allowed: {', '.join(names.values())}."


def near_misses(name: str, allowed: Iterable[str]) -> str:
    """Return `` Did you mean a or b?`` where something is near, else nothing."""
    text = suggest(name, allowed)
    return text if text.startswith(" Did you mean") else ""
