"""Figures of tables and of analyses, curves of a run and attention pictures show what their tables and files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.image import imread
from sklearn.datasets import load_digits

from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report.figures.approximation_curves import draw_approximation, draw_cumulative, draw_energy_distances
from graphgps_kmip.report.figures.attention_graphs import binned, draw_attention, draw_out_degrees
from graphgps_kmip.report.figures.runtimes import (
    NAME_HEIGHT,
    draw_breakdown,
    draw_runtimes,
    draw_scaling,
    draw_score_over_size,
)
from graphgps_kmip.report.figures.score_charts import (
    draw_ablation,
    draw_batch_sizes,
    draw_pareto,
    draw_peak_memory,
    draw_score_against_cost,
    draw_time_against_score,
    frontier,
)
from graphgps_kmip.report.learning_curves import PALETTE, draw_curves
from graphgps_kmip.report.result_table import Cell
from tests.report.example_figures import GROWN, LINES, PANELS, STAGES, cell, table, tables, texts


def test_runtimes_mark_where_memory_ran_out_and_show_the_paper_where_a_number_is_printed() -> None:
    figure = draw_runtimes({"p/sizes": tables()["p/sizes"]}, {"panels": PANELS})
    (axes,) = figure.axes
    assert [text.xy for text in axes.texts] == [(1000, 45.0), (10_000, pytest.approx(324 * 1.05))]
    assert {"ours", "paper", "then out of memory"} <= set(texts(figure))
    assert any("N^{0.60}" in text for text in texts(figure))  # times 4 for each power of ten
    bare = table("p/sizes", {"total": {}, "other": {}}, {"N=10^2.0": [cell(1.0), cell(2.0)]})
    assert set(texts(draw_runtimes({"p/sizes": bare}, {"panels": PANELS}))) == {"ours and theirs", "another"}


@pytest.mark.parametrize("measured", [4, 3])
def test_a_fit_to_three_large_sizes_is_dashed_up_to_the_largest_of_the_table_and_named(measured: int) -> None:
    growth = tables()["p/growth"]
    for n in GROWN[measured:]:
        growth.rows[f"N={n}"]["time"] = cell("time limit")
    figure = draw_scaling({"p/growth": growth}, LINES)
    *fits, points = figure.axes[0].lines
    assert list(points.get_xdata()) == list(GROWN[:measured])
    named = "fit from 8,192 nodes on; extrapolated beyond the marks" in texts(figure)
    assert (len(fits), named) == ((1, True) if measured == 4 else (0, False))
    for fit in fits:
        assert list(fit.get_xdata()) == [8192, 524288]
        assert list(fit.get_ydata()) == pytest.approx([1.05 * 3e-5 * n**1.5 for n in (8192, 524288)])
        assert "one ($N^{1.50}$)" in texts(figure)


def test_printed_speed_ups_have_hollow_marks() -> None:
    element, measured, paper = draw_scaling({"p/growth": tables()["p/growth"]}, LINES).axes[1].lines
    assert list(element.get_ydata()) == [1, 1]
    assert (measured.get_fillstyle(), paper.get_fillstyle()) == ("full", "none")
    assert list(paper.get_ydata()) == [n / 1e3 for n in GROWN]


def test_stages_are_stacked_and_quick_bars_are_drawn_again_enlarged() -> None:
    left, right = draw_breakdown({"p/stages": tables()["p/stages"]}, {"stages": STAGES}).axes
    assert [bar.get_y() + bar.get_height() for bar in left.containers[1]] == pytest.approx([39 * 1.05, 2.1 * 1.05])
    assert [label.get_text() for label in right.get_xticklabels()] == ["k-MIP"]


def test_the_frontier_is_what_no_other_point_beats() -> None:
    points = [(1.0, 5.0), (2.0, 4.0), (3.0, 7.0), (1.0, 6.0), (3.5, 7.0)]
    assert frontier(points) == [(1.0, 6.0), (3.0, 7.0)]
    assert frontier(points, higher=False) == [(1.0, 5.0), (2.0, 4.0)]


@pytest.mark.parametrize("draw", [draw_pareto, draw_time_against_score])
def test_labels_cover_neither_points_nor_each_other(draw: type) -> None:
    names = [f"GPS+{name}" for name in ("GCN", "GAT", "GINE", "kMIP")]
    scores = {name: [cell(70 + 0.2 * i, 70.1 + 0.2 * i)] for i, name in enumerate(names)}
    times = {name: [cell(1 + i / 9, 1.2 + i / 9)] for i, name in enumerate(names)}
    score = table("p/score", tables()["p/score"].columns, scores)
    time = table("p/time", tables()["p/time"].columns, times)
    figure = draw({"p/score": score, "p/time": time}, {})
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
    assert len(boxes) >= 4
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    points = [p for line in axes.lines if line.get_marker() != "None" for p in line.get_xydata()]
    marks = [axes.transData.transform(point) for point in points]
    assert not any(box.contains(*mark) for box in boxes for mark in marks)


def points(axes: Axes) -> dict[str, tuple[float, float]]:
    """Label -> its point, of the labels with a text."""
    return {text.get_text(): tuple(np.round(text.xy, 3)) for text in axes.texts if text.get_text()}


def marks(axes: Axes) -> set[tuple[float, float]]:
    return {tuple(p.round(3)) for line in axes.lines if line.get_marker() == "o" for p in line.get_xydata()}


def test_score_against_cost_has_a_panel_for_each_cost_of_a_data_set_and_a_labelled_point_for_each_model() -> None:
    figure = draw_score_against_cost({"p/fair": tables()["p/fair"]})
    assert [axes.get_title() for axes in figure.axes] == ["A", "A"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["time (s)", "peak memory (MB)"]
    assert {axes.get_ylabel() for axes in figure.axes} == {"accuracy (%)"}
    costs = ({"GCN": 0.105, "GCN+kMIP": 0.945, "GAT": 0.21}, {"GCN": 630.0, "GCN+kMIP": 735.0, "GAT": 682.5})
    scores = {"GCN": 84.0, "GCN+kMIP": 85.05, "GAT": 82.95}
    for axes, cost in zip(figure.axes, costs, strict=True):
        assert points(axes) == {row: pytest.approx((cost[row], scores[row])) for row in scores}
        assert marks(axes) == set(points(axes).values())
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "linear"]
    assert not figure.legends


@pytest.mark.parametrize("key", ["p/score", "two models"])
def test_a_data_set_without_costs_or_of_two_models_has_no_panel_of_score_against_cost(key: str) -> None:
    two = table(key, tables()["p/fair"].columns, dict.fromkeys(("GCN", "GAT"), [cell(84.0), cell(0.1), cell(600.0)]))
    message = f"{key}: no data set has three models with all runs of a score and of epoch_seconds or memory_mb"
    with pytest.raises(ResultsError, match=message):
        draw_score_against_cost({key: tables().get(key, two)})


def test_models_with_kmip_are_bold_and_have_a_colour_of_their_own() -> None:
    for axes in draw_score_against_cost({"p/fair": tables()["p/fair"]}).axes:
        looks = {text.get_text(): (text.get_color(), text.get_fontweight()) for text in axes.texts if text.get_text()}
        assert looks.pop("GCN+kMIP") == (PALETTE[1], "bold")
        assert {weight for _, weight in looks.values()} == {"normal"}
        colors = {line.get_color() for line in axes.lines if line.get_marker() == "o" and line.get_markersize() > 6}
        assert colors == {PALETTE[1]}
        (pair,) = (line for line in axes.lines if line.get_marker() == "None" and line.get_alpha() == 0.5)
        assert [tuple(point) for point in pair.get_xydata().round(3)] == [points(axes)["GCN"], points(axes)["GCN+kMIP"]]


def test_score_against_cost_has_a_line_of_panels_for_each_cost_of_several_data_sets() -> None:
    first = tables()["p/fair"]
    columns = {column.replace("A", "B"): facts for column, facts in first.columns.items()}
    second = table("p/other", columns, {row: list(cells.values()) for row, cells in first.rows.items()})
    figure = draw_score_against_cost({"p/fair": first, "p/other": second})
    panels = [(axes.get_title(), axes.get_xlabel()) for axes in figure.axes]
    assert panels == [(name, cost) for cost in ("time (s)", "peak memory (MB)") for name in ("A", "B")]
    spans = [axes.get_subplotspec() for axes in figure.axes]
    assert [(span.rowspan.start, span.colspan.start) for span in spans] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_labels_of_many_close_models_do_not_overlap() -> None:
    columns = tables()["p/fair"].columns
    names = [f"{name}{more}" for name in ("GCN", "GAT", "GraphSAGE", "GatedGCN", "Exphormer") for more in ("", "+kMIP")]
    rows = {name: [cell(90 + i % 3 / 5), cell(1 + i / 30), cell(700.0 + i)] for i, name in enumerate(names)}
    for axes in draw_score_against_cost({"p/fair": table("p/fair", columns, rows)}).axes:
        boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
        assert len(boxes) == 10
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


SIZE_FACTS = {"metric": "accuracy", "unit": "%"}
SIZE_ROWS = {
    "GPS+kMIP": [cell(95.0), cell(94.0), Cell()],
    "GCN": [cell(30.0), cell(25.0), cell(25.0)],
    "Exphormer": [cell(30.1), cell(25.1), cell(25.1)],
    "not run": [Cell(), Cell(), Cell()],
}
SIZE_TABLE = {"t": table("t", {"32": SIZE_FACTS, "64": SIZE_FACTS, "128": SIZE_FACTS}, SIZE_ROWS)}
SIZE_OPTIONS = {"x": "nodes", "emphasis": ["GPS+kMIP"], "chance": 25}


def test_each_row_with_runs_is_a_line_up_to_its_last_size_with_its_name_at_the_end() -> None:
    (axes,) = draw_score_over_size(SIZE_TABLE, SIZE_OPTIONS).axes
    *drawn, _ = axes.lines  # the last one is the guess
    lines, dots = drawn[::2], drawn[1::2]
    assert [list(line.get_xdata()) for line in lines] == [[32, 64], [32, 64, 128], [32, 64, 128]]
    assert list(dots[0].get_ydata()) == pytest.approx([95, 95 * 1.1, 94, 94 * 1.1])
    assert list(lines[0].get_ydata()) == pytest.approx([95 * 1.05, 94 * 1.05])
    names = {text.get_text(): text for text in axes.texts}
    assert set(names) == {"guess", "GPS+kMIP", "GCN", "Exphormer"}
    assert names["GPS+kMIP"].xy == (64, pytest.approx(94 * 1.05))
    assert names["GPS+kMIP"].get_fontweight() == "bold"
    assert lines[0].get_linewidth() > lines[1].get_linewidth()


def test_names_of_lines_that_end_together_do_not_overlap_and_leave_others_in_their_place() -> None:
    low = {name: SIZE_ROWS["GCN"] for name in ("GCN", "Exphormer", "GPS+GECO", "GPS+Hyena")}
    sizes = table("t", dict.fromkeys(SIZE_TABLE["t"].columns, SIZE_FACTS), {"GPS+kMIP": SIZE_ROWS["GPS+kMIP"], **low})
    figure = draw_score_over_size({"t": sizes}, SIZE_OPTIONS)
    (axes,) = figure.axes
    height = {text.get_text(): axes.transData.transform((0, text.xyann[1]))[1] for text in axes.texts}
    gaps = np.diff(sorted(height[name] for name in low))
    assert min(gaps) >= 0.99 * NAME_HEIGHT * figure.dpi / 72
    assert height["GPS+kMIP"] == pytest.approx(axes.transData.transform(axes.lines[0].get_xydata()[-1])[1])


def test_an_ablation_has_a_dot_for_each_row_with_a_number_and_a_place_for_the_others() -> None:
    (axes,) = draw_ablation({"p/variants": tables()["p/variants"]}).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["SDP+BN", "sL2+BN", "+SPE"]
    dots = [tuple(*line.get_xydata()) for line in axes.lines if line.get_marker() == "o"]
    assert dots == [(0, pytest.approx(0.084)), (2, pytest.approx(0.0525))]  # means of two runs, one 1.1 times the other
    assert [text.get_text() for text in axes.texts] == ["0.084", "0.0525"]


def test_batch_sizes_are_curves_over_those_that_have_a_number() -> None:
    (axes,) = draw_batch_sizes({"p/batches": tables()["p/batches"]}).axes
    curves = [bars.lines[0].get_xydata().T.tolist() for bars in axes.containers]
    assert curves[0] == [[8, 64], pytest.approx([0.0945, 0.0735])]
    assert curves[1] == [[8, 64, 256], pytest.approx([0.063, 0.0525, 0.042])]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["BN", "RMSN"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "64", "256"]


def test_peak_memory_has_a_bar_for_each_network_that_was_measured() -> None:
    facts = {"metric": "peak memory", "unit": "MiB"}
    rows = {"Photo (synthetic)": [cell(20.0), cell(90.0)], "CS (synthetic)": [cell(30.0), cell("out of memory")]}
    (axes,) = draw_peak_memory({"p": table("p", {"LowWidth": facts, "Exphormer": facts}, rows)}, {}).axes
    assert [round(bar.get_height(), 3) for bar in axes.patches] == [21.0, 31.5, 94.5]
    assert axes.get_yscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == list(rows)


COUNTS = [1, 4, 10, 40]


def write_example(folder: Path, content: dict[str, Any]) -> Path:
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
    figure = draw_approximation(write_example(tmp_path, curves("distance")), {})
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
    figure = draw_approximation(write_example(tmp_path, content), {"groups": ["others", "gaussian"]})
    thick = [line for line in figure.axes[0].get_lines() if line.get_linewidth() > 2]
    solid, dotted = ([line for line in thick if line.is_dashed() == dashed] for dashed in (False, True))
    assert [list(line.get_ydata()) for line in dotted] == [[1.0, 1.1, 0.9, 0.0]] * 2
    assert [line.get_color() for line in dotted] == [line.get_color() for line in solid]
    assert "smallest inner product" in figure.legends[0].get_title().get_text()
    assert len([text for text in texts(figure) if "N(0, I)" in text]) == 1


def test_options_choose_the_layers_and_the_spread(tmp_path: Path) -> None:
    figure = draw_approximation(
        write_example(tmp_path, curves("distance")), {"groups": ["others"], "std": "std_graphs"}
    )
    (band,) = figure.axes[0].collections
    assert {round(float(y), 6) for x, y in band.get_paths()[0].vertices if x == 4} == {1.4, 1.6}
    shown = " ".join(texts(figure))
    assert "4.50 ± 0.20" in shown
    assert "3.00" not in shown


def test_weights_are_drawn_with_the_k_that_reach_half_and_four_fifths(tmp_path: Path) -> None:
    cells = {f"k for attention weight {level}": {"value": [k]} for level, k in ((0.5, 12.4), (0.8, 30.0))}
    content = curves("cumulative", cells=cells)
    content["groups"] |= {name: group([0.2, 0.4, 0.7, 1.0]) for name in ("others", "gaussian")}
    (axes,) = draw_cumulative(write_example(tmp_path, content), {}).axes
    assert [text.get_text() for text in axes.texts][1:] == ["0.5 at k = 12", "0.8 at k = 30"]
    assert all(path.vertices[:, 1].max() <= 1 for band in axes.collections for path in band.get_paths())


def degrees(models: int) -> dict[str, Any]:
    counts = [[[5, 0, 3, 1, 0, 0, 1], [6, 0, 3, 1]], [[5, 0, 3, 1, 0, 0, 1], [2, 0, 7, 1]]]
    return {"measure": "degrees", "num_keys": [2], "graphs": 7, "runs": ["0"] * models, "counts": counts[:models]}


def test_degrees_are_put_into_bins_by_nodes_and_by_edges() -> None:
    nodes, edges = binned([5, 0, 3, 1, 0, 0, 1], [0, 2, 3, 5])  # degrees 0, 2, 3 and 6: 15 edges
    np.testing.assert_allclose(nodes, [0.5, 0.3, 0.1, 0.1])
    np.testing.assert_allclose(edges, [0, 6 / 15, 3 / 15, 6 / 15])


@pytest.mark.parametrize("models", [1, 2])
def test_out_degrees_have_a_row_of_panels_for_each_layer_and_whiskers_over_models(models: int, tmp_path: Path) -> None:
    figure = draw_out_degrees(write_example(tmp_path, degrees(models)), {})
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


def test_bins_are_options(tmp_path: Path) -> None:
    last = draw_out_degrees(write_example(tmp_path, degrees(1)), {"bins": [1, 3]}).axes[2]
    assert [tick.get_text() for tick in last.get_xticklabels()] == ["0", "1 to 2", "3 or more"]


def test_energy_distances_have_a_panel_for_each_attention_graph_with_both_baselines(tmp_path: Path) -> None:
    distances = {"4": [0.2, 0.1], "64": [0.0, -0.02], "uniform": [0.5, 0.7], "random": [0.9, 0.7]}
    panel = {"distances": distances, "nodes": 2708, "num_edges": 94156}
    content = {"measure": "energy distance", "reference": 64, "edges": {"all": panel, "graph": panel}}
    figure = draw_energy_distances(write_example(tmp_path, content))
    left, right = figure.axes
    assert "2,708 nodes, 94,156 edges" in left.get_title()
    assert right.get_title().startswith("graph edges alone")
    heights = {round(float(line.get_ydata()[0]), 6) for line in left.get_lines() if line.get_linestyle() == "--"}
    assert heights == {0.6, 0.8}
    (thick,) = (line for line in left.get_lines() if line.get_linewidth() == 2)
    assert list(thick.get_ydata()) == pytest.approx([0.15, -0.01])
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["4", "64\n(halves)"]
    assert {"uniform over neighbours", "random logits in [-8, 8]", "mean over layers"} <= set(texts(figure))


SPLITS = ("train", "val", "test")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    figures, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *args, **kw: (figures.append(figure), save(figure, *args, **kw))
    )
    return figures


def write_run(run_dir: Path, splits: tuple[str, ...] = SPLITS, epochs: int = 12) -> Path:
    facts = {"time_epoch": 1.0, "lr": 0.1}
    for split in splits:
        path = run_dir / split / "stats.json"
        path.parent.mkdir(parents=True)
        lines = [
            {"epoch": e, "loss": 3 * 0.5 ** min(e, 8), "accuracy": 1 - 1 / (e + 2), "f1": -e} | facts
            for e in range(epochs)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run_dir


def test_curves_show_loss_and_first_metric_with_the_best_epoch(tmp_path: Path, drawn: list[Figure]) -> None:
    path = draw_curves(write_run(tmp_path / "digits" / "3"))
    assert path == tmp_path / "digits" / "3" / "curves.png"
    assert imread(path).std() > 0.01
    loss, metric = drawn[0].axes
    assert (loss.get_ylabel(), metric.get_ylabel(), loss.get_xlabel()) == ("loss", "accuracy", "epoch")
    assert (loss.get_yscale(), metric.get_yscale()) == ("log", "linear")
    assert [text.get_text() for text in metric.get_legend().get_texts()] == [f"{split}  0.9" for split in SPLITS]
    assert [line.get_markevery() for line in metric.get_lines()[1:]] == [[8]] * 3
    assert "digits, run 3 (numbers: at the best epoch, 8)" in drawn[0].get_suptitle()


def test_curves_follow_the_named_metric(tmp_path: Path, drawn: list[Figure]) -> None:
    draw_curves(write_run(tmp_path / "0"), "f1", "argmin")
    assert drawn[0].axes[1].get_ylabel() == "f1"
    assert "at the best epoch, 11" in drawn[0].get_suptitle()


@pytest.mark.parametrize(("splits", "epochs"), [(("train",), 1), (("train", "test"), 5)])
def test_curves_of_short_runs_and_few_splits_are_drawn(tmp_path: Path, splits: tuple[str, ...], epochs: int) -> None:
    assert draw_curves(write_run(tmp_path / "0", splits, epochs)).exists()


def test_curves_of_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"No results in .*expected train/stats\.json"):
        draw_curves(tmp_path)


def write_attention(path: Path, layers: int = 2, heads: int = 3, k: int = 4, which: int = 3) -> dict[str, np.ndarray]:
    image = load_digits().images[which]
    row, column = np.nonzero(image > 6)
    n, draw = len(row), np.random.default_rng(0)
    arrays = {
        "pos": np.stack([column, row], axis=1).astype(np.float32),
        "value": image[row, column] / 16,
        "edge_index": np.stack([np.arange(n), (np.arange(n) + 1) % n]),
        "label": np.array([3]),
        "prediction": np.array([5]),
    }
    for layer in range(layers):
        index = draw.integers(0, n, (heads, n, k))
        index[:, 0, -1] = -1
        weight = draw.random((heads, n, k)).astype(np.float32)
        arrays |= {f"index_{layer}": index, f"weight_{layer}": np.where(index < 0, 0, weight)}
    np.savez(path, **arrays)
    return arrays


def test_the_attention_picture_has_a_panel_per_layer_and_head(tmp_path: Path, drawn: list[Figure]) -> None:
    arrays = write_attention(tmp_path / "attention.npz", heads=2)
    path = draw_attention(tmp_path / "attention.npz", tmp_path / "attention.png")
    assert imread(path).std() > 0.01
    first, *panels, bar = drawn[0].axes
    assert first.get_title() == "input graph\nlabel 3, predicted 5"
    assert [axes.get_title() for axes in panels] == [f"layer {i}, head {j}" for i in (1, 2) for j in (1, 2)]
    assert not any(axes.yaxis_inverted() for axes in [first, *panels])
    assert bar.get_ylabel() == "out-degree: times selected"
    degrees = [
        np.bincount(head[head >= 0], minlength=len(arrays["pos"])) for i in (0, 1) for head in arrays[f"index_{i}"]
    ]
    for axes, degree in zip(panels, degrees, strict=True):
        (nodes,) = (element for element in axes.collections if isinstance(element, PathCollection))
        np.testing.assert_array_equal(nodes.get_array(), degree)
        np.testing.assert_array_equal(nodes.get_clim(), (0, max(map(np.max, degrees))))


def test_an_edge_is_wide_at_the_key_and_as_opaque_as_its_weight(tmp_path: Path, drawn: list[Figure]) -> None:
    arrays = write_attention(tmp_path / "attention.npz", layers=1, heads=1, k=3)
    draw_attention(tmp_path / "attention.npz", tmp_path / "attention.png")
    (blades,) = (element for element in drawn[0].axes[1].collections if isinstance(element, PolyCollection))
    query, slot = np.nonzero(arrays["index_0"][0] >= 0)
    key = arrays["index_0"][0][query, slot]
    np.testing.assert_allclose(blades.get_facecolor()[:, 3], arrays["weight_0"][0][query, slot], rtol=1e-6)
    for path, start, end in zip(blades.get_paths(), arrays["pos"][key], arrays["pos"][query], strict=True):
        left, right = path.vertices[:8], path.vertices[8:16][::-1]
        np.testing.assert_allclose((left + right)[[0, -1]] / 2, [start, end], atol=1e-5)  # float32 positions
        width = np.linalg.norm(left - right, axis=1)
        assert width[-1] == pytest.approx(0, abs=1e-9)
        assert (start == end).all() or width[0] > 0.05


def test_crowded_panels_are_fainter_by_one_factor(tmp_path: Path, drawn: list[Figure]) -> None:
    arrays = write_attention(tmp_path / "attention.npz", layers=1, heads=1, k=60)
    draw_attention(tmp_path / "attention.npz", tmp_path / "attention.png")
    (blades,) = (element for element in drawn[0].axes[1].collections if isinstance(element, PolyCollection))
    query, slot = np.nonzero(arrays["index_0"][0] >= 0)
    share = blades.get_facecolor()[:, 3] / arrays["weight_0"][0][query, slot]
    assert share.max() < 0.9
    np.testing.assert_allclose(share, share[0], rtol=1e-5)


def test_a_graph_of_one_node_is_drawn(tmp_path: Path) -> None:
    arrays = {"pos": np.full((1, 2), 3.0, np.float32), "value": np.ones(1), "edge_index": np.zeros((2, 0), int)}
    arrays |= {"label": np.array(1), "prediction": np.array([1])}
    arrays |= {"index_0": np.array([[[0, -1]]]), "weight_0": np.array([[[1.0, 0.0]]])}
    np.savez(tmp_path / "one.npz", **arrays)
    assert draw_attention(tmp_path / "one.npz", tmp_path / "one.png").exists()
