"""The cost model of a step over many GPUs, on a few processes and small graphs."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from run.bench import sharded_cost
from run.bench.sharded_cost import Card, Shard, fitted, projected_shard, seconds, sent

from tests.processes import preloaded

NET = {"parameters": 1000, "norms": 2, "norm_channels": 16, "width": 8, "layers": 2, "heads": 2, "dim_kq": 3, "keys": 5}
NET |= {"degrees": 0}


@pytest.fixture(scope="module", params=["GatedGCN 2", pytest.param("GCN 2,3", marks=pytest.mark.thorough)])
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("cost")
    layer, processes = request.param.split()
    words = ["--nodes", "1500", "--processes", processes, "--halo-nodes", "1500", "--layers", "2", "--width", "16"]
    words += ["--total", "1000000", "--threads", "1", "--layer", layer, "--out", str(out)]
    done = preloaded("-m", "run.bench.sharded_cost", *words)
    assert done.returncode == 0, done.stderr
    (stored,) = out.glob("*.json")
    return json.loads(stored.read_text())["rows"]


def test_the_bytes_of_the_formulas_are_those_that_are_counted(rows: list[dict[str, Any]]) -> None:
    checks = [row for row in rows if row["part"] == "check"]
    assert {(row["graph"], row["of"]) for row in checks} == {
        (graph, of) for graph in ("road", "random") for of in ("all_to_all", "sockets")
    }
    for row in checks:
        assert row["ratio"] == pytest.approx(1, abs=0.01 if row["of"] == "all_to_all" else 0.05), row  # 5 %: headers


def test_fits_and_projections_are_complete(rows: list[dict[str, Any]]) -> None:
    errors = [row["value"] for row in rows if row["part"] == "fit" and row["of"].endswith("relative error")]
    assert len(errors) == 2
    assert max(errors) < 0.3  # the smaller the graphs, the more of them is the network
    for graph in ("road", "random"):
        for cards in (8, 64):
            found = {
                r["of"]: r["value"]
                for r in rows
                if (r["part"], r.get("graph"), r.get("cards")) == ("projection", graph, cards)
            }
            parts = [value for name, value in found.items() if name.startswith("sent, ") and name != "sent, GB"]
            assert sum(parts) == pytest.approx(found["sent, GB"])
            assert found["A100: search, least, s"] > found["H100: search, least, s"] > 0
            assert found["held, GB"] > 0


def test_a_step_sends_what_the_formulas_of_the_operator_say() -> None:
    found = sent(NET, Shard(nodes=100, edges=300, halo=10, cards=8))
    queries, pairs, visits = 2 * 2 * 100, 5 * 7 / 8, 7 * (1 - (7 / 8) ** 5)
    assert found["search"] == pytest.approx(queries * 7 * (3 * 4 + 5 * 8))
    assert found["forward"] == pytest.approx(2 * queries * (pairs * 8 + visits * (4 * 4 + 4)))
    assert found["backward"] == pytest.approx(queries * (pairs * 12 + visits * (2 * 3 + 4) * 4))
    assert found["halo"] == 2 * 10 * 3 * 8 * 4
    assert found["gradients"] == pytest.approx(2 * 7 / 8 * 1000 * 4)


def test_times_are_bytes_over_rates_and_pairs_over_the_rate_of_the_search() -> None:
    card, shard = Card(nvlink=100.0, network=10.0, memory=50.0, pairs=4.0), Shard(100, 300, 10, 16)
    found = seconds(NET, shard, 1600, card, made=500.0)
    whole = sum(sent(NET, shard).values())
    assert found["links"] == pytest.approx(whole * (7 / 15 / 100 + 8 / 15 / 10))
    assert found["memory"] == 20
    assert found["search, least"] == 2 * 2 * 1600 * 100 / 4
    assert "search, printed" not in found


def test_halos_grow_with_random_graphs_and_with_the_root_of_road_graphs() -> None:
    road, random = (projected_shard(kind, 1e8, 10_000, 8, 0.5) for kind in ("road", "random"))
    assert (road.halo, random.halo) == (pytest.approx(0.5 * 1.25e7 / 100), 0.5 * 1.25e7)


def test_a_fit_finds_the_coefficients_and_says_how_far_off_it_is() -> None:
    loads = [[1.0, 2.0], [2.0, 1.0], [3.0, 5.0]]
    exact, error = fitted(loads, [one + 10 * two for one, two in loads])
    np.testing.assert_allclose(exact, [1, 10])
    assert error < 1e-12
    assert fitted(loads, [1.0, 1.0, 9.0])[1] > 0.1


def test_an_unknown_layer_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        sharded_cost.main(["--layer", "GIN"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")
