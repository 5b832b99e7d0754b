"""Records of single graphs with labelled nodes: what all of them must say, and what a user is told without files."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphgps_kmip.data import DataError, DatasetRecord, datasets, open_dataset
from graphgps_kmip.data.sets import citation_networks, city_networks, heterophilous, social_networks
from tests.data.sets.raw_files import offline

RECORDS = [
    record for family in (citation_networks, city_networks, heterophilous, social_networks) for record in family.RECORDS
]
CASES = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.key)


@CASES
def test_without_raw_files_one_line_says_what_to_place_where_and_that_a_sample_runs(
    record: DatasetRecord, tmp_path: Path
) -> None:
    with offline(), pytest.raises(DataError) as error:
        open_dataset(record, tmp_path)
    line = str(error.value)
    assert "\n" not in line
    words = [record.title, *record.raw.files[:8], *record.raw.archives, str(tmp_path / record.raw.folder)]
    assert [word for word in (*words, record.source.page, "dataset.sample True") if word not in line] == []


@CASES
def test_a_record_is_a_complete_sheet_of_one_graph(record: DatasetRecord) -> None:
    assert datasets()[record.format, record.name] is record
    assert (record.level, record.loss != "", record.metric != "") == ("node", True, True)
    assert record.summary
    assert record.features.classes > 1
    assert record.statistics.graphs == 1
    sizes = record.statistics.sizes
    assert sizes is None or sum(sizes) <= record.statistics.mean_nodes
    assert record.source.citation
    assert record.source.licence
    assert record.source.page


def test_other_names_of_a_data_set_share_its_folder_and_no_two_data_sets_do() -> None:
    titles = {}
    for record in RECORDS:
        titles.setdefault(record.raw.folder.lower(), set()).add(record.title)
    assert all(len(names) == 1 for names in titles.values())
