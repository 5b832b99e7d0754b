"""Manifests: grids, added rows, and the error messages about a wrong one."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

import pytest
import yaml

from graphgps_kmip import reproduce
from graphgps_kmip.errors import ConfigError, ManifestError
from graphgps_kmip.experiments.experiment_spec import Experiment, TableSpec, Training
from graphgps_kmip.experiments.jobs import list_members
from graphgps_kmip.experiments.manifest import PrintedTable, load_manifest, with_members
from graphgps_kmip.experiments.search_space import searches
from graphgps_kmip.report.result_table import build_table
from tests.experiments.repository import PRINTED_RANGES, ROOT

EXAMPLE = re.search(r"```yaml\n(rows:\n.*?)```", (ROOT / "docs/fair-tables.md").read_text(), re.DOTALL)[1]
MINE = {"like": "GatedGCN+Transformer", "set": {"gt.layer_type": "GCN+Mine"}}
GRID = "trainings: [{over: {d: [x, y]}, cfg: 'F/{d}.yaml', seeds: 2}]"
SHARED = "commands: {c: {run: r, sample: s, produces: [f], needs: []}}"


def write_example(folder: Path, *files: str) -> Path:
    for number, text in enumerate(files):
        (folder / f"{number}.yaml").write_text(text, encoding="utf-8")
    return folder


def entry(body: str, key: str = "a") -> str:
    return f"axes: {{d: {{x: ex, y: why}}}}\nexperiments: {{{key}: {{title: t, {body}}}}}"


def test_a_grid_is_filled_from_its_axes(tmp_path: Path) -> None:
    grid = (
        "{over: {d: all, k: [1, 2]}, skip: [{d: y, k: 2}], cfg: 'F/{d.file}.yaml', set: {m.k: '{k}', n: 3}, tag: 'k{k}'"
    )
    trainings = load_manifest(write_example(tmp_path, entry(f"trainings: [{grid}, seeds: [4, 5]}}]")))["a"].trainings
    assert trainings == tuple(
        Training({"d": d, "k": str(k)}, f"F/{file}.yaml", (4, 5), {"m.k": k, "n": 3}, f"k{k}")
        for d, file, k in (("x", "ex", 1), ("x", "ex", 2), ("y", "why", 1))
    )


def test_keys_of_a_grid_take_the_seed_of_each_run(tmp_path: Path) -> None:
    grid = "{over: {d: [x]}, cfg: 'F/x.yaml', seeds: [4, 5], splits: True, seeded: [m.other, m.third]}"
    (training,) = load_manifest(write_example(tmp_path, entry(f"trainings: [{grid}]")))["a"].trainings
    for seed in (4, 5):
        argv = training.arguments(seed, tmp_path)
        settings = dict(zip(argv[2::2], argv[3::2], strict=True))
        taken = [settings[key] for key in ("seed", "dataset.split_index", "m.other", "m.third")]
        assert taken == [str(seed)] * 4


def test_an_experiment_made_of_others_has_their_trainings_and_parts_of_it_are_theirs(tmp_path: Path) -> None:
    grid = "trainings: [{{over: {{d: [x, y]}}, cfg: '{}/{{d}}.yaml', seeds: 2}}]"
    files = [entry(grid.format(key.upper()), key) for key in "ab"]
    manifest = load_manifest(write_example(tmp_path, "experiments: {all: {title: t, of: [b, a]}}", *files))
    assert [part.folder for part in manifest["all"].trainings] == ["B/x", "B/y", "A/x", "A/y"]
    parts = list_members(manifest, "all", "d=y", 1)
    assert [(part.id, [training.folder for training in part.trainings]) for part in parts] == [
        ("b", ["B/y"]),
        ("a", ["A/y"]),
    ]
    assert {training.seeds for part in parts for training in part.trainings} == {(0,)}
    assert [part.id for part in list_members(manifest, "a", "")] == ["a"]
    searched = {"a": {"A/x": 1}, "b": {"B/x": 2}}
    manifest = {key: dataclasses.replace(part, searched=searched.get(key)) for key, part in manifest.items()}
    assert with_members(manifest)["all"].searched == {"A/x": 1, "B/x": 2}
    manifest["a"] = dataclasses.replace(manifest["a"], searched=None)
    assert with_members(manifest)["all"].searched is None


def test_two_trainings_of_one_folder_take_the_seed_for_the_same_keys(tmp_path: Path) -> None:
    grid = "{over: {d: [x]}, cfg: 'F/{d}.yaml', seeds: 2}"
    write_example(tmp_path, entry(f"trainings: [{grid}, {grid.replace('seeds: 2', 'seeds: 3')}]"))
    assert len(load_manifest(tmp_path)["a"].trainings) == 2
    write_example(tmp_path, entry(f"trainings: [{grid}, {grid.replace('seeds: 2', 'seeds: 2, seeded: [m.other]')}]"))
    with pytest.raises(ManifestError, match="F/x holds another training too: give it a tag"):
        load_manifest(tmp_path)


def test_experiments_of_several_folders_are_one_manifest(tmp_path: Path) -> None:
    shipped, users, none = (tmp_path / name for name in ("ours", "users", "none"))
    shipped.mkdir()
    users.mkdir()
    write_example(shipped, entry(GRID))
    write_example(
        users, entry("commands: {c: {run: r, sample: s, produces: [], needs: [{experiment: a, point: {d: x}}]}}", "b")
    )
    assert list(load_manifest(shipped, users, none)) == ["a", "b"]
    write_example(users, entry(GRID))
    with pytest.raises(ManifestError, match="experiment a is in another place already"):
        load_manifest(shipped, users)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), "holds no experiment"),
        (("experiment: {}",), "unknown key 'experiment'. Did you mean experiments?"),
        (("experiments: {a: {}}",), "Experiment: title missing"),
        (("experiments: {a: 3}",), "0.yaml, a: expected keys and values, found 3"),
        ((entry("of: [aa]"),), "no experiment 'aa'. Did you mean a?"),
        ((entry("trainings: [{cfg: F/x.yaml}]"),), "0.yaml, a: seeds missing"),
        ((entry(GRID.replace("[x, y]", "[z]")),), "0.yaml, a: axis d has no 'z'. Allowed: x, y"),
        ((entry(GRID.replace("d: [x, y]", "e: all")),), "axis 'e' has no values for `all`"),
        ((entry(GRID.replace("{d}", "{e}")),), "no axis 'e'. Allowed: d"),
        ((entry(GRID.replace("seeds", "skip: [{d: z}], seeds")),), "skip: d has no 'z'"),
        ((entry(GRID.replace("F/{d}.yaml", "F/c.yaml").replace("seeds", "set: {k: '{d}'}, seeds")),), "give it a tag"),
        ((entry("commands: {c: {run: r, sample: s}}"),), "Command: produces missing"),
        ((entry("tables: {t: {values: score}}"),), "unknown key 'values'. Did you mean value?"),
        ((entry("makes: table 1"),), "0.yaml, a, makes: expected a list, found 'table 1'"),
        ((entry("number: x"),), "0.yaml, a, number: expected a whole number, found 'x'"),
        ((entry(GRID.replace("[x, y]", "x")),), "axis d: expected a list of values or `all`, found 'x'"),
        ((entry(f"{GRID}, {SHARED.replace('[]', '[{experiment: b}]')}"),), "no experiment 'b'"),
        ((entry(f"{GRID}, {SHARED.replace('[]', '[{point: {d: z}}]')}"),), "a needs d z of a: 0 trainings fit"),
        ((entry(f"{GRID}, {SHARED.replace('[]', '[{point: {}}]')}"),), "a needs a training of a: 2 trainings fit"),
        ((entry(f"{GRID}, {SHARED.replace('[]', '[{command: e}]')}"),), "a needs command e of a. Allowed: c"),
        ((entry(f"{GRID}, {SHARED.replace('[]', '[{points: {}}]')}"),), "unknown key 'points'. Did you mean point?"),
    ],
)
def test_a_manifest_that_is_wrong_is_told_where(tmp_path: Path, files: tuple[str, ...], message: str) -> None:
    with pytest.raises((ManifestError, ConfigError), match=re.escape(message)):
        load_manifest(write_example(tmp_path, *files))


def with_rows(folder: Path, rows: dict) -> dict[str, Experiment]:
    shutil.copy(ROOT / "run/experiments/fair.yaml", folder / "fair.yaml")
    (folder / "mine.yaml").write_text(yaml.safe_dump({"rows": rows}))
    return load_manifest(folder)


def test_an_added_row_has_config_seeds_and_settings_of_the_row_that_it_is_like_and_its_own(tmp_path: Path) -> None:
    experiments = with_rows(tmp_path, {"fair/minesweeper": {"GPS+Mine": MINE}})
    *others, mine = experiments["fair/minesweeper"].trainings
    like = next(training for training in others if training.point["model"] == "GatedGCN+Transformer")
    assert mine.point == {"dataset": "Minesweeper", "model": "GPS+Mine"}
    assert (mine.cfg, mine.seeds, mine.splits) == (like.cfg, like.seeds, like.splits)
    assert mine.settings == like.settings | {"gt.layer_type": "GCN+Mine"}
    assert mine.folder == "Fair/minesweeper-GatedGCN+Transformer-GPS-Mine"
    note = "GPS+Mine is a row that was added, as GatedGCN+Transformer with gt.layer_type GCN+Mine."
    assert experiments["fair/minesweeper"].notes[-1] == note
    assert mine in experiments["fair/all"].trainings


def test_the_row_of_the_documentation_is_searched_over_the_ranges_of_the_other_one_and_its_own(tmp_path: Path) -> None:
    rows = yaml.safe_load(EXAMPLE)["rows"]
    listed = searches(with_rows(tmp_path, rows)["fair/minesweeper"], PRINTED_RANGES)
    mine, like = (
        next(search for search in listed if search.training.point["model"] == name)
        for name in ("GatedGCN+Linear", "GatedGCN+Transformer")
    )
    *shared, factor = mine.space.factors
    assert tuple(shared) == like.space.factors
    assert (factor.name, factor.default, list(factor.values)) == ("temperature", "1.0", ["0.5", "1.0"])
    assert (mine.tuning, mine.seeds) == (like.tuning, like.seeds)


def test_a_printed_table_has_the_added_rows_behind_its_own_and_no_other_unknown_one(tmp_path: Path) -> None:
    experiment = with_rows(tmp_path, {"fair/minesweeper": {"GPS+Mine": MINE}})["fair/minesweeper"]
    rows = {training.point["model"]: {} for training in experiment.trainings if not training.like}
    printed = {"p/1": PrintedTable("p/1", "", "", {"Minesweeper": {"metric": "auc", "better": "higher"}}, rows)}
    table = build_table(experiment, TableSpec("p/1"), printed, tmp_path, str)
    assert list(table.rows) == [*rows, "GPS+Mine"]
    rows.pop("GCN")
    with pytest.raises(ValueError, match="row 'GCN' is not in the table"):
        build_table(experiment, TableSpec("p/1"), printed, tmp_path, str)


T = {"default": 1, "values": [1]}
LR = {"default": 1, "values": [1], "keys": ["optim.base_lr"]}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"fair/minesweper": {"Mine": MINE}}, "fair/minesweper, Mine: no experiment 'fair/minesweper'. Did you mean"),
        (
            {"fair/tolokers": {"Mine": {"like": "GatedGCN+Trans"}}},
            "fair/tolokers has no 'GatedGCN+Trans'. Did you mean Ga",
        ),
        ({"fair/tolokers": {"Mine": {"set": {}}}}, "mine.yaml, rows, fair/tolokers, Mine: like missing"),
        ({"fair/tolokers": {"GAT": MINE}}, "fair/tolokers has GAT already: give the row another name"),
        ({"fair/all": {"Mine": MINE}}, "fair/all is made of others: add the row to fair/minesweeper or fair/tolokers"),
        (
            {"fair/minesweeper": {"A": MINE | {"factors": {"lr": LR}}}},
            "A has own ranges for lr, which are those of",
        ),
        (
            {"fair/minesweeper": {"A": MINE | {"factors": {"t": {"default": 1, "values": [1]}}}}},
            "factor t: `keys` belongs",
        ),
    ],
)
def test_a_row_that_cannot_be_added_is_refused_in_a_line(rows: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as error:
        searches(with_rows(tmp_path, rows)["fair/minesweeper"], PRINTED_RANGES)
    assert message in str(error.value)


def test_a_row_of_a_working_folder_is_trained_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run/experiments").mkdir(parents=True)
    (tmp_path / "my_attention.py").symlink_to(ROOT / "examples/my_attention/my_attention.py")  # one module
    row = {"like": "GPS+kMIP", "set": {"custom_modules": ["my_attention.py"], "gt.layer_type": "GatedGCN+Linear"}}
    row["set"] |= {"optim.max_epoch": 1, "optim.num_warmup_epochs": 0}
    (tmp_path / "run/experiments/mine.yaml").write_text(yaml.safe_dump({"rows": {"quickstart/digits": {"Mine": row}}}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    argv = ["quickstart/digits", "--only", "model=Mine", "--seeds", "1", "--sample"]
    assert reproduce.main(["run", *argv]) == 0
    assert (tmp_path / "results/quickstart-sample/digits-kmip-Mine/0/record.json").is_file()
    capsys.readouterr()
    assert reproduce.main(["plan", *argv]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith(f"python {ROOT}/main.py --cfg configs/quickstart/digits-kmip.yaml ")
    assert line.endswith("# done")
