"""Published runs: the CSV file, rows and choices of a table that were not made here, and which do not count."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from graphgps_kmip import reproduce
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments import hyperparameter_search
from graphgps_kmip.experiments.experiment_spec import Experiment, FigureSpec, TableSpec
from graphgps_kmip.experiments.hyperparameter_search import make_runner, run_search, with_choices
from graphgps_kmip.experiments.job_runner import Setup
from graphgps_kmip.experiments.jobs import Place, plan_jobs
from graphgps_kmip.experiments.run_status import COLUMNS, run_status, with_published
from graphgps_kmip.report import draw_figure as draw_figure_module
from graphgps_kmip.report.draw_figure import draw_figure
from graphgps_kmip.report.publishing import published_csv, published_rows
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
PLAIN = dataclasses.replace(TOY, tables={"toy": dataclasses.replace(SPEC, value="score params")})
SEARCHES = [{"where": {"model": ["GCN", "kMIP"]}, "factors": FACTORS}]
RANGES = {"toy": {"source": "ours", "tuning": {"trials": 6, "seeds": [7, 8], "keep": 2}, "searches": SEARCHES}}
BEST = scores(lr001_depth8=0.9, default=MemoryError("out of memory"))
RUN = f"Toys/gcn-{TOGETHER}"
KMIP = f"Toys/kmip-{TOGETHER}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Root of the results of a search and its rows, all of which is lost but the file that publishes them."""
    run_search(TOY, "random", RANGES, Recorder(tmp_path, BEST), tmp_path)
    publish(tmp_path)
    (tmp_path / "Toys").rename(tmp_path / "lost")
    return tmp_path


def publish(folder: Path, experiment: Experiment = TOY, ranges: Any = RANGES) -> pd.DataFrame:
    rows = published_rows(with_published(experiment, folder), ranges, folder, str)
    (folder / "toy.csv").write_bytes(published_csv(rows))
    return read(folder)


def read(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "toy.csv")


def experiment(folder: Path) -> Experiment:
    return with_choices(with_published(TOY, folder), RANGES, folder, str)


def table(folder: Path, published: bool = True, shown: Experiment | None = None) -> ResultTable:
    shown = shown or experiment(folder)
    return experiment_tables(shown, {"toy": shown}, {}, folder, str, published=published)["toy"]


def change(folder: Path, which: Callable[[pd.DataFrame], Any], **changes: Any) -> None:
    """Change the rows of the file that are `which`; without changes they are left out."""
    rows = read(folder)
    chosen_rows = which(rows)
    for column, value in changes.items():
        rows.loc[chosen_rows, column] = value
    (rows if changes else rows[~chosen_rows]).to_csv(folder / "toy.csv", index=False)


def of_gcn(rows: pd.DataFrame) -> Any:
    return (rows.folder == RUN) & (rows.kind == "run")


def bring_back(folder: Path, run: str) -> None:
    shutil.copytree(folder / "lost" / Path(run).relative_to("Toys"), folder / run)


def test_a_plain_experiment_is_published_as_a_row_for_each_run_and_read_with_equal_values(tmp_path: Path) -> None:
    for training in PLAIN.trainings:
        Recorder(tmp_path, scores())([(training, seed) for seed in training.seeds])
    timed = Recorder(tmp_path / "timing", scores())
    timed([(PLAIN.trainings[0], 0)])
    record = tmp_path / "timing/Toys/gcn/0/record.json"
    content = json.loads(record.read_text()) | {"peak_memory": {"ram": 3.5 * 2**20}}
    record.write_text(json.dumps(content))
    rows = publish(tmp_path, PLAIN)
    assert tuple(rows.columns) == COLUMNS
    assert [tuple(row) for row in rows[["folder", "kind", "seed", "score", "validation"]].itertuples(index=False)] == [
        *[(f"Toys/{model}", "run", seed, 0.5 - seed / 10, 0.5) for model in ("gcn", "kmip") for seed in (0, 1)],
        ("Toys/gcn", "timing", 0, 0.5, 0.5),
    ]
    facts = {"metric": "f1", "better": "higher", "seconds": 61, "params": 1234, "machine": "a CPU", "cores": 2}
    assert all((rows[name] == value).all() for name, value in {**facts, "date": rows.date[0]}.items() if name != "date")
    before = (tmp_path / "toy.csv").read_bytes()
    shutil.rmtree(tmp_path / "Toys")
    shutil.rmtree(tmp_path / "timing")
    publish(tmp_path, PLAIN)  # nothing new
    assert (tmp_path / "toy.csv").read_bytes() == before
    spec = dataclasses.replace(SPEC, value="score memory_mb", columns=SPEC.columns | {"toy memory_mb": {}})
    plain = with_published(dataclasses.replace(TOY, trainings=TOY.trainings[:1], tables={"toy": spec}), tmp_path)
    cells = table(tmp_path, shown=plain).rows["GCN"]
    assert cells["toy score"].ours.values == pytest.approx((50.0, 40.0))
    memory = cells["toy memory_mb"].ours
    assert (memory.values, memory.alone, memory.published, memory.complete) == ((3.5,), True, True, True)


