"""Published runs: rows of a table that were not trained here, how they are marked, and which do not count."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from graphgps_kmip import reproduce
from graphgps_kmip.experiments.chosen_settings import load_published, with_choices
from graphgps_kmip.experiments.experiment_spec import Experiment, FigureSpec, TableSpec
from graphgps_kmip.experiments.hyperparameter_search import run_search
from graphgps_kmip.report import draw_figure as draw_figure_module
from graphgps_kmip.report.draw_figure import draw_figure
from graphgps_kmip.report.figures import score_charts
from graphgps_kmip.report.publishing import published_yaml
from graphgps_kmip.report.result_table import ResultTable, experiment_tables
from graphgps_kmip.report.table_formats import csv_export, markdown, our_entry
from graphgps_kmip.report.table_notes import origins
from tests.experiments.search_cases import FACTORS, TOGETHER, Recorder, scores, toy

SPEC = TableSpec(
    "toy",
    value="score params trials",
    column="toy",
    scale={"toy score": 100},
    columns={"toy score": {"metric": "f1", "better": "higher"}, "toy params": {}, "toy trials": {}},
)
TOY = dataclasses.replace(toy("GCN", "kMIP"), settings={"default": "none"}, tables={"toy": SPEC})
SEARCHES = [{"where": {"model": ["GCN", "kMIP"]}, "factors": FACTORS}]
RANGES = {"toy": {"source": "ours", "tuning": {"trials": 12, "seed": 7}, "searches": SEARCHES}}
RUN = f"Toys/gcn-{TOGETHER}"
KMIP = f"Toys/kmip-{TOGETHER}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Root of the results of a search and its rows, all of which is lost but the file that publishes them."""
    run_search(TOY, "tpe", RANGES, Recorder(tmp_path, scores(lr001_depth8=0.9)), tmp_path)
    (tmp_path / "toy.yaml").write_text("\n".join(published_yaml(experiment(tmp_path), tmp_path, str)))
    shutil.copytree(tmp_path / "Toys", tmp_path / "lost")
    shutil.rmtree(tmp_path / "Toys")
    shutil.rmtree(tmp_path / "search")
    return tmp_path


def experiment(folder: Path) -> Experiment:
    return with_choices(TOY, RANGES, folder, str, published=load_published(folder))


def table(folder: Path, published: bool = True) -> ResultTable:
    chosen_rows = experiment(folder)
    return experiment_tables(chosen_rows, {"toy": chosen_rows}, {}, folder, str, published=published)["toy"]


def change(folder: Path, **changes: Any) -> None:
    content = yaml.safe_load((folder / "toy.yaml").read_text())
    content["toy"]["Toys/gcn"]["runs"] |= changes
    (folder / "toy.yaml").write_text(yaml.safe_dump(content))


def bring_back(folder: Path, run: str) -> None:
    shutil.copytree(folder / "lost" / Path(run).relative_to("Toys"), folder / run)


def test_published_runs_fill_rows_with_the_values_of_the_runs(folder: Path) -> None:
    for cells in table(folder).rows.values():
        score, params = cells["toy score"].ours, cells["toy params"].ours
        assert (score.values, score.seeds, score.planned) == (pytest.approx((90.0, 80.0)), (0, 1), 2)
        assert (params.values, score.published, params.published) == ((1234.0, 1234.0), True, True)
        assert cells["toy trials"].ours.text == "12"


def test_published_numbers_are_marked_and_a_note_names_their_rows(folder: Path) -> None:
    bring_back(folder, KMIP)
    text = markdown(table(folder))
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert lines["GCN"].count("[†]") == 2
    assert "†" not in lines["kMIP"]
    assert "†: published runs (run/experiments/published), not made here: GCN." in text
    assert "2 of 2 runs" in text  # those of kMIP
    assert "our hardware: a CPU, 2 cores." in text


def test_without_being_asked_a_table_shows_no_published_run_and_says_that_there_are_some(folder: Path) -> None:
    text = markdown(table(folder, published=False))
    assert "†" not in text
    assert "0 of 2" in text
    assert "published runs, which --published shows: GCN, kMIP." in text


