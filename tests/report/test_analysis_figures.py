"""The figures of the analyses show what their files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from graphgps_kmip.report.figures.approximation_curves import draw_approximation, draw_cumulative
from graphgps_kmip.report.figures.attention_graphs import attention_figure, binned, draw_out_degrees

COUNTS = [1, 4, 10, 40]


def written(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "analysis.json"
    path.write_text(json.dumps(content))
    return path


def group(mean: list[float]) -> dict[str, Any]:
    return {"mean": mean, "std": [0.3] * 4, "std_graphs": [0.1] * 4, "heads": [[mean, mean]]}


def curves(measure: str, **further: Any) -> dict[str, Any]:
    groups = {"first": group([0.5, 0.3, 0.2, 0.0]), "others": group([2.0, 1.5, 1.0, 0.0])}
    return {"measure": measure, "k": COUNTS, "num_keys": [10, 10], "nodes": [30, 40], "groups": groups} | further


@pytest.fixture
def distance(tmp_path: Path) -> Path:
    reference = {name: {"mean": mean, "std": 0.4, "std_graphs": 0.2} for name, mean in (("first", 3), ("others", 4.5))}
    return written(tmp_path, curves("distance", reference=reference))


def test_distances_stand_beside_those_of_gaussian_samples(distance: Path) -> None:
    figure = draw_approximation(distance, {})
    (axes,) = figure.axes
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["first layer", "other layers"]
    thick = [line for line in axes.get_lines() if line.get_linewidth() > 2]
    assert [list(line.get_ydata()) for line in thick] == [[0.5, 0.3, 0.2, 0.0], [2.0, 1.5, 1.0, 0.0]]
    words = " ".join(text.get_text() for text in axes.texts)
    for part in ("3.00 ± 0.40", "4.50 ± 0.40", "the model's k = 10"):
        assert part in words
    assert "2 graphs of 30 to 40 nodes" in axes.get_xlabel()
    assert axes.get_ylim()[1] > 4.5
    assert min(path.vertices[:, 1].min() for band in axes.collections for path in band.get_paths()) == 0


def test_the_public_order_is_drawn_dotted_in_the_color_of_its_group(tmp_path: Path) -> None:
    content = curves(
        "distance", reference={name: {"mean": 3, "std": 0.4, "std_graphs": 0.2} for name in ("first", "others")}
    )
    content["groups"] |= {"gaussian": group([2.0, 0.9, 0.4, 0.0])}
    content["public_order"] = {name: group([1.0, 1.1, 0.9, 0.0]) for name in content["groups"]}
    figure = draw_approximation(written(tmp_path, content), {"groups": ["others", "gaussian"]})
    thick = [line for line in figure.axes[0].get_lines() if line.get_linewidth() > 2]
    solid, dotted = ([line for line in thick if line.is_dashed() == dashed] for dashed in (False, True))
    assert [list(line.get_ydata()) for line in dotted] == [[1.0, 1.1, 0.9, 0.0]] * 2
    assert [line.get_color() for line in dotted] == [line.get_color() for line in solid]
    assert "smallest inner product" in figure.legends[0].get_title().get_text()
    assert len([text for text in figure.axes[0].texts if "N(0, I)" in text.get_text()]) == 1


def test_options_choose_the_layers_and_the_spread(distance: Path) -> None:
    figure = draw_approximation(distance, {"groups": ["others"], "std": "std_graphs"})
    (axes,) = figure.axes
    (band,) = axes.collections
    vertices = band.get_paths()[0].vertices
    assert {round(float(y), 6) for x, y in vertices if x == 4} == {1.4, 1.6}
    assert "4.50 ± 0.20" in axes.texts[1].get_text()
    assert "3.00" not in " ".join(text.get_text() for text in axes.texts)


def test_weights_are_drawn_with_the_k_that_reach_half_and_four_fifths(tmp_path: Path) -> None:
    cells = {f"k for attention weight {level}": {"value": [k]} for level, k in ((0.5, 12.4), (0.8, 30.0))}
    content = curves("cumulative", cells=cells)
    content["groups"] |= {name: group([0.2, 0.4, 0.7, 1.0]) for name in ("others", "gaussian")}
    figure = draw_cumulative(written(tmp_path, content), {})
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts][1:] == ["0.5 at k = 12", "0.8 at k = 30"]
    assert all(path.vertices[:, 1].max() <= 1 for band in axes.collections for path in band.get_paths())


@pytest.mark.parametrize(
    ("options", "message"),
    [({"groups": ["other"]}, "no 'other'. Did you mean others"), ({"std": "std_graph"}, "Did you mean std_graphs")],
)
def test_wrong_options_and_files_are_refused(distance: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw_approximation(distance, options)
    with pytest.raises(ValueError, match="make it with run/analyse.py cumulative"):
        draw_cumulative(distance, {})
    with pytest.raises(ValueError, match="make it with run/analyse.py degrees"):
        draw_out_degrees(distance, {})


def test_degrees_are_put_into_bins_by_nodes_and_by_edges() -> None:
    nodes, edges = binned([5, 0, 3, 1, 0, 0, 1], [0, 2, 3, 5])  # degrees 0, 2, 3 and 6: 15 edges
    np.testing.assert_allclose(nodes, [0.5, 0.3, 0.1, 0.1])
    np.testing.assert_allclose(edges, [0, 6 / 15, 3 / 15, 6 / 15])


def degrees(models: int) -> dict[str, Any]:
    counts = [[[5, 0, 3, 1, 0, 0, 1], [6, 0, 3, 1]], [[5, 0, 3, 1, 0, 0, 1], [2, 0, 7, 1]]]
    return {"measure": "degrees", "num_keys": [2, 2], "graphs": 7, "runs": [{}] * models, "counts": counts[:models]}


@pytest.mark.parametrize("models", [1, 2])
def test_out_degrees_have_a_row_for_each_layer_and_whiskers_over_models(tmp_path: Path, models: int) -> None:
    figure = draw_out_degrees(written(tmp_path, degrees(models)), {})
    assert len(figure.axes) == 4
    last = figure.axes[2]
    assert [label.get_text() for label in last.get_xticklabels()] == ["0 to 1", "2 to 3", "4 to 7", "8 or more"]
    np.testing.assert_allclose(
        [bar.get_height() for bar in last.patches], [[0.6, 0.4], [0.4, 0.6]][models - 1] + [0, 0]
    )
    whiskers = [one for one in last.collections if one.get_paths()]
    assert len(whiskers) == models - 1
    if models == 2:
        np.testing.assert_allclose(whiskers[0].get_segments()[0][:, 1], [0.4 - 0.08**0.5, 0.4 + 0.08**0.5])
        assert last.texts[0].xy[1] == pytest.approx(0.4 + 0.08**0.5), "the number stands in the whisker"
    assert ("one model" if models == 1 else "2 models, 7 graphs") in figure.get_supxlabel()


def test_bins_can_be_given_and_must_rise(tmp_path: Path) -> None:
    files = written(tmp_path, degrees(1))
    last = draw_out_degrees(files, {"bins": [1, 3]}).axes[2]
    assert [label.get_text() for label in last.get_xticklabels()] == ["0", "1 to 2", "3 or more"]
    with pytest.raises(ValueError, match="bins: expected increasing numbers"):
        draw_out_degrees(files, {"bins": [3, 3]})


def test_attention_graphs_have_a_panel_for_each_layer_and_head(tmp_path: Path) -> None:
    arrays = {"pos": np.random.default_rng(0).random((4, 2)), "value": np.ones(4), "edge_index": np.array([[0], [1]])}
    arrays |= {"label": np.array([3]), "prediction": np.array([3])}
    for layer in range(2):
        arrays |= {f"index_{layer}": np.zeros((3, 4, 1), int), f"weight_{layer}": np.ones((3, 4, 1))}
    path = tmp_path / "graph-1.npz"
    np.savez(path, **arrays)
    first, *panels, _ = attention_figure(path).axes
    assert "label 3" in first.get_title()
    assert len(panels) == 6
    (nodes,) = (one for one in panels[0].collections if isinstance(one, PathCollection))
    assert nodes.get_array().tolist() == [4, 0, 0, 0]
