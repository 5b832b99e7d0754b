"""Equal tuning: all models of a table get the same trials, and what a search chose, or was published, is the row."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from graphgps_kmip import reproduce
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.chosen_settings import check_searched, load_published, with_choices
from graphgps_kmip.experiments.experiment_spec import Experiment
from graphgps_kmip.experiments.hyperparameter_search import open_study, run_search
from graphgps_kmip.experiments.run_status import failure_file
from graphgps_kmip.experiments.search_space import load_ranges, searches
from graphgps_kmip.report.publishing import published_yaml
from tests.experiments.search_cases import FACTORS, TOGETHER, Recorder, Score, scores, toy

MANIFEST, SHIPPED = reproduce.manifest(), load_ranges(reproduce.MANIFESTS / "ranges")
Capture, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch
PUBLISHED = load_published(reproduce.MANIFESTS / "published")
TOY = toy("GCN", "kMIP")
MORE = FACTORS | {"k": {"default": 5, "values": [5, 10], "keys": ["gt.kmip.k"]}}
WHERE = [{"where": {"model": ["GCN"]}, "factors": FACTORS}, {"where": {"model": ["kMIP"]}, "factors": MORE}]
BEST = scores(lr001_depth8=0.9)


def ranges(trials: int = 12, **changes: Any) -> dict[str, Any]:
    """Ranges of two models, of which one has a factor more."""
    return {"toy": {"source": "ours", "tuning": {"trials": trials, "seed": 7}, "searches": WHERE} | changes}


def searched(out: Path, score: Score = BEST, trials: int = 12) -> tuple[Experiment, Recorder]:
    """The experiment with the choices of its search, and what was trained for it."""
    runner = Recorder(out, score)
    run_search(TOY, "tpe", ranges(trials), runner, out)
    return with_choices(TOY, ranges(trials), out, str), runner


def publish(experiment: Experiment, folder: Path, **changes: Any) -> Any:
    content = yaml.safe_load("\n".join(published_yaml(experiment, folder / "elsewhere", str)))
    content["toy"]["Toys/gcn"] |= changes
    (folder / "toy.yaml").write_text(yaml.safe_dump(content))
    return load_published(folder)


def test_every_model_gets_the_same_trials_and_tries_the_same_values_of_what_they_share(tmp_path: Path) -> None:
    experiment, runner = searched(tmp_path, trials=10)
    assert [(record.trials, record.seed) for record in experiment.searched.values()] == [(10, 7), (10, 7)]
    ends = [name.rpartition("/")[2] for name in runner.trained]
    assert ends == ["7"] * (len(ends) - 4) + ["0", "1", "0", "1"]
    files = [tmp_path / f"search/toy/{model}-tpe.optuna.jsonl" for model in ("gcn", "kmip")]
    plain, more = ([trial.params for trial in open_study(file).trials] for file in files)
    assert plain == [{name: choice[name] for name in FACTORS} for choice in more]
    assert len({tuple(choice.items()) for choice in plain}) > 3


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

    run_search(TOY, "tpe", ranges(4), run, tmp_path)
    records = with_choices(TOY, ranges(4), tmp_path, str).searched.values()
    gcn = next(record for record in records if record.config == "Toys/gcn")
    assert (gcn.trials, gcn.failed, gcn.seconds) == (4, 1, 1000.0 + 61.0 * (len(gcn.tried) - 1))
    assert (gcn.tried[0]["state"], gcn.tried[0]["error"]) == ("diverged", "out of memory")


def test_what_is_not_searched_is_refused_in_a_line_with_the_command(tmp_path: Path) -> None:
    half = dataclasses.replace(TOY, trainings=TOY.trainings[:1])
    run_search(half, "tpe", ranges(4), Recorder(tmp_path, BEST), tmp_path)
    experiment = with_choices(TOY, ranges(4), tmp_path, str)
    message = r"toy: no finished search has chosen the settings of kMIP: run `.* run toy --search`"
    with pytest.raises(ManifestError, match=message):
        check_searched(experiment)
    check_searched(TOY)  # an experiment whose settings are its own


def test_a_search_that_was_stopped_has_no_choice_and_goes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_search(TOY, "tpe", ranges(4), Recorder(tmp_path, BEST, limit=5), tmp_path)
    assert with_choices(TOY, ranges(4), tmp_path, str).searched == {}
    resumed, whole = (searched(out, trials=4)[0].searched for out in (tmp_path, tmp_path / "whole"))
    assert [record.tried for record in resumed.values()] == [record.tried for record in whole.values()]
    assert resumed.keys() == whole.keys()


def test_a_choice_of_other_ranges_settings_or_samples_does_not_count(tmp_path: Path) -> None:
    published = publish(searched(tmp_path)[0], tmp_path)
    for _ in ("of a search here", "published"):
        assert len(with_choices(TOY, ranges(), tmp_path, str, published=published).searched) == 2
        fixed, changed = ranges(fixed={"gt.n_heads": 2}), lambda argv: f"{argv} of a file that has changed"
        assert with_choices(TOY, fixed, tmp_path, str, published=published).searched == {}
        assert with_choices(TOY, ranges(), tmp_path, changed, published=published).searched == {}
        assert with_choices(TOY, ranges(), tmp_path, str, sample=True, published=published).searched == {}
        shutil.rmtree(tmp_path / "search", ignore_errors=True)


def test_experiments_whose_ranges_have_no_tuning_keep_their_settings(tmp_path: Path) -> None:
    untuned = {"toy": {key: value for key, value in ranges()["toy"].items() if key != "tuning"}}
    run_search(TOY, "tpe", untuned, Recorder(tmp_path, BEST), tmp_path, trials=4)
    assert with_choices(TOY, untuned, tmp_path, str) is TOY


def test_a_trial_chooses_on_the_split_of_the_tuning_and_the_row_has_all_splits(tmp_path: Path) -> None:
    splits = tuple(dataclasses.replace(training, splits=True) for training in TOY.trainings)
    tuning = {"trials": 4, "seed": 7, "set": {"dataset.split_index": 3}}
    search, _ = searches(dataclasses.replace(TOY, trainings=splits), ranges(tuning=tuning))
    for argv, split, seed in (
        (search.trial(search.space.default).arguments(7, tmp_path), "3", "7"),
        (search.finals(search.space.default)[0].arguments(1, tmp_path), "1", "1"),
    ):
        assert (argv[argv.index("dataset.split_index") + 1], argv[argv.index("seed") + 1]) == (split, seed)


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


@pytest.mark.parametrize("key", [key for key, entry in SHIPPED.items() if "tuning" in entry])
def test_the_models_of_a_shipped_table_share_their_first_factors_and_have_few_of_their_own(key: str) -> None:
    spaces = {search.training.folder: search.space for search in searches(MANIFEST[key], SHIPPED)}.values()
    drawn = [[(factor.name, list(factor.values)) for factor in space.factors] for space in spaces]
    gps = [factors for factors in drawn if "res" in dict(factors)]
    assert len(gps) == (12 if key in ("fair/cora", "fair/citeseer") else 11)  # APPNP there alone
    assert all(factors[:8] == gps[0] and len(factors) <= 10 for factors in gps)
    assert all(factors[:3] == drawn[0][:3] for factors in drawn)
    shared = dict(drawn[0])
    assert all(values == shared.get(name, values) or name == "dim" for factors in drawn for name, values in factors)


@pytest.mark.parametrize("sample", [[], ["--sample"]])
def test_a_fair_table_needs_its_search(sample: list[str], tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr(reproduce, "load_published", lambda _: {})  # choices of our own searches
    assert reproduce.main(["plan", "fair/cora", "--out", str(tmp_path), *sample, "--only", "model=GCN+GPS+kMIP"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no finished search has chosen the settings of Cora GCN, Cora GPS+kMIP: run `" in line
    assert line.endswith(" ".join(["run fair/cora --search", *sample, "--only model=GCN+GPS+kMIP`"]))


def test_a_published_choice_makes_the_same_rows_as_the_search_and_one_of_ones_own_comes_first(tmp_path: Path) -> None:
    experiment, _ = searched(tmp_path)
    published = publish(experiment, tmp_path)
    shutil.rmtree(tmp_path / "search")
    again = with_choices(TOY, ranges(), tmp_path, str, published=published)
    assert again.trainings == experiment.trainings
    for record, here in zip(again.searched.values(), experiment.searched.values(), strict=True):
        assert (record.published, here.published) == (True, False)
        assert record == dataclasses.replace(here, tried=())
    first = next(iter(experiment.searched))
    half = publish(dataclasses.replace(experiment, searched={first: experiment.searched[first]}), tmp_path)
    assert list(with_choices(TOY, ranges(), tmp_path, str, published=half).searched) == [first]
    run_search(TOY, "tpe", ranges(), Recorder(tmp_path, scores(depth2=0.8)), tmp_path, trials=4)
    records = with_choices(TOY, ranges(), tmp_path, str, published=published).searched.values()
    assert [(record.published, record.trials) for record in records] == [(False, 4), (False, 4)]


def test_nothing_is_published_of_what_is_not_searched(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="toy: no finished search has chosen the settings of GCN, kMIP"):
        list(published_yaml(with_choices(TOY, ranges(), tmp_path, str), tmp_path, str))
    with pytest.raises(ManifestError, match="toy has no models of its own that are tuned alike by --search"):
        list(published_yaml(TOY, tmp_path, str))


@pytest.mark.parametrize("key", PUBLISHED)
def test_shipped_choices_are_of_todays_ranges_and_settings(key: str, tmp_path: Path) -> None:
    """A change of ranges or settings makes a choice one of another experiment: search again, or remove its entry."""
    experiment = with_choices(MANIFEST[key], SHIPPED, tmp_path, reproduce.hash_of, published=PUBLISHED)
    assert {record.config for record in experiment.searched.values()} == PUBLISHED[key].keys()
    trainings = {training.folder: training for training in experiment.trainings}
    assert len(experiment.published) == sum("runs" in entry for entry in PUBLISHED[key].values())
    for folder, runs in experiment.published.items():
        assert runs.are_of(trainings[folder], tmp_path, reproduce.hash_of)


def test_the_command_writes_what_it_reads(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    key = next(iter(PUBLISHED))
    copy = Path(shutil.copytree(reproduce.MANIFESTS, tmp_path / "experiments"))
    monkeypatch.setattr(reproduce, "MANIFESTS", copy)
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    file = copy / f"published/{key.replace('/', '-')}.yaml"
    before = yaml.safe_load(file.read_text())
    assert reproduce.main(["publish", key, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    assert yaml.safe_load(file.read_text()) == before
