"""The memory benchmark of the low-width method: sizes, networks, rows and the table of L-F3."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from run.bench import bench_records, two_stage_memory
from run.bench.two_stage_memory import (
    BATCHED,
    EDGE_LIST,
    ESTIMATOR,
    EXPHORMER,
    FILES,
    SIZES,
    SPARSE,
    SYNTHETIC,
    equal_scores,
    synthetic_graph,
)

from graphgps_kmip.data import find
from graphgps_kmip.experiments.printed_tables import load_printed

ROOT = Path(__file__).parents[2]
NAMES = {"arxiv": ("OGB", "ogbn-arxiv"), "actor": ("PyG-Actor", "")} | {
    **{name: ("PyG-Amazon", name) for name in ("computers", "photo")},
    **{name: ("PyG-Coauthor", name) for name in ("cs", "physics")},
    **{name: ("PyG-Heterophilous", name.capitalize()) for name in ("minesweeper", "tolokers")},
    **{"cora": ("PyG-Planetoid", "Cora"), "citeseer": ("PyG-Planetoid", "CiteSeer")},
}


def test_sizes_are_those_that_the_paper_prints_and_features_those_of_the_records() -> None:
    printed = load_printed(ROOT / "run" / "experiments" / "printed")["low-width/table3"].rows
    assert SIZES.keys() == NAMES.keys()
    for name, sizes in SIZES.items():
        record = find(*NAMES[name])
        assert (sizes.features, sizes.classes) == (record.features.node, record.features.classes), name
        if sizes.title in printed:
            row = printed[sizes.title]
            assert (sizes.nodes, sizes.edges) == (row["nodes"].mean, row["edges"].mean), name
        else:
            published = record.statistics
            edges = published.mean_edges if published.edges_once else published.mean_edges / 2
            assert (sizes.nodes, sizes.edges) == (published.mean_nodes, edges), name


def test_a_synthetic_graph_has_about_the_edges_asked_for_in_both_directions() -> None:
    graph = synthetic_graph(SIZES["photo"]._replace(nodes=3000, edges=9000, features=4))
    assert graph.x.shape == (3000, 4)
    assert 0.98 * 18000 < graph.num_edges <= 18000  # pairs that are drawn twice are one edge
    assert graph.is_undirected()
    assert graph.train_mask.float().mean() == pytest.approx(0.6, abs=0.05)


def test_scores_are_of_every_edge_of_the_attention_graph_and_equal_in_a_node() -> None:
    graph = synthetic_graph(SIZES["photo"]._replace(nodes=50, edges=80, features=4))
    graph.expander_edge_index = torch.tensor([[0, 1], [1, 0]])
    layer = equal_scores(graph, 2).layers[1]
    assert len(layer.source) == graph.num_edges + 2 + 50
    sums = torch.segment_reduce(layer.score, "sum", lengths=layer.ptr.diff())
    torch.testing.assert_close(sums, torch.ones(50))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[bench_records.Row], Path]:
    """Rows of a small run, and its table."""
    folder = tmp_path_factory.mktemp("bench")
    words = ["--data", f"actor{SYNTHETIC}", "--nodes", "400", "--out", str(folder), "--table", str(folder / "t.json")]
    assert two_stage_memory.main(words) == 0
    (record,) = (path for path in folder.glob("two_stage_memory-*.json"))
    return json.loads(record.read_text())["rows"], folder / "t.json"


def test_every_network_takes_a_step_and_the_edge_list_the_most_memory(
    rows: tuple[list[bench_records.Row], Path],
) -> None:
    found = {row["method"]: row for row in rows[0]}
    assert found.keys() == FILES.keys()
    assert {row["status"] for row in rows[0]} == {"ok"}
    memory = {method: row["memory_mib"] for method, row in found.items()}
    assert max(memory, key=memory.__getitem__) == EDGE_LIST
    assert found[EXPHORMER]["of_edge_list"] == pytest.approx(memory[EXPHORMER] / memory[EDGE_LIST])
    assert found[SPARSE]["edges"] == found[EXPHORMER]["edges"]


def test_the_table_marks_synthetic_data_and_small_ones_as_a_sample(rows: tuple[list, Path]) -> None:
    content = json.loads(rows[1].read_text())
    cells = content["cells"]["Actor (synthetic)"]
    assert content["sample"]
    assert cells["LowWidth"] == [max(cells[ESTIMATOR][0], cells[SPARSE][0])]
    assert BATCHED in cells


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("method", [SPARSE, ESTIMATOR])
def test_both_stages_measure_a_graph_from_files_with_the_expander_of_degree_30(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = two_stage_memory.load_config
    monkeypatch.setattr(
        two_stage_memory, "load_config", lambda cfg, file, words: load(cfg, file, [*words, "dataset.sample", "True"])
    )
    cell = {"data": "cora", "method": method, "n": 0, "nodes": 0, "dir": "datasets", "device": "cpu"}
    run, facts = two_stage_memory.make(cell, small=False)
    assert run()["total"] > 0
    assert facts()["edges"] > 20 * two_stage_memory.load_configured().dataset.graphs[0].num_nodes


def test_data_that_are_not_known_are_refused() -> None:
    with pytest.raises(ValueError, match="--data pubmed: there are"):
        two_stage_memory.parse(["--data", "pubmed"])
