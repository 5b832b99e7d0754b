"""Records of the built-in data sets, one family per file, each as ``RECORDS``."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from graphgps_kmip.data.dataset_record import DatasetRecord


def all_records() -> list[DatasetRecord]:
    """Return the records of every family, families in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [record for name in names for record in import_module(f"{__name__}.{name}").RECORDS]
