"""Every drawing function draws what its tables say."""

from __future__ import annotations

import pytest

from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report.figures.runtimes import draw_breakdown, draw_runtimes, draw_scaling
from graphgps_kmip.report.figures.score_charts import (
    LABELLED,
    draw_ablation,
    draw_batch_sizes,
    draw_pareto,
    draw_peak_memory,
    draw_score_against_cost,
    draw_time_against_score,
    frontier,
)
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
    one, ours, paper = draw_scaling({"p/growth": tables()["p/growth"]}, LINES).axes[1].lines
    assert list(one.get_ydata()) == [1, 1]
    assert (ours.get_fillstyle(), paper.get_fillstyle()) == ("full", "none")
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


@pytest.mark.parametrize("models", [LABELLED, LABELLED + 1])
def test_names_of_more_models_than_find_places_are_in_the_legend_but_for_those_without_a_point(models: int) -> None:
    rows = {f"GPS+{i}": [cell(70.0 + i)] for i in range(models)}
    score, time = (table(name, tables()[name].columns, rows) for name in ("p/score", "p/time"))
    figure = draw_time_against_score({"p/score": score, "p/time": time}, {})
    (axes,), (legend,) = figure.axes, figure.legends
    names, crowded = [text.get_text() for text in axes.texts if text.get_text()], models > LABELLED
    assert names == ([] if crowded else list(rows))
    assert [text.get_text() for text in legend.get_texts()] == (list(rows) if crowded else ["ours"])
    if crowded:
        points = [line for line in axes.lines if line.get_marker() != "None"]
        looks = [[(line.get_color(), line.get_marker()) for line in some] for some in (legend.get_lines(), points)]
        assert looks[0] == looks[1]
        time.rows["GPS+3"] = {column: Cell() for column in time.columns}
        (legend,) = draw_time_against_score({"p/score": score, "p/time": time}, {}).legends
        assert [text.get_text() for text in legend.get_texts()] == [row for row in rows if row != "GPS+3"]


def test_score_against_cost_has_a_panel_for_each_cost_of_a_table_and_a_point_for_each_model() -> None:
    figure = draw_score_against_cost({"p/fair": tables()["p/fair"]})
    assert [axes.get_title() for axes in figure.axes] == ["A, time of an epoch", "A, peak memory"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["time (s)", "peak memory (MB)"]
    points = [
        {tuple(p.round(3)) for line in axes.lines if line.get_marker() != "None" for p in line.get_xydata()}
        for axes in figure.axes
    ]
    assert points == [{(0.105, 84.0), (0.945, 85.05)}, {(630.0, 84.0), (735.0, 85.05)}]
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "linear"]
    assert texts(figure).count("paper") == 0
    with pytest.raises(ResultsError, match="no column of p/score is a score with epoch_seconds or memory_mb beside it"):
        draw_score_against_cost({"p/score": tables()["p/score"]})


def test_score_against_cost_draws_several_tables_on_one_page_and_a_model_has_one_look_in_all() -> None:
    first = tables()["p/fair"]
    cells = {column.replace("A", "B"): one for column, one in first.rows["kMIP"].items()}
    columns = {column.replace("A", "B"): facts for column, facts in first.columns.items()}
    second = table("p/other", columns, {"GRIT": list(cells.values()), "kMIP": list(cells.values())})
    figure = draw_score_against_cost({"p/fair": first, "p/other": second})
    assert [axes.get_title()[:1] for axes in figure.axes] == ["A", "A", "B", "B"]
    assert [text.get_text() for text in figure.axes[3].texts if text.get_text()] == ["kMIP", "GRIT"]
    looks = [{text.get_color() for text in axes.texts if text.get_text() == "kMIP"} for axes in figure.axes]
    assert looks == [looks[0]] * 4
    rows = {axes.get_subplotspec().rowspan.start: axes for axes in figure.axes}
    assert list(rows) == [0, 1]


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