def test_trials_are_published_without_test_scores_and_those_that_failed_too(folder: Path) -> None:
    rows = read(folder)
    trials = rows[(rows.kind == "trial") & rows.folder.str.startswith("Toys/gcn")]
    assert len(trials) == 6 + 2
    assert trials.score.isna().all()
    assert trials[trials.validation.isna()][["folder", "choice", "seed"]].to_numpy().tolist() == [
        ["Toys/gcn-search-default", "lr=0.1 depth=4", 7]
    ]
    assert sorted(trials[trials.folder == RUN].seed) == [7, 8]
    assert rows[rows.kind == "run"].choice.unique().tolist() == ["lr=0.01 depth=8"]


def test_published_trials_make_the_choice_of_the_search_and_a_search_of_ones_own_comes_first(folder: Path) -> None:
    published = experiment(folder)
    bring_back(folder, "Toys")
    here = with_choices(TOY, RANGES, folder, str)
    assert published.trainings == here.trainings
    for one, other in zip(published.searched.values(), here.searched.values(), strict=True):
        assert dataclasses.replace(one, published=False, tried=()) == dataclasses.replace(other, tried=())
        assert (one.published, other.published) == (True, False)
    shutil.rmtree(folder / "Toys")
    run_search(TOY, "random", RANGES, Recorder(folder, scores(depth2=0.8)), folder)
    assert [record.choice["depth"] for record in experiment(folder).searched.values()] == ["2", "2"]


@pytest.mark.parametrize("seed", [7, 8])
def test_without_one_of_its_published_trials_there_is_no_choice(folder: Path, seed: int) -> None:
    change(folder, lambda rows: (rows.folder == RUN) & (rows.seed == seed))
    assert list(experiment(folder).searched) == [KMIP]


def test_a_search_goes_on_from_published_trials_and_trains_no_published_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change(folder, lambda rows: rows.folder.isin(["Toys/gcn-search-depth2", KMIP]))
    recorder = Recorder(folder, BEST)

    def make_job(training: Any, seed: int, place: Place) -> SimpleNamespace:
        return SimpleNamespace(run=(training, seed), status=lambda: run_status(training, seed, place.out, str))

    monkeypatch.setattr(hyperparameter_search, "training_job", make_job)
    monkeypatch.setattr(hyperparameter_search, "run_jobs", lambda jobs, *_: recorder([job.run for job in jobs]))
    runner = make_runner(Place(folder, folder, str), Setup(folder), published=with_published(TOY, folder).published)
    outcomes = run_search(TOY, "random", RANGES, runner, folder)
    assert [outcome.finished for outcome in outcomes] == [True, True]
    assert recorder.trained == ["search-depth2/7", *(f"{TOGETHER}/{seed}" for seed in (7, 8, 0, 1))]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "10 of 12 runs are published ones, and not trained again"
    rows = publish(folder)  # with what was published
    shutil.rmtree(folder / "Toys")
    (folder / "toy.csv").unlink()
    (folder / "lost").rename(folder / "Toys")
    assert rows.folder.tolist() == publish(folder).folder.tolist()


def test_what_is_published_with_todays_settings_need_not_be_run(folder: Path) -> None:
    change(folder, lambda rows: of_gcn(rows) & (rows.seed == 1))
    change(folder, lambda rows: (rows.folder == KMIP) & (rows.seed == 0), config_hash="of a file that has changed")

    def planned(published: bool) -> set[tuple[str, str]]:
        jobs = plan_jobs({"toy": experiment(folder)}, ["toy"], Place(folder, folder, str), published=published)
        return {(job.path.parent.name, job.path.name) for job in jobs}

    gcn, kmip = Path(RUN).name, Path(KMIP).name
    assert planned(False) == {(gcn, "0"), (gcn, "1"), (kmip, "0"), (kmip, "1")}
    assert planned(True) == {(gcn, "1"), (kmip, "0")}


def test_published_runs_fill_rows_with_the_values_of_the_runs(folder: Path) -> None:
    for cells in table(folder).rows.values():
        score, params = cells["toy score"].ours, cells["toy params"].ours
        assert (score.values, score.seeds, score.planned) == (pytest.approx((90.0, 80.0)), (0, 1), 2)
        assert (params.values, score.published, params.published) == ((1234.0, 1234.0), True, True)
        assert cells["toy trials"].ours.text == "6"


def test_published_numbers_are_marked_and_a_note_names_their_rows(folder: Path) -> None:
    bring_back(folder, KMIP)
    text = markdown(table(folder))
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert lines["GCN"].count("[†]") == 2
    assert "†" not in lines["kMIP"]
    assert "†: published runs (run/experiments/published), not made here: GCN." in text
    assert "2 of 2 runs" in text  # those of kMIP
    assert "our hardware: a CPU, 2 cores." in text
    assert "with seeds 7, 8, which no number here is of" in " ".join(text.split())


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


