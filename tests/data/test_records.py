"""Every record: its sample follows its schema and passes every check of real data, its absence is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphgps_kmip.data import (
    DataError,
    DatasetInfo,
    DatasetRecord,
    at_hand,
    datasets,
    mismatches,
    open_dataset,
    sampled,
)
from tests.data.sets.raw_files import opened

RECORDS = list(datasets().values())
FIRST = {(record.format, record.level, record.task_type): record.key for record in reversed(RECORDS)}.values()


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize(
    "record",
    [
        pytest.param(record, id=record.key, marks=[] if record.key in FIRST else [pytest.mark.thorough])
        for record in RECORDS
    ],
)
def test_a_sample_has_the_dimensions_of_its_record(record: DatasetRecord) -> None:
    dataset = open_dataset(sampled(record))
    info = DatasetInfo.of(dataset, record)
    both = (record.features.node, record.features.edge)
    node, edge = (len(what) if isinstance(what, tuple) else what for what in both)
    classes = 1 if record.level == "link" else record.features.classes
    assert (info.dim_in, info.dim_edge, info.dim_out) == (node, edge, classes)
    assert len(dataset) <= 300
    assert mismatches(record, info)  # its figures are not the published ones


@pytest.mark.parametrize("record", [one for one in datasets().values() if one.raw], ids=lambda record: record.key)
def test_without_its_raw_files_one_line_says_what_to_do(record: DatasetRecord, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        opened(record, tmp_path)
    line, raw = str(error.value), record.raw
    assert "\n" not in line
    words = [record.title, *raw.files[:8], *raw.archives, str(tmp_path / raw.folder), record.source.page]
    assert [word for word in (*words, "dataset.sample True") if word not in line] == []
    assert not at_hand(record, tmp_path)
