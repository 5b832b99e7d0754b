"""Data sets: records, loading, splits, derived facts, and loaders."""

from __future__ import annotations

from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.digits import DIGITS
from graphgps_kmip.data.info import DatasetInfo
from graphgps_kmip.data.pipeline import GraphLoader, make_loaders
from graphgps_kmip.data.record import DatasetRecord, Features, Source, Statistics, open_dataset
from graphgps_kmip.data.splits import Splits, random_split
from graphgps_kmip.data.table import DATASETS, find, register

__all__ = [
    "DATASETS",
    "DatasetInfo",
    "DatasetRecord",
    "Features",
    "GraphDataset",
    "GraphLoader",
    "Source",
    "Splits",
    "Statistics",
    "find",
    "make_loaders",
    "open_dataset",
    "random_split",
    "register",
]

for _record in (DIGITS,):
    register(_record)
