"""Data sets: records and their registry, raw files, splits, derived facts (`DatasetInfo`), encodings and loaders."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from graphgps_kmip.data import sets
from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.dataset_info import DatasetInfo
from graphgps_kmip.data.dataset_record import (
    DatasetRecord,
    Features,
    RawFiles,
    Source,
    Statistics,
    card_text,
    datasets,
    find,
    find_title,
    mismatches,
    published_rows,
    register_dataset,
)
from graphgps_kmip.data.loaders import GraphLoader, make_loaders
from graphgps_kmip.data.node_loader import NodeLoader, Sampling
from graphgps_kmip.data.precomputed_encodings import Encoding, encoded
from graphgps_kmip.data.raw_files import at_hand, missing_line
from graphgps_kmip.data.splits import open_dataset, random_split, sampled
from graphgps_kmip.errors import DataError

__all__ = [
    "DataError",
    "DatasetInfo",
    "DatasetRecord",
    "Encoding",
    "Features",
    "encoded",
    "GraphDataset",
    "GraphLoader",
    "NodeLoader",
    "RawFiles",
    "Sampling",
    "Source",
    "Statistics",
    "find",
    "find_title",
    "card_text",
    "datasets",
    "mismatches",
    "missing_line",
    "published_rows",
    "sampled",
    "at_hand",
    "make_loaders",
    "open_dataset",
    "random_split",
    "register_dataset",
]

for _family in sorted(module.name for module in pkgutil.iter_modules(sets.__path__)):
    for _record in import_module(f"{sets.__name__}.{_family}").RECORDS:
        register_dataset(_record)
