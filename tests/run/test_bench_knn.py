"""The benchmarks of k-NN graphs: whole quick runs on small sizes, and what their clouds are like."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from run.bench import knn_graphs, s3dis_memory

from graphgps_kmip.data.sets.s3dis import read


def test_a_run_times_every_method_on_every_kind_of_cloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(knn_graphs, "QUICK", {"n": 60, "clouds": 2, "repeats": 2})
    assert knn_graphs.main(["--quick", "--k", "5", "--out", str(tmp_path)]) == 0
    (stored,) = tmp_path.glob("*.json")
    record = json.loads(stored.read_text())
    assert {(row["data"], row["method"]) for row in record["rows"]} == {
        (data, name) for data in knn_graphs.DATA for name in ("ours", "ours, distances", "scipy", "sklearn")
    }
    for row in record["rows"]:
        assert 0 < row["ms_min"] <= row["ms"] <= row["ms_max"]
        assert 0 < row["cpu_ms_min"] <= row["cpu_ms"]
        assert (row["vs_scipy"] == 1) == (row["method"] == "scipy")
    assert stored.with_suffix(".csv").exists()
    assert "vs_scipy" in capsys.readouterr().out


def test_memory_is_measured_on_request(tmp_path: Path) -> None:
    words = ["--n", "8000", "--k", "8", "--clouds", "1", "--repeats", "1", "--data", "uniform", "--memory"]
    assert knn_graphs.main([*words, "--out", str(tmp_path)]) == 0
    (stored,) = tmp_path.glob("*.json")
    ours = json.loads(stored.read_text())["rows"][0]
    assert ours["memory_mib"] > 8000 * 8 * 16 / 2**20  # the edges themselves


def test_every_method_finds_the_same_distances() -> None:
    points = knn_graphs.DATA["uniform"](np.random.default_rng(0), 200).astype(np.float32)
    who = knn_graphs.methods(k=6, threads=1)
    graph = who["ours, distances"](points)
    ours = graph.edge_attr.reshape(200, 6).numpy()
    np.testing.assert_allclose(ours, who["scipy"](points)[0][:, 1:], rtol=1e-5)
    np.testing.assert_allclose(ours, who["sklearn"](points)[0], rtol=1e-5)
    assert graph.edge_index.tolist() == who["ours"](points).edge_index.tolist()


@pytest.mark.parametrize(("name", "share"), [("blocks", 0.2), ("meshes", 2 / 3)])
def test_clouds_with_duplicates_have_them(name: str, share: float) -> None:
    points = knn_graphs.DATA[name](np.random.default_rng(0), 3000)
    assert points.shape == (3000, 3)
    assert 1 - len(np.unique(points, axis=0)) / 3000 == pytest.approx(share, abs=0.01)


def test_fewer_points_than_neighbours_are_refused() -> None:
    with pytest.raises(ValueError, match="--n 32 must be more than --k 32"):
        knn_graphs.parse(["--n", "32"])


def test_the_generated_raw_files_are_read_as_those_of_s3dis(tmp_path: Path) -> None:
    s3dis_memory.write_raw(tmp_path / "raw", clouds=50, points=40)
    clouds = list(read(tmp_path / "raw"))
    assert len(clouds) == 50
    assert {cloud.x.shape for cloud in clouds} == {(40, 9)}
    assert [cloud.part for cloud in clouds[:6]] == ["train"] * 5 + ["test"]
    np.testing.assert_allclose(clouds[3].x[:, 6:], clouds[3].x[:, :3] / [1, 1, 3], rtol=1e-6)


def test_an_epoch_over_generated_clouds_reports_the_memory_of_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a new process would take long to import
    monkeypatch.setattr(s3dis_memory, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))
    words = ["--clouds", "24", "--points", "40", "--workers", "1", "--batch-size", "4", "--folder", str(tmp_path)]
    assert s3dis_memory.main([*words, "--out", str(tmp_path / "out")]) == 0
    (stored,) = (tmp_path / "out").glob("*.json")
    (row,) = json.loads(stored.read_text())["rows"]
    assert row["clouds"] == 24
    assert row["start_mib"] <= row["prepared_mib"] <= row["epoch_mib"]
    assert row["workers_mib"] > 30
    assert row["sum_mib"] == pytest.approx(row["epoch_mib"] + row["workers_mib"])
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]  # the clouds are removed


def test_fewer_clouds_than_files_are_refused() -> None:
    with pytest.raises(ValueError, match="--clouds must be at least 24"):
        s3dis_memory.parse(["--clouds", "10"])
