"""Dataset cards: published beside found, and what a mismatch says."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from graphgps_kmip.data import (
    DatasetInfo,
    DatasetRecord,
    Features,
    RawFiles,
    Source,
    Statistics,
    card_text,
    datasets,
    mismatches,
)

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
    [found] = mismatches(RECORD, replace(INFO, **change))
    assert re.search(line, found)


def test_a_directed_graph_has_no_reverse_edges_to_leave_out() -> None:
    assert mismatches(RECORD, replace(INFO, directed=True, mean_edges=24.9)) == []


def test_the_sheet_shows_the_record_and_both_figures() -> None:
    text = card_text(RECORD, "data", replace(INFO, graphs=99))
    for part in (
        "Rings: rings of all sizes",
        "2 categories of a node (7, 3 values), 2 numbers",
        "rings.zip",
    ):
        assert part in text
    for part in ("raw/rings.csv in", "data/Rings", "A. Author", "MIT", "rings.example", "metric_best accuracy"):
        assert part in text
    assert [line.split() for line in text.splitlines() if line.startswith("graphs")] == [["graphs", "100", "99"]]
    assert "warning: Rings: graphs should be 100" in text


def test_a_sheet_of_data_that_is_not_there_says_so() -> None:
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
