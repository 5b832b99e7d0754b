"""Dataset cards: published figures next to loaded ones, and what a mismatch says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from graphgps_kmip.data import (
    DataError,
    DatasetInfo,
    DatasetRecord,
    Features,
    RawFiles,
    Source,
    Statistics,
    at_hand,
    card_text,
    datasets,
    mismatches,
    open_dataset,
    sampled,
)
from tests.data.sets.raw_files import opened

RECORD = DatasetRecord(
    format="Test",
    name="rings",
    title="Rings",
    load=lambda _root: [],
    task_type="classification",
    metric="accuracy",
    summary="rings of all sizes",
    features=Features(node=(7, 3), edge=2, classes=4),
    statistics=Statistics(100, 23.2, 24.9, edges_once=True, directed=False, sizes=(60, 20, 20)),
    source=Source("A. Author, Rings, 2020", "MIT", "rings.example"),
    raw=RawFiles("Rings", ("raw/rings.csv",), archives=("rings.zip",)),
)
INFO = DatasetInfo(
    name="Rings",
    level="graph",
    sizes=(60, 20, 20),
    graphs=100,
    dim_in=2,
    dim_edge=2,
    dim_out=4,
    mean_nodes=23.24,
    max_nodes=40,
    mean_edges=49.72,
    directed=False,
)


def test_figures_that_agree_within_their_last_digit_give_no_warning() -> None:
    assert mismatches(RECORD, INFO) == []  # 24.86 edges, each counted once
    assert mismatches(RECORD, replace(INFO, directed=True, mean_edges=24.9)) == []  # no reverse edges to leave out


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"graphs": 99}, "Rings: graphs should be 100, as published, but 99 were found"),
        ({"mean_nodes": 23.3}, "mean nodes should be 23.20, as published, but 23.30"),
        ({"mean_edges": 24.9}, r"mean edges \(each once\) should be 24.90, as published, but 12.45"),
        ({"sizes": (61, 20, 20)}, "train samples should be 60, as published, but 61"),
        ({"dim_out": 3}, "classes or targets should be 4, as published, but 3"),
    ],
)
def test_a_figure_that_differs_is_named(change: dict[str, object], line: str) -> None:
    [result] = mismatches(RECORD, replace(INFO, **change))
    assert re.search(line, result)


def test_the_card_shows_the_record_and_both_figures() -> None:
    text = card_text(RECORD, "data", replace(INFO, graphs=99))
    parts = ["Rings: rings of all sizes", "2 categories of a node (7, 3 values), 2 numbers", "rings.zip", "data/Rings"]
    parts += ["raw/rings.csv in", "A. Author", "MIT", "rings.example", "metric_best accuracy"]
    assert [part for part in parts if part not in text] == []
    assert [line.split() for line in text.splitlines() if line.startswith("graphs")] == [["graphs", "100", "99"]]
    assert "warning: Rings: graphs should be 100" in text
    text = card_text(RECORD, "data", None)
    assert "not loaded" in text
    assert "warning" not in text


@pytest.mark.parametrize("record", datasets().values(), ids=lambda record: record.key)
def test_every_record_is_complete(record: DatasetRecord) -> None:
    for field in ("title", "metric", "loss", "summary", "features", "statistics", "source"):
        assert getattr(record, field), field
    assert record.source.citation
    assert record.source.licence
    assert record.raw is None or record.source.page
    assert card_text(record, "data", None)


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


@pytest.mark.parametrize("record", [record for record in RECORDS if record.raw], ids=lambda record: record.key)
def test_without_its_raw_files_one_line_says_what_to_do(record: DatasetRecord, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        opened(record, tmp_path)
    line, raw = str(error.value), record.raw
    assert "\n" not in line
    parts = [record.title, *raw.files[:8], *raw.archives, str(tmp_path / raw.folder), record.source.page]
    assert [part for part in (*parts, "dataset.sample True") if part not in line] == []
    assert not at_hand(record, tmp_path)
