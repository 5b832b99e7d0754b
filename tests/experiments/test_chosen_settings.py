"""Equal tuning: all models of a table get the same trials, and what a search chose, or was published, is the row."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from graphgps_kmip import reproduce
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.experiment_spec import Experiment
from graphgps_kmip.experiments.hyperparameter_search import check_searched, run_search, with_choices
from graphgps_kmip.experiments.run_status import failure_file
from graphgps_kmip.experiments.search_space import load_ranges, searches
from tests.experiments.search_cases import FACTORS, TOGETHER, Recorder, Score, scores, toy

MANIFEST, SHIPPED = reproduce.manifest(), load_ranges(reproduce.MANIFESTS / "ranges")
Capture = pytest.CaptureFixture[str]
TOY = toy("GCN", "kMIP")
MORE = FACTORS | {"k": {"default": 5, "values": [5, 10], "keys": ["gt.kmip.k"]}}
WHERE = [{"where": {"model": ["GCN"]}, "factors": FACTORS}, {"where": {"model": ["kMIP"]}, "factors": MORE}]
BEST = scores(lr001_depth8=0.9)


def ranges(trials: int = 6, **changes: Any) -> dict[str, Any]:
    """Ranges of two models, of which one has a factor more."""
    return {"toy": {"source": "ours", "tuning": {"trials": trials, "seeds": [7]}, "searches": WHERE} | changes}


def searched(out: Path, score: Score = BEST, trials: int = 6) -> tuple[Experiment, Recorder]:
    """The experiment with the choices of its search, and what was trained for it."""
    runner = Recorder(out, score)
    run_search(TOY, "random", ranges(trials), runner, out)
    return with_choices(TOY, ranges(trials), out, str), runner


def test_every_model_gets_the_same_trials_and_tries_the_same_values_of_what_they_share(tmp_path: Path) -> None:
    experiment, runner = searched(tmp_path, trials=4)
    assert [(record.trials, record.seeds) for record in experiment.searched.values()] == [(4, "seed 7")] * 2
    ends = [name.rpartition("/")[2] for name in runner.trained]
    assert ends == ["7"] * 8 + ["0", "1", "0", "1"]
    plain, more = ([trial.choice for trial in record.tried] for record in experiment.searched.values())
    assert plain == [{name: choice[name] for name in FACTORS} for choice in more]


def test_the_choice_becomes_the_row_with_its_folder_seeds_and_settings(tmp_path: Path) -> None:
    experiment, _ = searched(tmp_path)
    row = experiment.trainings[0]
    assert (row.folder, row.seeds) == (f"Toys/gcn-{TOGETHER}", (0, 1))
    assert row.settings == {"optim.base_lr": 0.01, "gt.layers": 8}
    assert experiment.searched[row.folder].choice == {"lr": "0.01", "depth": "8"}
    check_searched(experiment)


def test_a_failed_trial_is_a_trial_and_its_seconds_are_part_of_the_cost(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, scores(default=MemoryError("out of memory")))
    failure = failure_file(tmp_path / "Toys/gcn-search-default/7")

    def run(runs: Any) -> Any:
        statuses = recorder(runs)
        failure.write_text(json.dumps(json.loads(failure.read_text()) | {"seconds": 1000.0}))
        return statuses

    run_search(TOY, "random", ranges(4), run, tmp_path)
    records = with_choices(TOY, ranges(4), tmp_path, str).searched.values()
    gcn = next(record for record in records if record.config == "Toys/gcn")
    assert (gcn.trials, gcn.failed, gcn.seconds) == (4, 1, 1000.0 + 61.0 * 3)
    assert [status.error for status in gcn.tried[0].statuses] == ["out of memory"]


def test_what_is_not_searched_is_refused_in_a_line_with_the_command(tmp_path: Path) -> None:
    half = dataclasses.replace(TOY, trainings=TOY.trainings[:1])
    run_search(half, "random", ranges(4), Recorder(tmp_path, BEST), tmp_path)
    experiment = with_choices(TOY, ranges(4), tmp_path, str)
    message = r"toy: no finished search has chosen the settings of kMIP: run `.* run toy --search`"
    with pytest.raises(ManifestError, match=message):
        check_searched(experiment)
    check_searched(TOY)  # an experiment whose settings are its own


def test_a_search_that_was_stopped_has_no_choice_and_goes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_search(TOY, "random", ranges(4), Recorder(tmp_path, BEST, limit=3), tmp_path)
    assert with_choices(TOY, ranges(4), tmp_path, str).searched == {}
    resumed, whole = (searched(out, trials=4)[0].searched for out in (tmp_path, tmp_path / "whole"))
    assert [record.choice for record in resumed.values()] == [record.choice for record in whole.values()]
    assert resumed.keys() == whole.keys()


def test_a_choice_of_other_ranges_settings_or_samples_does_not_count(tmp_path: Path) -> None:
    assert len(searched(tmp_path)[0].searched) == 2
    changed = lambda argv: f"{argv} of a file that has changed"  # noqa: E731
    for of_ranges, compute_hash, sample in (
        (ranges(fixed={"gt.n_heads": 2}), str, False),
        (ranges(7, searches=[dict(part, factors=MORE) for part in WHERE]), str, False),  # a trial more
        (ranges(), changed, False),
        (ranges(), str, True),
    ):
        assert with_choices(TOY, of_ranges, tmp_path, compute_hash, sample).searched == {}


def test_a_sample_may_have_fewer_trials_than_the_ranges_say(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, BEST, sample=True)
    run_search(TOY, "random", ranges(6), recorder, tmp_path, trials=2, sample=True)
    records = with_choices(TOY, ranges(6), tmp_path, str, sample=True).searched.values()
    assert [record.trials for record in records] == [2, 2]


def test_experiments_whose_ranges_have_no_tuning_keep_their_settings(tmp_path: Path) -> None:
    untuned = {"toy": {key: value for key, value in ranges()["toy"].items() if key != "tuning"}}
    run_search(TOY, "random", untuned, Recorder(tmp_path, BEST), tmp_path, trials=4)
    assert with_choices(TOY, untuned, tmp_path, str) is TOY


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tuning": {"trials": 4, "seeds": [7, 1]}}, "seed 1 of the trials is a seed of Toys/gcn, too"),
        ({"searches": WHERE[:1]}, "Toys/kmip has ranges 0 times"),
        ({"searches": [*WHERE, WHERE[0]]}, "Toys/gcn has ranges 2 times"),
    ],
)
def test_unequal_tuning_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        searches(TOY, ranges(**changes))


@pytest.mark.parametrize(("key", "shared"), [("fair/minesweeper", "res"), ("fair/tolokers", "ffn")])
def test_the_gps_layers_of_a_shipped_table_share_all_factors_but_one_of_their_own(key: str, shared: str) -> None:
    spaces = {search.training.folder: search.space for search in searches(MANIFEST[key], SHIPPED)}.values()
    gps = [space.factors for space in spaces if shared in space.default]
    assert len(gps) == 10
    assert all(factors[:6] == gps[0] and len(factors) <= 7 for factors in gps)


@pytest.mark.parametrize("sample", [[], ["--sample"]])
def test_a_fair_table_needs_its_search(sample: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert (
        reproduce.main(
            ["plan", "fair/minesweeper", "--out", str(tmp_path), *sample, "--only", "model=LowWidth+Polynormer"]
        )
        == 2
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert "no finished search has chosen the settings of Minesweeper LowWidth, Minesweeper Polynormer: run `" in line
    assert line.endswith(" ".join(["run fair/minesweeper --search", *sample, "--only model=LowWidth+Polynormer`"]))
