"""Every record: its sample follows its schema and passes every check of real data."""

from __future__ import annotations

import pytest

from graphgps_kmip.data import DATASETS, DatasetInfo, DatasetRecord, mismatches, open_dataset, sampled


@pytest.mark.parametrize("record", DATASETS.values(), ids=lambda record: record.key)
def test_a_sample_has_the_dimensions_of_its_record(record: DatasetRecord) -> None:
    dataset = open_dataset(sampled(record))
    info = DatasetInfo.of(dataset, record)
    assert (info.dim_in, info.dim_edge, info.dim_out) == dimensions(record)
    assert len(dataset) <= 300
    assert len(mismatches(record, info)) > 0 or record.title == "CSL"  # nobody can take it for the real data


def dimensions(record: DatasetRecord) -> tuple[int, int, int]:
    node, edge = (
        len(what) if isinstance(what, tuple) else what for what in (record.features.node, record.features.edge)
    )
    return node, edge, 1 if record.level == "link" else record.features.classes
