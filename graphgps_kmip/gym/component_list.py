"""Listing of registered components, ``python main.py --list [NAME*]``: one line each, by kind."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from graphgps_kmip.common.environment import train_command
from graphgps_kmip.common.near_misses import near_misses
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.graphgym_registries import GRAPHGYM_REGISTRIES
from graphgps_kmip.registry import KINDS, entries

HEADINGS = {
    "attention": "attention (part of gt.layer_type)",
    "message_passing": "message passing (part of gt.layer_type)",
    "encoding": "encoding (further parts of dataset.node_encoder_name, with posenc_<name>.enable True)",
    "dataset": f"data set (dataset.format / dataset.name; {train_command()} --data TITLE)",
}
EDGE_ENCODINGS = "encoding of edges (further parts of dataset.edge_encoder_name)"


def listing(patterns: Sequence[str] = ("*",)) -> str:
    """Return the components of such names, with ``*``, ``?`` and ``[...]`` as in a shell, a table for each kind."""
    tables = _tables()
    all_names = {name for rows in tables.values() for names, _ in rows.values() for name in names}
    for pattern in patterns:
        if not _fit(all_names, [pattern]):
            near = near_misses(pattern, all_names) or " `--list` alone shows all."
            wider = f"*{pattern.strip('*')}*"
            hint = "" if wider == pattern else f" '{wider}' finds parts of names."
            raise ConfigError(f"--list: no component has the name {pattern!r}.{near}{hint}")
    texts = []
    for title, rows in tables.items():
        lines = {key: line for key, (names, line) in rows.items() if _fit(names, patterns)}
        width = max(map(len, lines), default=0)
        texts.append([title, *(f"  {key:<{width}}  {lines[key]}".rstrip() for key in sorted(lines, key=str.lower))])
    return "\n\n".join("\n".join(text) for text in texts if len(text) > 1)


def _fit(names: Iterable[str], patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name.lower(), pattern.lower()) for name in names for pattern in patterns)


def _tables() -> dict[str, dict[str, tuple[set[str], str]]]:
    """Return title -> what is printed -> (all names of a component, its line), those of other packages too."""
    tables: dict[str, dict[str, tuple[set[str], str]]] = {}
    for kind, row in KINDS.items():
        title, specs = HEADINGS.get(kind, f"{row.title} ({row.key})"), entries(kind).values()
        registered = {name for spec in specs for name in (spec.name, *spec.aliases)}
        tables[title] = {
            str(name): ({str(name)}, (inspect.getdoc(entry) or "").split("\n")[0])
            for name, entry in GRAPHGYM_REGISTRIES.get(kind, {}).items()
            if name not in registered and name is not None
        }
        for spec in specs:
            key, names = " or ".join((spec.name, *spec.aliases)), {spec.name, *spec.aliases}
            if kind == "dataset":
                record = spec.component
                key = f"{record.format} / {record.name or 'none'}"
                names = {key, record.title, record.format, record.name} - {""}
            on_edges = kind == "encoding" and spec.component.on_edges
            tables.setdefault(EDGE_ENCODINGS if on_edges else title, {})[key] = (names, spec.summary)
    return tables
