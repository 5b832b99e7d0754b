"""The table of data sets: ``dataset.format`` and ``dataset.name`` -> `DatasetRecord`."""

from __future__ import annotations

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.data.dataset_record import DatasetRecord
from graphgps_kmip.errors import InputError

DATASETS: dict[tuple[str, str], DatasetRecord] = {}
NAMELESS = ("", "none")  # GraphGym's ways to leave dataset.name out


def register(record: DatasetRecord) -> DatasetRecord:
    """Add a data set to the table; adding the same record twice is harmless.

    Raises:
        ValueError: another data set has this format and name.
    """
    key = (record.format, record.name)
    if DATASETS.setdefault(key, record) != record:
        raise InputError(f"the data set {record.key} is registered already: give yours another format or name")
    return record


def find(format: str, name: str = "") -> DatasetRecord:  # noqa: A002 (the config key's name)
    """Return the record of a data set.

    Args:
        format: value of ``dataset.format``.
        name: value of ``dataset.name``; "" or "none" for a format with one nameless data set.

    Raises:
        ValueError: no such data set; near misses are suggested.
    """
    records = {record.name: record for record in DATASETS.values() if record.format == format}
    if not records:
        raise InputError(f"dataset.format: unknown {format!r}.{suggest(format, {key[0] for key in DATASETS})}")
    name = "" if name in NAMELESS and "" in records else name
    if name not in records:
        raise InputError(f"dataset.name: {format} has no {name!r}.{suggest(name, [one or 'none' for one in records])}")
    return records[name]


def find_title(name: str) -> DatasetRecord:
    """Return the record of a data set by what people call it, or by format/name; capitals do not matter.

    Raises:
        ValueError: no such data set; near misses are suggested.
    """
    named = {record.key.lower(): record for record in DATASETS.values()}
    named |= {record.title.lower(): record for record in reversed(DATASETS.values())}
    if name.lower() not in named:
        raise InputError(f"--data: unknown {name!r}.{suggest(name, [one.title for one in DATASETS.values()])}")
    return named[name.lower()]