def test_published_runs_of_other_settings_do_not_count_and_are_not_published_again(folder: Path) -> None:
    change(folder, of_gcn, config_hash="of a file that has changed")
    side = table(folder).rows["GCN"]["toy score"].ours
    assert (side.values, side.published) == ((), False)
    assert of_gcn(publish(folder)).sum() == 0


def test_runs_published_in_part_are_shown_as_a_part(folder: Path) -> None:
    change(folder, lambda rows: of_gcn(rows) & (rows.seed == 1))
    cell = table(folder).rows["GCN"]["toy score"]
    assert our_entry(cell.ours, 1, partial=False, sample=False, rank=0).text == "1 of 2"
    assert our_entry(cell.ours, 1, partial=True, sample=False, rank=0).text == "90.0 (1 of 2)"


def test_each_published_number_has_an_origin(folder: Path) -> None:
    rows = [origin for origin in origins(table(folder)) if origin.columns == ["toy score"]]
    assert [(origin.row, origin.run, origin.value, origin.date) for origin in rows] == [
        (row, f"seed {seed}", value, f"2026-11-2{seed}")
        for row in ("GCN", "kMIP")
        for seed, value in ((0, "90"), (1, "80"))
    ]
    facts = ("a CPU, 2 cores", "abc1234", str(folder / "toy.csv"))
    assert {(origin.hardware, origin.code_version, origin.folder) for origin in rows} == {facts}
    assert "published" in csv_export(table(folder)).splitlines()[0]


def test_below_a_figure_stand_the_published_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(draw_figure_module, "_write_around", lambda figure, title, below, sample: written.append(below))  # noqa: ARG005
    spec = dataclasses.replace(SPEC, value="score", columns={"toy": {"metric": "f1"}}, scale={})
    change(folder, lambda rows: rows.kind == "run", date="2026-11-21")
    change(folder, of_gcn, code_version="def5678")
    chosen_rows = dataclasses.replace(experiment(folder), tables={"toy": spec})
    drawn = FigureSpec("f", "ablation", tables=("toy",))
    draw_figure(chosen_rows, drawn, {"toy": table(folder, shown=chosen_rows)}, folder)
    assert written[0].splitlines() == [
        "ours: a CPU, 2 cores, 2026-11-21, abc1234; 2026-11-21, def5678",
        "published runs, not made here: GCN, kMIP",
    ]


def test_an_experiment_without_finished_runs_is_not_published(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"toy has no finished run of today's settings in .*: `run` it first"):
        publish(tmp_path)


SHIPPED = sorted((reproduce.MANIFESTS / "published").glob("*.csv"))


def test_the_command_writes_what_table_shows_and_keeps_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manifests = tmp_path / "experiments"
    shutil.copytree(reproduce.MANIFESTS, manifests)
    monkeypatch.setattr(reproduce, "MANIFESTS", manifests)
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    monkeypatch.setattr(reproduce, "compute_hash", str)
    fair = reproduce.manifest()["fair/minesweeper"]
    (training,) = (row for row in fair.trainings if row.point["model"] == "GCN")
    name = reproduce.below_root(tmp_path)  # as the command does
    ranges = reproduce.load_ranges(manifests / "ranges")
    only = dataclasses.replace(fair, trainings=(training,))
    run_search(only, "random", ranges, Recorder(reproduce.ROOT / name, scores()), reproduce.ROOT / name)
    out = ["--out", str(tmp_path)]
    assert reproduce.main(["publish", "fair/minesweeper", *out]) == 0
    file = manifests / "published/fair-minesweeper.csv"
    assert capsys.readouterr().out.startswith(f"{file}: 28 runs")
    before = file.read_bytes()
    pd.read_csv(file).fillna({"epoch_seconds": 2.0, "memory_mb": 700.0}).to_csv(file, index=False)  # toys have neither
    for path in (tmp_path / "Fair", reproduce.ROOT / name / "Fair"):
        shutil.rmtree(path, ignore_errors=True)
    for options in ([], ["--published"]):
        assert reproduce.main(["table", "fair/minesweeper", *out, *options]) == 0
        assert ("[†]" in capsys.readouterr().out) is bool(options)
    change_rows = pd.read_csv(file)
    change_rows.loc[0, "config_hash"] = "of a file that has changed"
    change_rows.to_csv(file, index=False)
    assert reproduce.main(["publish", "fair/minesweeper", *out]) == 0
    assert capsys.readouterr().out == f"{file}: 27 runs; 1 of other settings dropped\n"
    assert file.read_bytes() != before
    assert reproduce.main(["publish", "fair/tolokers", *out]) == 2


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_runs_are_of_todays_settings(file: Path, tmp_path: Path) -> None:
    """A change of ranges or settings makes a run one of another experiment: train it again, or `publish` without it."""
    (key,) = (name for name in reproduce.manifest() if name.replace("/", "-") == file.stem)
    experiment = with_published(reproduce.manifest()[key], file.parent)
    rows = published_rows(
        experiment, reproduce.load_ranges(reproduce.MANIFESTS / "ranges"), tmp_path, reproduce.compute_hash
    )
    assert published_csv(rows) == file.read_bytes()
