"""Tables, figures and pages from results on disk; nothing here trains.

`draw_attention` and `draw_curves` are loaded when they are first used, for matplotlib takes a second to import.
"""

from __future__ import annotations

import importlib
from typing import Any

from graphgps_kmip.report.aggregate import aggregate, check_results

# Name -> module that has it.
_LAZY = {
    "draw_attention": "graphgps_kmip.report.figures.attention_graphs",
    "draw_curves": "graphgps_kmip.report.learning_curves",
}
__all__ = ["aggregate", "check_results", *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
