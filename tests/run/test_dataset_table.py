"""run/dataset_table.py: what it counts, and what it says of data sets that are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphgps_kmip.data import DatasetInfo, find_title, open_dataset, sampled
from run import dataset_table


def cells(path: Path) -> dict[str, dict[str, list[float]]]:
    return json.loads(path.read_text())["cells"]


def test_a_data_set_is_counted_and_one_without_files_left_out_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "deep" / "cells.json"
    words = ["--datasets", "scans=digits", "CIFAR10", "--out", str(out), "--dir", str(tmp_path / "none")]
    assert dataset_table.main(words) == 0
    found = cells(out)
    assert list(found) == ["scans"]
    assert found["scans"]["graphs"] == [1797]
    assert found["scans"]["nodes"] == [pytest.approx(32.69, abs=0.005)]
    assert found["scans"]["edges"] == [pytest.approx(261.48, abs=0.005)]
    assert found["scans"]["outputs"] == [10]
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "digits: graphs 1,797, nodes 32.69, edges 261.48, outputs 10"
    assert printed[1].startswith("CIFAR10: left out, it has no files in ")


def test_columns_are_chosen_and_the_sparsity_is_edges_over_squared_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "cells.json"
    words = [
        "--datasets",
        "digits",
        "Yelp",
        "--columns",
        "sparsity",
        "features",
        "nodes",
        "--sample",
        "--out",
        str(out),
    ]
    assert dataset_table.main(words) == 0
    for name, features in (("digits", 3), ("Yelp", 300)):
        info = DatasetInfo.of(open_dataset(sampled(find_title(name))), find_title(name))
        found = cells(out)[name]
        assert list(found) == ["sparsity", "features", "nodes"]
        assert found["sparsity"] == [pytest.approx(info.mean_edges / info.mean_nodes**2, rel=1e-12)]
        assert found["features"] == [features] == [info.dim_in]
    assert " sparsity 0.0" in capsys.readouterr().out


def test_a_number_below_a_hundredth_is_printed_with_two_digits() -> None:
    assert [dataset_table.as_text(one) for one in (1797, 32.691, 0.012, 0.0000226, 0)] == [
        "1,797",
        "32.69",
        "0.01",
        "2.3e-05",
        "0",
    ]


def test_a_sample_needs_no_files_and_roads_are_counted_once_as_published(tmp_path: Path) -> None:
    out = tmp_path / "cells.json"
    words = ["--datasets", "Paris", "PascalVOC-SP", "--sample", "--out", str(out), "--dir", str(tmp_path)]
    assert dataset_table.main(words) == 0
    for name, ways in (("Paris", 2), ("PascalVOC-SP", 1)):
        record = find_title(name)
        info = DatasetInfo.of(open_dataset(sampled(record)), record)
        assert cells(out)[name]["edges"] == [info.mean_edges / ways]
        assert cells(out)[name]["graphs"] == [info.graphs]


def test_nothing_to_count_ends_with_one_line_and_writes_no_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "cells.json"
    for names, line in (
        (["CIFAR10"], "error: none of these data sets has files in"),
        (["CIFAR11"], "error: --datasets: unknown 'CIFAR11'. Did you mean CIFAR10"),
    ):
        assert dataset_table.main(["--datasets", *names, "--out", str(out), "--dir", str(tmp_path)]) == 2
        assert capsys.readouterr().err.startswith(line)
    assert not out.exists()
