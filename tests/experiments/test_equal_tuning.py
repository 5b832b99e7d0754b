"""Equal tuning: all models of a table get the same trials, and the settings that a search chose become the row."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import optuna
import pytest

from graphgps_kmip import reproduce
from graphgps_kmip.errors import InputError, ManifestError, ResultsError
from graphgps_kmip.experiments.chosen_settings import check_searched, with_choices
from graphgps_kmip.experiments.experiment_spec import Experiment
from graphgps_kmip.experiments.hyperparameter_search import Options, StorageLock, open_study, run_search
from graphgps_kmip.experiments.manifest import load_manifest
from graphgps_kmip.experiments.run_status import failure_file
from graphgps_kmip.experiments.search_record import search_file
from graphgps_kmip.experiments.search_space import load_ranges, searches
from tests.experiments.search_cases import FACTORS, TOGETHER, Recorder, Score, scores, toy

ROOT = Path(__file__).parents[2]
MANIFEST, SHIPPED = load_manifest(ROOT / "run/experiments"), load_ranges(ROOT / "run/experiments/ranges")
FAIR = [key for key, entry in SHIPPED.items() if "tuning" in entry]
TOY = toy("GCN", "kMIP")
OWN = FACTORS | {"k": {"default": 5, "values": [5, 10], "keys": ["gt.kmip.k"]}}
WHERE = [{"where": {"model": ["GCN"]}, "factors": FACTORS}, {"where": {"model": ["kMIP"]}, "factors": OWN}]
BEST = scores(lr001_depth8=0.9)


def ranges(trials: int = 30, **changes: Any) -> dict[str, Any]:
    """Ranges of two models, of which one has a factor of its own."""
    return {"toy": {"source": "ours", "tuning": {"trials": trials, "seed": 7}, "searches": WHERE} | changes}


def searched(out: Path, score: Score = BEST, trials: int = 30) -> tuple[Experiment, Recorder]:
    """The experiment with the choices of its search, and what was trained for it."""
    runner = Recorder(out, score)
    run_search(TOY, "tpe", ranges(trials), runner, out, Options())
    return with_choices(TOY, ranges(trials), out, str), runner


def asked(out: Path, model: str) -> list[dict[str, str]]:
    storage = StorageLock(out / f"search/toy/{model}-tpe.optuna.jsonl")
    return [trial.params for trial in open_study(optuna, storage).trials]


def test_every_model_gets_the_trials_of_the_ranges_with_their_seed_and_reports_others(tmp_path: Path) -> None:
    found, runner = searched(tmp_path, trials=4)
    assert [(one.trials, one.seed) for one in found.searched.values()] == [(4, 7), (4, 7)]
    assert {len(asked(tmp_path, model)) for model in ("gcn", "kmip")} == {4}
    ends = [name.rpartition("/")[2] for name in runner.trained]
    assert ends == ["7"] * (len(ends) - 4) + ["0", "1", "0", "1"]


def test_all_models_try_the_same_values_of_what_they_share(tmp_path: Path) -> None:
    searched(tmp_path, trials=10)
    plain, own = asked(tmp_path, "gcn"), asked(tmp_path, "kmip")
    assert plain == [{name: one[name] for name in FACTORS} for one in own]
    assert len({tuple(one.items()) for one in plain}) > 3


def test_the_choice_becomes_the_row_with_its_folder_seeds_and_settings(tmp_path: Path) -> None:
    found, _ = searched(tmp_path)
    row = found.trainings[0]
    assert (row.folder, row.seeds) == (f"Toys/gcn-{TOGETHER}", (0, 1))
    assert row.settings == {"optim.base_lr": 0.01, "gt.layers": 8}
    assert found.searched[row.folder].choice == {"lr": "0.01", "depth": "8"}
    check_searched(found)


def test_a_failed_trial_is_a_trial_and_its_seconds_are_part_of_the_cost(tmp_path: Path) -> None:
    runner = Recorder(tmp_path, scores(default=MemoryError("out of memory")))
    failure = failure_file(tmp_path / "Toys/gcn-search-default/7")

    def run(runs: Any, ended: Any) -> Any:
        statuses = runner(runs, ended)
        if failure.exists():
            failure.write_text(json.dumps(json.loads(failure.read_text()) | {"seconds": 1000.0}))
        return statuses

    run_search(TOY, "tpe", ranges(4), run, tmp_path, Options())
    record = with_choices(TOY, ranges(4), tmp_path, str).searched
    gcn = next(one for one in record.values() if one.config == "Toys/gcn")
    assert (gcn.trials, gcn.failed) == (4, 1)
    assert gcn.seconds == 1000.0 + 61.0 * (len(gcn.tried) - 1)
    assert (gcn.tried[0]["state"], gcn.tried[0]["error"]) == ("diverged", "out of memory")


def test_what_is_not_searched_is_refused_in_a_line_with_the_command(tmp_path: Path) -> None:
    runner = Recorder(tmp_path, BEST)
    half = dataclasses.replace(TOY, trainings=TOY.trainings[:1])
    run_search(half, "tpe", ranges(4), runner, tmp_path, Options())
    found = with_choices(TOY, ranges(4), tmp_path, str)
    assert [one.folder for one in found.trainings if one.folder not in found.searched] == ["Toys/kmip"]
    with pytest.raises(
        ManifestError, match=r"toy: no finished search has chosen the settings of kMIP: run `.* --search`"
    ):
        check_searched(found)
    check_searched(TOY)  # an experiment whose settings are its own


def test_a_search_that_was_stopped_has_no_choice_and_goes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_search(TOY, "tpe", ranges(4), Recorder(tmp_path, BEST, limit=5), tmp_path, Options())
    assert with_choices(TOY, ranges(4), tmp_path, str).searched == {}
    resumed, whole = (searched(out, trials=4)[0].searched for out in (tmp_path, tmp_path / "whole"))
    assert [one.choice for one in resumed.values()] == [one.choice for one in whole.values()]
    assert [one.tried for one in resumed.values()] == [one.tried for one in whole.values()]


def test_a_choice_of_other_ranges_does_not_count(tmp_path: Path) -> None:
    searched(tmp_path, trials=4)
    other = ranges(4, fixed={"gt.n_heads": 2})
    assert with_choices(TOY, other, tmp_path, str).searched == {}


def test_a_choice_among_trials_of_other_settings_does_not_count(tmp_path: Path) -> None:
    searched(tmp_path, trials=4)
    assert with_choices(TOY, ranges(4), tmp_path, lambda words: f"{words} of a file that has changed").searched == {}


def test_a_damaged_record_of_a_search_is_refused_in_one_line(tmp_path: Path) -> None:
    searched(tmp_path, trials=4)
    search_file("toy", TOY.trainings[0], tmp_path, sample=False).write_text('{"trials": 4}')
    with pytest.raises(ResultsError, match="gcn-tpe.json is no record of a search: delete it and run the search again"):
        with_choices(TOY, ranges(4), tmp_path, str)


def test_experiments_whose_ranges_have_no_tuning_keep_their_settings(tmp_path: Path) -> None:
    untuned = {"toy": {key: value for key, value in ranges()["toy"].items() if key != "tuning"}}
    run_search(TOY, "tpe", untuned, Recorder(tmp_path, BEST), tmp_path, Options(trials=4))
    assert with_choices(TOY, untuned, tmp_path, str) is TOY


def test_linear_search_cannot_tune_equally_and_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="toy gives every model the same number of trials, .* use --search tpe"):
        run_search(TOY, "linear", ranges(), Recorder(tmp_path, BEST), tmp_path)


def test_a_trial_chooses_on_the_split_of_the_tuning_and_the_row_has_all_splits(tmp_path: Path) -> None:
    splits = tuple(dataclasses.replace(one, splits=True) for one in TOY.trainings)
    tuning = {"trials": 4, "seed": 7, "set": {"dataset.split_index": 3}}
    search, _ = searches(dataclasses.replace(TOY, trainings=splits), ranges(tuning=tuning))
    words = search.trial(search.space.default).words(7, tmp_path)
    assert (words[words.index("dataset.split_index") + 1], words[words.index("seed") + 1]) == ("3", "7")
    words = search.finals(search.space.default)[0].words(1, tmp_path)
    assert (words[words.index("dataset.split_index") + 1], words[words.index("seed") + 1]) == ("1", "1")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tuning": {"trials": 4, "seed": 1}}, "seed 1 of the trials is a seed of Toys/gcn, too"),
        ({"searches": WHERE[:1]}, "Toys/kmip has ranges 0 times"),
        ({"searches": [*WHERE, WHERE[0]]}, "Toys/gcn has ranges 2 times"),
    ],
)
def test_unequal_tuning_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        searches(TOY, ranges(**changes))


@pytest.mark.parametrize("key", FAIR)
def test_the_models_of_a_shipped_table_share_their_first_factors_and_have_few_of_their_own(key: str) -> None:
    spaces = {search.training.folder: search.space for search in searches(MANIFEST[key], SHIPPED)}.values()
    drawn = [[(factor.name, list(factor.values)) for factor in space.factors] for space in spaces]
    gps = [one for one in drawn if "res" in dict(one)]
    assert len(gps) == (12 if key in ("fair/cora", "fair/citeseer") else 11)  # APPNP there alone
    assert all(factors[:8] == gps[0] and len(factors) <= 10 for factors in gps)
    assert all(one[:3] == drawn[0][:3] for one in drawn)
    assert all(values == dict(drawn[0]).get(name, values) or name == "dim" for one in drawn for name, values in one)


@pytest.mark.parametrize("sample", [[], ["--sample"]])
def test_a_fair_table_without_its_search_is_refused_with_the_command_of_just_this_search(
    sample: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "load_published", lambda _: {})  # choices of our own searches
    assert reproduce.main(["plan", "fair/cora", "--out", str(tmp_path), *sample, "--only", "model=GCN+GPS+kMIP"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "no finished search has chosen the settings of Cora GCN, Cora GPS+kMIP: run `" in said[0]
    assert said[0].endswith(" ".join(["run fair/cora --search", *sample, "--only model=GCN+GPS+kMIP`"]))
