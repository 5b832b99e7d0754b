"""Data sets by name: ``dataset.format`` and ``dataset.name`` -> `DatasetRecord`, and `register` of one more."""

from __future__ import annotations

from graphgps_kmip import registry
from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.data.dataset_record import DatasetRecord
from graphgps_kmip.errors import InputError

NAMELESS = ("", "none")  # GraphGym's ways to leave dataset.name out


def datasets() -> dict[tuple[str, str], DatasetRecord]:
    """Return the registered data sets by format and name."""
    records = (spec.component for spec in registry.entries("dataset").values())
    return {(record.format, record.name): record for record in records}


def register(record: DatasetRecord) -> DatasetRecord:
    """Register a data set; registering the same record again is harmless.

    Raises:
        ConfigError: another data set has this format and name.
    """
    return registry.register("dataset", record.key, record, summary=f"{record.title}: {record.summary}")


def find(format: str, name: str = "") -> DatasetRecord:  # noqa: A002 (the config key's name)
    """Return the record of a data set.

    Args:
        format: value of ``dataset.format``.
        name: value of ``dataset.name``; "" or "none" for a format with one nameless data set.

    Raises:
        ValueError: no such data set; near misses are suggested.
    """
    known = datasets()
    records = {record.name: record for record in known.values() if record.format == format}
    if not records:
        raise InputError(f"dataset.format: unknown {format!r}.{suggest(format, {key[0] for key in known})}")
    name = "" if name in NAMELESS and "" in records else name
    if name not in records:
        raise InputError(f"dataset.name: {format} has no {name!r}.{suggest(name, [one or 'none' for one in records])}")
    return records[name]


def find_title(name: str) -> DatasetRecord:
    """Return the record of a data set by what people call it, or by format/name; capitals do not matter.

    Raises:
        ValueError: no such data set; near misses are suggested.
    """
    records = list(datasets().values())
    known = {record.key.lower(): record for record in records}
    known |= {record.title.lower(): record for record in reversed(records)}
    if name.lower() not in known:
        raise InputError(f"--data: unknown {name!r}.{suggest(name, [one.title for one in records])}")
    return known[name.lower()]
