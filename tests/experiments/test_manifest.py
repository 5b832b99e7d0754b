"""Manifests: what a grid becomes, what is found in them, and what is told of one that is wrong."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.experiment_spec import Command, Need, Training
from graphgps_kmip.experiments.jobs import parts_of
from graphgps_kmip.experiments.manifest import find, load_manifest, narrowed, select, with_members

GRID = "trainings: [{over: {d: [x, y]}, cfg: 'F/{d}.yaml', seeds: 2}]"

SHARED = "commands: {c: {run: r, sample: s, produces: [f], needs: []}}"


def written(folder: Path, *files: str) -> Path:
    for number, text in enumerate(files):
        (folder / f"{number}.yaml").write_text(text, encoding="utf-8")
    return folder


def entry(body: str, key: str = "a") -> str:
    return f"axes: {{d: {{x: ex, y: why}}}}\nexperiments: {{{key}: {{title: t, {body}}}}}"


def test_a_grid_is_filled_from_its_axes(tmp_path: Path) -> None:
    grid = (
        "{over: {d: all, k: [1, 2]}, skip: [{d: y, k: 2}], cfg: 'F/{d.file}.yaml', set: {m.k: '{k}', n: 3}, tag: 'k{k}'"
    )
    trainings = load_manifest(written(tmp_path, entry(f"trainings: [{grid}, seeds: [4, 5]}}]")))["a"].trainings
    assert trainings == tuple(
        Training({"d": d, "k": str(k)}, f"F/{file}.yaml", (4, 5), {"m.k": k, "n": 3}, f"k{k}")
        for d, file, k in (("x", "ex", 1), ("x", "ex", 2), ("y", "why", 1))
    )


def test_keys_of_a_grid_take_the_seed_of_each_run(tmp_path: Path) -> None:
    grid = "{over: {d: [x]}, cfg: 'F/x.yaml', seeds: [4, 5], splits: True, seeded: [m.other, m.third]}"
    (training,) = load_manifest(written(tmp_path, entry(f"trainings: [{grid}]")))["a"].trainings
    for seed in (4, 5):
        words = training.words(seed, tmp_path)
        settings = dict(zip(words[2::2], words[3::2], strict=True))
        taken = [settings[key] for key in ("seed", "dataset.split_index", "m.other", "m.third")]
        assert taken == [str(seed)] * 4


def test_an_experiment_made_of_others_has_their_trainings_and_parts_of_it_are_theirs(tmp_path: Path) -> None:
    grid = "trainings: [{{over: {{d: [x, y]}}, cfg: '{}/{{d}}.yaml', seeds: 2}}]"
    files = [entry(grid.format(key.upper()), key) for key in "ab"]
    found = load_manifest(written(tmp_path, "experiments: {all: {title: t, of: [b, a]}}", *files))
    assert [one.folder for one in found["all"].trainings] == ["B/x", "B/y", "A/x", "A/y"]
    parts = parts_of(found, "all", "d=y", 1)
    assert [(one.id, [training.folder for training in one.trainings]) for one in parts] == [
        ("b", ["B/y"]),
        ("a", ["A/y"]),
    ]
    assert {training.seeds for one in parts for training in one.trainings} == {(0,)}
    assert [one.id for one in parts_of(found, "a", "")] == ["a"]
    searched = {"a": {"A/x": 1}, "b": {"B/x": 2}}
    found = {key: dataclasses.replace(one, searched=searched.get(key)) for key, one in found.items()}
    assert with_members(found)["all"].searched == {"A/x": 1, "B/x": 2}
    found["a"] = dataclasses.replace(found["a"], searched=None)
    assert with_members(found)["all"].searched is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("of: [aa]", "no experiment 'aa'. Did you mean a?"),
        ("of: [c]", "b: c is made of others itself: name those"),
        (f"of: [a], {GRID}", "made of others (`of`), it has no trainings of its own: leave them out"),
    ],
)
def test_an_experiment_cannot_be_made_of_just_anything(body: str, message: str, tmp_path: Path) -> None:
    files = [entry(GRID, "a"), entry(body, "b"), "experiments: {c: {title: t, of: [a]}}"]
    with pytest.raises(ManifestError, match=re.escape(message)):
        load_manifest(written(tmp_path, *files))


def test_two_trainings_of_one_folder_take_the_seed_for_the_same_keys(tmp_path: Path) -> None:
    grid = "{over: {d: [x]}, cfg: 'F/{d}.yaml', seeds: 2}"
    seeded = grid.replace("seeds: 2", "seeds: 3, seeded: [m.other]")
    for second, fails in ((grid, False), (grid.replace("seeds: 2", "seeds: 3"), False), (seeded, True)):
        written(tmp_path, entry(f"trainings: [{grid}, {second}]"))
        if fails:
            with pytest.raises(ManifestError, match="F/x holds another training too: give it a tag"):
                load_manifest(tmp_path)
        else:
            assert len(load_manifest(tmp_path)["a"].trainings) == 2


def test_experiments_of_several_folders_are_one_manifest(tmp_path: Path) -> None:
    ours, users, none = (tmp_path / name for name in ("ours", "users", "none"))
    ours.mkdir()
    users.mkdir()
    written(ours, entry(GRID))
    written(
        users, entry("commands: {c: {run: r, sample: s, produces: [], needs: [{experiment: a, point: {d: x}}]}}", "b")
    )
    assert list(load_manifest(ours, users, none)) == ["a", "b"]
    written(users, entry(GRID))
    with pytest.raises(ManifestError, match="experiment a is in another place already"):
        load_manifest(ours, users)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), "holds no experiment"),
        (("- 1",), "0.yaml: expected `key: value` lines, found list"),
        (("a: [",), "0.yaml:1:"),
        (("experiment: {}",), "unknown key 'experiment'. Did you mean experiments?"),
        ((entry("colour: red"),), "unknown key 'colour'"),
        (("experiments: {a: {}}",), "Experiment: title missing"),
        (("experiments: {a: 3}",), "0.yaml, a: expected keys and values, found 3"),
        ((entry(GRID), entry(GRID)), "1.yaml: experiment a is in another place already"),
        (("experiments: {a: {title: t}, a: {title: u}}",), "0.yaml:1: the key 'a' is there twice in one mapping"),
        ((entry("trainings: [{cfg: F/x.yaml}]"),), "0.yaml, a: seeds missing"),
        ((entry(GRID.replace("[x, y]", "[z]")),), "0.yaml, a: axis d has no 'z'. Allowed: x, y"),
        ((entry(GRID.replace("d: [x, y]", "e: all")),), "axis 'e' has no values for `all`"),
        ((entry(GRID.replace("{d}", "{e}")),), "no axis 'e'. Allowed: d"),
        ((entry(GRID.replace("seeds", "skip: [{d: z}], seeds")),), "skip: d has no 'z'"),
        ((entry(GRID.replace("seeds", "skip: [{e: x}], seeds")),), "skip: unknown key 'e'"),
        ((entry(GRID.replace("F/{d}.yaml", "F/c.yaml").replace("seeds", "set: {k: '{d}'}, seeds")),), "give it a tag"),
        ((entry("commands: {c: {run: r, sample: s}}"),), "Command: produces missing"),
        ((entry("tables: {t: {values: score}}"),), "unknown key 'values'. Did you mean value?"),
        ((entry("figures: {f: {title: t}}"),), "FigureSpec: draw missing"),
        (("experiments: [a]",), "0.yaml, experiments: expected names and what they stand for, found ['a']"),
        ((entry("makes: table 1"),), "0.yaml, a, makes: expected a list, found 'table 1'"),
        ((entry("commands: {c: tool.py}"),), "0.yaml, a, c: expected names and what they stand for, found 'tool.py'"),
        ((entry("number: x"),), "0.yaml, a, number: expected a whole number, found 'x'"),
        ((entry(GRID.replace("[x, y]", "x")),), "axis d: expected a list of values or `all`, found 'x'"),
        ((entry(GRID.replace("{d}", "{0}")),), "expected {axis} or {axis.file}"),
        ((entry(GRID.replace("{d}", "{d.fil}")),), "expected {axis} or {axis.file}"),
        (("axes: {d: [x]}\nexperiments: {a: {title: t, " + GRID + "}}",), "axes, d: expected names and what they"),
        ((entry(GRID.replace("seeds: 2", "seeds: two")),), "0.yaml, a, seeds: expected a list, found 'two'"),
        ((entry(GRID.replace("seeds: 2", "seeds: 0")),), "seeds: expected how many, or a list of them, found 0"),
        ((entry(SHARED), entry(SHARED.replace("run: r", "run: q, of: a"), "b")), "command c of a is another one"),
        ((entry(SHARED.replace("run: r", "run: r, of: z")),), "a needs z, which does not exist"),
    ],
)
def test_a_manifest_that_is_wrong_is_told_where(tmp_path: Path, files: tuple[str, ...], words: str) -> None:
    with pytest.raises(ManifestError, match=re.escape(words)):
        load_manifest(written(tmp_path, *files))


@pytest.mark.parametrize(
    ("need", "words"),
    [
        ("{experiment: b}", "a needs b, which does not exist"),
        ("{point: {d: z}}", "a needs d z of a: 0 trainings fit, expected one: name each axis"),
        ("{point: {}}", "a needs a training of a: 2 trainings fit"),
        ("{command: other}", "a needs command other of a. Allowed: c"),
        ("{points: {}}", "unknown key 'points'. Did you mean point?"),
    ],
)
def test_a_command_that_needs_what_is_not_there_is_told(tmp_path: Path, need: str, words: str) -> None:
    command = f"commands: {{c: {{run: r, sample: s, produces: [f], needs: [{need}]}}}}"
    with pytest.raises(ManifestError, match=re.escape(words)):
        load_manifest(written(tmp_path, entry(f"{GRID}, {command}")))


def test_what_a_command_needs_is_found_in_other_experiments_too(tmp_path: Path) -> None:
    command = "commands: {c: {run: r, sample: s, produces: [f], needs: [{experiment: a, point: {d: x}, seed: 1}]}}"
    experiments = load_manifest(written(tmp_path, entry(GRID), entry(command, "b")))
    needed = experiments["b"].commands["c"].needs[0]
    assert (needed.seed, find(experiments, needed)) == (1, experiments["a"].trainings[0])
    assert isinstance(find(experiments, Need("b", command="c")), Command)


def test_an_experiment_is_narrowed_by_axes_and_seeds(tmp_path: Path) -> None:
    experiments = load_manifest(written(tmp_path, entry(GRID)))
    kept = narrowed(select(experiments, "a"), {"d": ("y",)}, seeds=1).trainings
    assert [(one.cfg, one.seeds) for one in kept] == [("F/y.yaml", (0,))]
    with pytest.raises(ManifestError, match="no experiment 'A'. Did you mean a?"):
        select(experiments, "A")
    assert [one.seeds for one in narrowed(experiments["a"], {}, seeds=3).trainings] == [(0, 1, 2)] * 2
    with pytest.raises(ManifestError, match="a has no axis 'e'. Allowed: d"):
        narrowed(experiments["a"], {"e": ("x",)})
    with pytest.raises(ManifestError, match="d of a has no 'z'. Allowed: x, y"):
        narrowed(experiments["a"], {"d": ("z",)})
