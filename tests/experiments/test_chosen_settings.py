"""Published choices: rows without a search of one's own, and what makes a choice not count."""

from __future__ import annotations

import dataclasses
import functools
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from graphgps_kmip import reproduce
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.chosen_settings import with_choices
from graphgps_kmip.experiments.experiment_spec import Experiment
from graphgps_kmip.experiments.hyperparameter_search import Options, run_search
from graphgps_kmip.experiments.published_results import Published, load_published
from graphgps_kmip.experiments.search_space import load_ranges
from graphgps_kmip.report.publishing import published_yaml
from graphgps_kmip.report.table_notes import tuning_notes
from tests.experiments.search_cases import FACTORS, TOGETHER, Recorder, scores, toy

TOY = toy("GCN", "kMIP")
WHERE = [{"where": {"model": ["GCN", "kMIP"]}, "factors": FACTORS}]
RANGES = {"toy": {"source": "ours", "tuning": {"trials": 12, "seed": 7}, "searches": WHERE}}
BEST = scores(lr001_depth8=0.9)
PUBLISHED = load_published(reproduce.MANIFESTS / "published")


@pytest.fixture
def searched(tmp_path: Path) -> Experiment:
    """The experiment with what a search chose, whose folder is lost."""
    run_search(TOY, "tpe", RANGES, Recorder(tmp_path, BEST), tmp_path, Options())
    found = with_choices(TOY, RANGES, tmp_path, str)
    shutil.rmtree(tmp_path / "search")
    return found


def publish(experiment: Experiment, folder: Path) -> Published:
    (folder / "toy.yaml").write_text("\n".join(published_yaml(experiment, folder / "elsewhere", str)))
    return load_published(folder)


def test_a_published_choice_makes_the_same_rows_as_the_search(searched: Experiment, tmp_path: Path) -> None:
    found = with_choices(TOY, RANGES, tmp_path, str, published=publish(searched, tmp_path))
    assert found.trainings == searched.trainings
    assert found.trainings[0].folder == f"Toys/gcn-{TOGETHER}"
    for one, own in zip(found.searched.values(), searched.searched.values(), strict=True):
        assert (one.published, own.published) == (True, False)
        assert one == dataclasses.replace(own, tried=())


def test_a_search_of_ones_own_comes_before_the_published_choice(searched: Experiment, tmp_path: Path) -> None:
    published = publish(searched, tmp_path)
    run_search(TOY, "tpe", RANGES, Recorder(tmp_path, scores(depth2=0.8)), tmp_path, Options(trials=4))
    found = with_choices(TOY, RANGES, tmp_path, str, published=published)
    assert not any(one.published for one in found.searched.values())
    assert {one.trials for one in found.searched.values()} == {4}


def test_what_was_published_in_part_is_in_part_searched(searched: Experiment, tmp_path: Path) -> None:
    half = dataclasses.replace(searched, searched=dict([next(iter(searched.searched.items()))]))
    found = with_choices(TOY, RANGES, tmp_path, str, published=publish(half, tmp_path))
    assert [one.folder in found.searched for one in found.trainings] == [True, False]


def test_a_published_choice_of_other_ranges_settings_or_for_samples_does_not_count(
    searched: Experiment, tmp_path: Path
) -> None:
    published = publish(searched, tmp_path)
    deeper = FACTORS | {"depth": {**FACTORS["depth"], "values": [2, 4, 8, 16]}}
    wider = {"toy": RANGES["toy"] | {"searches": [{"where": WHERE[0]["where"], "factors": deeper}]}}
    changed = lambda words: f"{words} of a file that has changed"  # noqa: E731
    assert with_choices(TOY, wider, tmp_path, str, published=published).searched == {}
    assert with_choices(TOY, RANGES, tmp_path, changed, published=published).searched == {}
    assert with_choices(TOY, RANGES, tmp_path, str, sample=True, published=published).searched == {}


