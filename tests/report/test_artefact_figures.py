"""The figures of analyses show what their files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphgps_kmip.report.figures.approximation_curves import (
    draw_approximation,
    draw_cumulative,
    draw_energy_distances,
)
from graphgps_kmip.report.figures.attention_graphs import binned, draw_out_degrees
from tests.report.example_figures import texts

COUNTS = [1, 4, 10, 40]


def written(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "analysis.json"
    path.write_text(json.dumps(content))
    return path


def group(mean: list[float]) -> dict[str, Any]:
    return {"mean": mean, "std": [0.3] * 4, "std_graphs": [0.1] * 4, "heads": [[mean, mean]]}


def curves(measure: str, **further: Any) -> dict[str, Any]:
    groups = {"first": group([0.5, 0.3, 0.2, 0.0]), "others": group([2.0, 1.5, 1.0, 0.0])}
    reference = {name: {"mean": mean, "std": 0.4, "std_graphs": 0.2} for name, mean in (("first", 3), ("others", 4.5))}
    content = {"measure": measure, "k": COUNTS, "num_keys": [10, 10], "nodes": [30, 40], "groups": groups}
    return content | {"reference": reference} | further


def test_distances_are_drawn_with_those_of_gaussian_samples(tmp_path: Path) -> None:
    figure = draw_approximation(written(tmp_path, curves("distance")), {})
    (axes,), (legend,) = figure.axes, figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["first layer", "other layers"]
    thick = [line for line in axes.get_lines() if line.get_linewidth() > 2]
    assert [list(line.get_ydata()) for line in thick] == [[0.5, 0.3, 0.2, 0.0], [2.0, 1.5, 1.0, 0.0]]
    assert all(part in " ".join(texts(figure)) for part in ("3.00 ± 0.40", "4.50 ± 0.40", "the model's k = 10"))
    assert "2 graphs of 30 to 40 nodes" in axes.get_xlabel()
    assert axes.get_ylim()[1] > 4.5
    assert min(path.vertices[:, 1].min() for band in axes.collections for path in band.get_paths()) == 0


def test_the_public_order_is_drawn_dotted_in_the_color_of_its_group(tmp_path: Path) -> None:
    content = curves("distance")
    content["groups"] |= {"gaussian": group([2.0, 0.9, 0.4, 0.0])}
    content["public_order"] = {name: group([1.0, 1.1, 0.9, 0.0]) for name in content["groups"]}
    figure = draw_approximation(written(tmp_path, content), {"groups": ["others", "gaussian"]})
    thick = [line for line in figure.axes[0].get_lines() if line.get_linewidth() > 2]
    solid, dotted = ([line for line in thick if line.is_dashed() == dashed] for dashed in (False, True))
    assert [list(line.get_ydata()) for line in dotted] == [[1.0, 1.1, 0.9, 0.0]] * 2
    assert [line.get_color() for line in dotted] == [line.get_color() for line in solid]
    assert "smallest inner product" in figure.legends[0].get_title().get_text()
    assert len([text for text in texts(figure) if "N(0, I)" in text]) == 1


def test_options_choose_the_layers_and_the_spread(tmp_path: Path) -> None:
    figure = draw_approximation(written(tmp_path, curves("distance")), {"groups": ["others"], "std": "std_graphs"})
    (band,) = figure.axes[0].collections
    assert {round(float(y), 6) for x, y in band.get_paths()[0].vertices if x == 4} == {1.4, 1.6}
    words = " ".join(texts(figure))
    assert "4.50 ± 0.20" in words
    assert "3.00" not in words


def test_weights_are_drawn_with_the_k_that_reach_half_and_four_fifths(tmp_path: Path) -> None:
    cells = {f"k for attention weight {level}": {"value": [k]} for level, k in ((0.5, 12.4), (0.8, 30.0))}
    content = curves("cumulative", cells=cells)
    content["groups"] |= {name: group([0.2, 0.4, 0.7, 1.0]) for name in ("others", "gaussian")}
    (axes,) = draw_cumulative(written(tmp_path, content), {}).axes
    assert [text.get_text() for text in axes.texts][1:] == ["0.5 at k = 12", "0.8 at k = 30"]
    assert all(path.vertices[:, 1].max() <= 1 for band in axes.collections for path in band.get_paths())


@pytest.mark.parametrize(
    ("draw", "options", "message"),
    [
        (draw_approximation, {"groups": ["other"]}, "no 'other'. Did you mean others"),
        (draw_approximation, {"std": "std_graph"}, "Did you mean std_graphs"),
        (draw_cumulative, {}, "make it with run/analyse.py cumulative"),
        (draw_out_degrees, {}, "make it with run/analyse.py degrees"),
        (lambda path, _: draw_energy_distances(path), {}, "make it with run/narrow_estimators.py"),
    ],
)
def test_wrong_options_and_files_are_refused(draw: Any, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        draw(written(tmp_path, curves("distance")), options)


def degrees(models: int) -> dict[str, Any]:
    counts = [[[5, 0, 3, 1, 0, 0, 1], [6, 0, 3, 1]], [[5, 0, 3, 1, 0, 0, 1], [2, 0, 7, 1]]]
    return {"measure": "degrees", "num_keys": [2], "graphs": 7, "runs": ["0"] * models, "counts": counts[:models]}


def test_degrees_are_put_into_bins_by_nodes_and_by_edges() -> None:
    nodes, edges = binned([5, 0, 3, 1, 0, 0, 1], [0, 2, 3, 5])  # degrees 0, 2, 3 and 6: 15 edges
    np.testing.assert_allclose(nodes, [0.5, 0.3, 0.1, 0.1])
    np.testing.assert_allclose(edges, [0, 6 / 15, 3 / 15, 6 / 15])


@pytest.mark.parametrize("models", [1, 2])
def test_out_degrees_have_a_row_of_panels_for_each_layer_and_whiskers_over_models(models: int, tmp_path: Path) -> None:
    figure = draw_out_degrees(written(tmp_path, degrees(models)), {})
    assert len(figure.axes) == 4
    last = figure.axes[2]
    assert [tick.get_text() for tick in last.get_xticklabels()] == ["0 to 1", "2 to 3", "4 to 7", "8 or more"]
    heights = [[0.6, 0.4], [0.4, 0.6]][models - 1] + [0, 0]
    np.testing.assert_allclose([bar.get_height() for bar in last.patches], heights)
    whiskers = [bars for bars in last.collections if bars.get_paths()]
    assert len(whiskers) == models - 1
    if models == 2:
        np.testing.assert_allclose(whiskers[0].get_segments()[0][:, 1], [0.4 - 0.08**0.5, 0.4 + 0.08**0.5])
        assert last.texts[0].xy[1] == pytest.approx(0.4 + 0.08**0.5), "the number is inside the whisker"
    assert ("one model" if models == 1 else "2 models, 7 graphs") in figure.get_supxlabel()


def test_bins_are_options_and_must_increase(tmp_path: Path) -> None:
    last = draw_out_degrees(written(tmp_path, degrees(1)), {"bins": [1, 3]}).axes[2]
    assert [tick.get_text() for tick in last.get_xticklabels()] == ["0", "1 to 2", "3 or more"]
    with pytest.raises(ValueError, match="bins: expected increasing numbers"):
        draw_out_degrees(written(tmp_path, degrees(1)), {"bins": [3, 3]})


def test_energy_distances_have_a_panel_for_each_attention_graph_with_both_baselines(tmp_path: Path) -> None:
    distances = {"4": [0.2, 0.1], "64": [0.0, -0.02], "uniform": [0.5, 0.7], "random": [0.9, 0.7]}
    panel = {"distances": distances, "nodes": 2708, "num_edges": 94156}
    content = {"measure": "energy distance", "reference": 64, "edges": {"all": panel, "graph": panel}}
    figure = draw_energy_distances(written(tmp_path, content))
    left, right = figure.axes
    assert "2,708 nodes, 94,156 edges" in left.get_title()
    assert right.get_title().startswith("graph edges alone")
    heights = {round(float(line.get_ydata()[0]), 6) for line in left.get_lines() if line.get_linestyle() == "--"}
    assert heights == {0.6, 0.8}
    (thick,) = (line for line in left.get_lines() if line.get_linewidth() == 2)
    assert list(thick.get_ydata()) == pytest.approx([0.15, -0.01])
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["4", "64\n(halves)"]
    assert {"uniform over neighbours", "random logits in [-8, 8]", "mean over layers"} <= set(texts(figure))