def test_runs_of_ones_own_come_before_published_ones_even_where_some_are_missing(folder: Path) -> None:
    bring_back(folder, f"{RUN}/1")
    cells = table(folder).rows
    assert (cells["GCN"]["toy score"].ours.n, cells["GCN"]["toy score"].ours.published) == (1, False)
    assert cells["kMIP"]["toy score"].ours.published


def test_published_runs_of_other_settings_do_not_count(folder: Path) -> None:
    change(folder, config_hash="of a file that has changed")
    side = table(folder).rows["GCN"]["toy score"].ours
    assert (side.values, side.published) == ((), False)


def test_published_runs_of_another_choice_than_ones_own_are_neither_shown_nor_published_again(folder: Path) -> None:
    run_search(TOY, "tpe", RANGES, Recorder(folder, scores(depth2=0.8)), folder, trials=4)
    assert experiment(folder).published == {}
    shutil.rmtree(folder / "Toys")
    assert "runs:" not in "\n".join(published_yaml(experiment(folder), folder, str))


def test_runs_published_in_part_are_shown_as_a_part(folder: Path) -> None:
    change(folder, seeds=[0], values={"score": [0.9], "params": [1234]})
    cell = table(folder).rows["GCN"]["toy score"]
    assert our_entry(cell.ours, 1, partial=False, sample=False, rank=0).text == "1 of 2"
    assert our_entry(cell.ours, 1, partial=True, sample=False, rank=0).text == "90.0 (1 of 2)"


def test_each_published_number_has_an_origin(folder: Path) -> None:
    rows = [origin for origin in origins(table(folder)) if origin.columns == ["toy score"]]
    assert [(origin.row, origin.run, origin.value, origin.date) for origin in rows] == [
        (row, run, value, "2026-11-21")
        for row in ("GCN", "kMIP")
        for run, value in (("seed 0", "90"), ("seed 1", "80"))
    ]
    facts = ("a CPU, 2 cores", "abc1234", str(folder / "toy.yaml"))
    assert {(origin.hardware, origin.code_version, origin.folder) for origin in rows} == {facts}
    assert "published" in csv_export(table(folder)).splitlines()[0]


def test_below_a_figure_stand_the_published_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(draw_figure_module, "_write_around", lambda figure, title, below, sample: written.append(below))  # noqa: ARG005
    monkeypatch.setattr(score_charts, "FEWEST", 1)
    cost = {"toy epoch_seconds": {"metric": "epoch", "unit": "s"}}
    spec = dataclasses.replace(SPEC, value="score epoch_seconds", columns=SPEC.columns | cost)
    change(folder, values={"score": [0.9, 0.8], "epoch_seconds": [2.0, 3.0]}, code_version="def5678")
    chosen_rows = dataclasses.replace(experiment(folder), tables={"toy": spec})
    tables = experiment_tables(chosen_rows, {"toy": chosen_rows}, {}, folder, str, published=True)
    draw_figure(chosen_rows, FigureSpec("f", "score_against_cost", tables=("toy",)), tables, folder)
    assert written[0].splitlines() == [
        "ours: a CPU, 2 cores, 2026-11-21, abc1234; 2026-11-21, def5678",
        "published runs, not made here: GCN, kMIP",
    ]


def test_what_was_published_is_published_again_beside_new_runs(folder: Path) -> None:
    before = load_published(folder)
    bring_back(folder, KMIP)
    bring_back(folder, f"{RUN}/1")  # one of two
    assert list(published_yaml(experiment(folder), folder, str)) == (folder / "toy.yaml").read_text().splitlines()
    change(folder, seeds=[1], values={"score": [0.5], "params": [1]})  # as many as are here, which are newer
    (folder / "toy.yaml").write_text("\n".join(published_yaml(experiment(folder), folder, str)))
    changed = load_published(folder)["toy"]
    assert changed["Toys/gcn"]["runs"].values == {"params": (1234,), "score": (0.8,)}
    assert changed["Toys/kmip"] == before["toy"]["Toys/kmip"]


def test_the_commands_show_published_rows_where_they_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ([], ["--published"]):
        assert reproduce.main(["table", "fair/digits", "--out", str(tmp_path), *options]) == 0
        assert ("[†]" in capsys.readouterr().out) is bool(options)