def test_below_a_table_stand_the_rows_whose_choice_was_published(searched: Experiment, tmp_path: Path) -> None:
    found = with_choices(TOY, RANGES, tmp_path, str, published=publish(searched, tmp_path))
    published, own = next(iter(found.searched.values())), next(iter(searched.searched.values()))
    notes = list(tuning_notes({"GCN": published, "kMIP": own}))
    assert notes[1] == "not searched here, but with published choices (run/experiments/published): GCN."
    assert not any("published" in note for note in tuning_notes({"kMIP": own}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"choice": {"lr": "0.5", "depth": "8"}}, "choice of Toys/gcn: lr '0.5' is not in its range 0.1, 0.01"),
        ({"choice": {"lr": "0.1", "dept": "8"}}, "choice of Toys/gcn: unknown key 'dept'. Did you mean depth?"),
        ({"choice": {"lr": "0.1"}}, "choice of Toys/gcn: depth missing"),
        ({"found": {"trials": 4}}, "toy.yaml, Toys/gcn, found: failed, seconds, seed, metric, value missing"),
        ({"chosen": {}}, "toy.yaml, Toys/gcn: unknown key 'chosen'. Did you mean choice?"),
    ],
)
def test_a_wrong_entry_is_refused_in_a_line_with_its_place(
    change: dict[str, Any], message: str, searched: Experiment, tmp_path: Path
) -> None:
    publish(searched, tmp_path)
    content = yaml.safe_load((tmp_path / "toy.yaml").read_text())
    content["toy"]["Toys/gcn"] |= change
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ManifestError) as error:
        with_choices(TOY, RANGES, tmp_path, str, published=load_published(tmp_path))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("place", "values", "kind"),
    [
        (("choice", "lr"), (None, 1.5), "a text"),
        (("found", "seconds"), (None, "much"), "a number"),
        (("found", "value"), (None, "much", True), "a number"),
        (("of", "ranges"), (None, 1.5), "a text"),
        (("runs", "metric"), (None, 1.5), "a text"),
        (("runs", "hardware", "cores"), (None, "much"), "a number"),
        (("runs", "values", "score"), (None, "much", 1.5, [None] * 5), "5 numbers, one a run"),
        (("runs", "seeds"), (None, "much", 1.5), "a list"),
    ],
)
def test_a_null_or_a_text_where_a_number_belongs_is_one_line(
    place: tuple[str, ...], values: tuple[object, ...], kind: str, tmp_path: Path
) -> None:
    content = yaml.safe_load((reproduce.MANIFESTS / "published/fair-cora.yaml").read_text())
    *outer, name = place
    entry = functools.reduce(dict.__getitem__, outer, content["fair/cora"]["Fair/cora-GCN"])
    for value in values:
        entry[name] = value
        (tmp_path / "a.yaml").write_text(yaml.safe_dump(content))
        with pytest.raises(ManifestError) as error:
            load_published(tmp_path)
        line = str(error.value)
        assert line.startswith(f"a.yaml, Fair/cora-GCN, {place[0]}: {name} is {value!r}: write {kind}")
        assert "\n" not in line


@pytest.mark.parametrize("content", ["fair/cora:\n", "fair/cora: much\n", "fair/cora: {Fair/cora-GCN: null}\n"])
def test_a_published_file_without_entries_is_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(content)
    with pytest.raises(ManifestError, match=r"^a\.yaml, .*: expected .*, found"):
        load_published(tmp_path)


def test_results_that_two_files_have_are_refused(searched: Experiment, tmp_path: Path) -> None:
    publish(searched, tmp_path)
    (tmp_path / "toy2.yaml").write_text((tmp_path / "toy.yaml").read_text())
    with pytest.raises(ManifestError, match=r"toy2.yaml, toy: its results are in another file already"):
        load_published(tmp_path)


def test_nothing_is_published_of_what_is_not_searched(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="toy: no finished search has chosen the settings of GCN, kMIP"):
        list(published_yaml(with_choices(TOY, RANGES, tmp_path, str), tmp_path, str))
    with pytest.raises(ManifestError, match="toy has no models of its own that are tuned alike by --search"):
        list(published_yaml(TOY, tmp_path, str))


@pytest.mark.parametrize("key", PUBLISHED)
def test_shipped_choices_are_of_todays_ranges_and_settings(key: str, tmp_path: Path) -> None:
    """A change of ranges or settings makes a choice one of another experiment: search again, or remove its entry."""
    ranges, experiment = load_ranges(reproduce.MANIFESTS / "ranges"), reproduce.manifest()[key]
    found = with_choices(experiment, ranges, tmp_path, reproduce.hash_of, published=PUBLISHED)
    assert {one.config for one in found.searched.values()} == PUBLISHED[key].keys()
    trainings = {one.folder: one for one in found.trainings}
    assert len(found.published) == sum("runs" in entry for entry in PUBLISHED[key].values())
    assert all(runs.are_of(trainings[folder], tmp_path, reproduce.hash_of) for folder, runs in found.published.items())


def test_the_command_writes_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = next(iter(PUBLISHED))
    copy = Path(shutil.copytree(reproduce.MANIFESTS, tmp_path / "experiments"))
    monkeypatch.setattr(reproduce, "MANIFESTS", copy)
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    file = copy / f"published/{key.replace('/', '-')}.yaml"
    before = yaml.safe_load(file.read_text())
    assert reproduce.main(["publish", key, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    assert yaml.safe_load(file.read_text()) == before
    assert reproduce.main(["publish", "quickstart/digits", "--out", str(tmp_path)]) == 2
    assert "no models of its own that are tuned alike" in capsys.readouterr().err
