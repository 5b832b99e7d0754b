"""Listing of registered components, ``python main.py --list [NAME*]``: one line each, by kind."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from graphgps_kmip.common.near_misses import near_misses
from graphgps_kmip.common.project import train_command
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.graphgym_registries import GRAPHGYM_REGISTRIES
from graphgps_kmip.registry import KINDS, Spec, entries

# Kinds whose key needs more words than `KINDS` has.
HEADINGS = {
    "attention": "attention (part of gt.layer_type)",
    "message_passing": "message passing (part of gt.layer_type)",
    "encoding": "encoding (further parts of dataset.node_encoder_name, with posenc_<name>.enable True)",
    "dataset": f"data set (dataset.format / dataset.name; {train_command()} --data TITLE)",
}
EDGE_ENCODINGS = "encoding of edges (further parts of dataset.edge_encoder_name)"


def listing(patterns: Sequence[str] = ("*",)) -> str:
    """Return the components that have one of the given names as text, a table for each kind.

    Args:
        patterns (default: all): names, in upper or lower case; ``*``, ``?`` and ``[...]`` stand for what they do in a
            shell. A data set has several: its title, ``dataset.format``, ``dataset.name``, and ``format / name``.

    Raises:
        ConfigError: a pattern fits nothing, with near misses.
    """
    tables = _tables()
    known = {name for rows in tables.values() for names, _ in rows.values() for name in names}
    for pattern in patterns:
        if not any(_fits(name, pattern) for name in known):
            near = near_misses(pattern, known) or " `--list` alone shows all."
            wider = f"*{pattern.strip('*')}*"
            hint = "" if wider == pattern else f" '{wider}' finds parts of names."
            raise ConfigError(f"--list: no component has the name {pattern!r}.{near}{hint}")
    shown = {
        title: {key: line for key, (names, line) in rows.items() if any(_fits(n, p) for n in names for p in patterns)}
        for title, rows in tables.items()
    }
    return "\n\n".join(_table(title, rows) for title, rows in shown.items() if rows)


Rows = dict[str, tuple[set[str], str]]  # what is printed -> (all that a component is called, its line)


def _tables() -> dict[str, Rows]:
    """Return the rows of each kind, those that others registered with GraphGym included."""
    tables: dict[str, Rows] = {}
    for kind, row in KINDS.items():
        title = HEADINGS.get(kind, f"{row.title} ({row.key})")
        tables[title] = {name: ({name}, line) for name, line in _others(kind).items()}
        for spec in entries(kind).values():
            on_edges = kind == "encoding" and spec.component.on_edges
            shown, names = _names(spec)
            tables.setdefault(EDGE_ENCODINGS if on_edges else title, {})[shown] = (names, spec.summary)
    return tables


def _others(kind: str) -> dict[str, str]:
    """Return name -> line of what GraphGym itself or another package registered."""
    ours = {name for spec in entries(kind).values() for name in (spec.name, *spec.aliases)}
    registry: Mapping[Any, Any] = GRAPHGYM_REGISTRIES.get(kind, {})
    return {
        str(name): (inspect.getdoc(entry) or "").split("\n")[0]
        for name, entry in registry.items()
        if name not in ours and name is not None
    }


def _names(spec: Spec) -> tuple[str, set[str]]:
    """Return how a component is printed, and all that it is called."""
    if spec.kind != "dataset":
        return " or ".join((spec.name, *spec.aliases)), {spec.name, *spec.aliases}
    record = spec.component
    shown = f"{record.format} / {record.name or 'none'}"
    return shown, {shown, record.title, record.format, record.name} - {""}


def _table(title: str, rows: Mapping[str, str]) -> str:
    width = max(map(len, rows), default=0)
    return "\n".join([title, *(f"  {name:<{width}}  {rows[name]}".rstrip() for name in sorted(rows, key=str.lower))])


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name.lower(), pattern.lower())
