"""The figures of the low-width method show what their files and tables say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphgps_kmip.report.figures.low_width_figures import draw_energy_distances, draw_peak_memory
from tests.report.example_figures import cell, table, texts


@pytest.fixture
def artefact(tmp_path: Path) -> Path:
    distances = {"4": [0.2, 0.1], "64": [0.0, -0.02], "uniform": [0.5, 0.7], "random": [0.9, 0.7]}
    found = {"distances": distances, "nodes": 2708, "num_edges": 94156}
    content = {"measure": "energy distance", "reference": 64, "edges": {"all": found, "graph": found}}
    path = tmp_path / "energy.json"
    path.write_text(json.dumps(content))
    return path


def test_each_attention_graph_has_a_panel_with_both_baselines(artefact: Path) -> None:
    figure = draw_energy_distances(artefact)
    left, right = figure.axes
    assert "2,708 nodes, 94,156 edges" in left.get_title()
    assert right.get_title().startswith("graph edges alone")
    heights = {round(float(line.get_ydata()[0]), 6) for line in left.get_lines() if line.get_linestyle() == "--"}
    assert heights == {0.6, 0.8}
    (thick,) = (line for line in left.get_lines() if line.get_linewidth() == 2)
    assert list(thick.get_ydata()) == pytest.approx([0.15, -0.01])
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["4", "64\n(halves)"]
    assert {"uniform over neighbours", "random logits in [-8, 8]", "mean over layers"} <= set(texts(figure))


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"measure": "distance"}')
    with pytest.raises(ValueError, match=r"make it with run/narrow_estimators.py"):
        draw_energy_distances(path)


def test_peak_memory_has_a_bar_for_each_network_that_was_measured() -> None:
    facts = {"metric": "peak memory", "unit": "MiB"}
    rows = {"Photo (synthetic)": [cell(20.0), cell(90.0)], "CS (synthetic)": [cell(30.0), cell("out of memory")]}
    figure = draw_peak_memory({"p": table("p", {"LowWidth": facts, "Exphormer": facts}, rows)}, {})
    (axes,) = figure.axes
    assert [round(bar.get_height(), 3) for bar in axes.patches] == [21.0, 31.5, 94.5]
    assert axes.get_yscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == list(rows)
