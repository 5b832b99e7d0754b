"""Rows added to an experiment: trainings of another row with other settings, under the same search."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from graphgps_kmip import reproduce
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.experiment_spec import Experiment, TableSpec
from graphgps_kmip.experiments.manifest import load_manifest
from graphgps_kmip.experiments.printed_tables import PrintedTable
from graphgps_kmip.experiments.search_space import load_ranges, searches
from graphgps_kmip.report.result_table import build_table

ROOT = Path(__file__).parents[2]
EXAMPLE = re.search(r"```yaml\n(rows:\n.*?)```", (ROOT / "docs/fair-tables.md").read_text(), re.DOTALL)[1]
RANGES = load_ranges(ROOT / "run/experiments/ranges")
MINE = {"like": "GPS+Transformer", "set": {"gt.layer_type": "GCN+Mine"}}


def with_rows(folder: Path, rows: dict) -> dict[str, Experiment]:
    shutil.copy(ROOT / "run/experiments/fair.yaml", folder / "fair.yaml")
    (folder / "mine.yaml").write_text(yaml.safe_dump({"rows": rows}))
    return load_manifest(folder)


def test_an_added_row_has_config_seeds_and_settings_of_the_row_that_it_is_like_and_its_own(tmp_path: Path) -> None:
    experiments = with_rows(tmp_path, {"fair/minesweeper": {"GPS+Mine": MINE}})
    *others, mine = experiments["fair/minesweeper"].trainings
    like = next(one for one in others if one.point["model"] == "GPS+Transformer")
    assert mine.point == {"dataset": "Minesweeper", "model": "GPS+Mine"}
    assert (mine.cfg, mine.seeds, mine.splits) == (like.cfg, like.seeds, like.splits)
    assert (mine.settings, like.settings) == ({"gt.layer_type": "GCN+Mine"}, {"gt.layer_type": "GCN+Transformer"})
    assert mine.folder == "Fair/minesweeper-Transformer-GPS-Mine"
    note = "GPS+Mine is a row that was added, as GPS+Transformer with gt.layer_type GCN+Mine."
    assert experiments["fair/minesweeper"].notes[-1] == note
    assert mine in experiments["fair/all"].trainings


def test_the_row_of_the_documentation_is_searched_over_the_ranges_of_the_other_one_and_its_own(tmp_path: Path) -> None:
    (tmp_path / "row.yaml").write_text(EXAMPLE)
    shutil.copy(ROOT / "run/experiments/fair.yaml", tmp_path / "fair.yaml")
    found = {one.training.point["model"]: one for one in searches(load_manifest(tmp_path)["fair/digits"], RANGES)}
    mine, like = found["GPS+Linear"], found["GPS+Transformer"]
    *shared, own = mine.space.factors
    assert tuple(shared) == like.space.factors
    assert (own.name, own.default, list(own.values)) == ("temperature", "1.0", ["0.5", "1.0"])
    assert (mine.tuning, mine.seed) == (like.tuning, like.seed)


def test_a_printed_table_has_the_added_rows_behind_its_own_and_no_other_unknown_one(tmp_path: Path) -> None:
    experiment = with_rows(tmp_path, {"fair/digits": {"GPS+Mine": MINE}})["fair/digits"]
    rows = {one.point["model"]: {} for one in experiment.trainings if not one.like}
    columns = {"digits": {"metric": "accuracy", "better": "higher"}}
    printed = {"p/1": PrintedTable("p/1", "", "", columns, rows)}
    table = build_table(experiment, TableSpec("p/1"), printed, tmp_path, str)
    assert list(table.rows) == [*rows, "GPS+Mine"]
    rows.pop("GCN")
    with pytest.raises(ValueError, match="row 'GCN' is not in the table"):
        build_table(experiment, TableSpec("p/1"), printed, tmp_path, str)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"fair/minesweper": {"Mine": MINE}}, "fair/minesweper, Mine: no experiment 'fair/minesweper'. Did you mean"),
        ({"fair/cora": {"Mine": {"like": "GPS+Transformr"}}}, "fair/cora has no 'GPS+Transformr'. Did you mean GPS+Tr"),
        ({"fair/cora": {"Mine": {"set": {}}}}, "mine.yaml, rows, fair/cora, Mine: like missing"),
        ({"fair/cora": {"Mine": MINE | {"sets": {}}}}, "unknown key 'sets'. Did you mean set?"),
        ({"fair/cora": {"GAT": MINE}}, "fair/cora has GAT already: give the row another name"),
        ({"fair/all": {"Mine": MINE}}, "fair/all is made of others: add the row to fair/cora or fair/citeseer or"),
    ],
)
def test_a_row_that_cannot_be_added_is_refused_in_a_line(rows: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as error:
        with_rows(tmp_path, rows)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (
            {"lr": {"default": 1, "values": [1], "keys": ["optim.base_lr"]}},
            "GPS+Mine has own ranges for lr, which are those of the row",
        ),
        (
            {"temp": {"default": 1, "values": [2]}},
            "fair/digits, digits GPS+Mine, factor temp: `keys` belongs to a list",
        ),
    ],
)
def test_ranges_of_its_own_are_new_and_complete(factors: dict, message: str, tmp_path: Path) -> None:
    experiment = with_rows(tmp_path, {"fair/digits": {"GPS+Mine": MINE | {"factors": factors}}})["fair/digits"]
    with pytest.raises(ManifestError) as error:
        searches(experiment, RANGES)
    assert message in str(error.value)


def test_a_row_of_ones_own_working_folder_is_trained_there_by_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run/experiments").mkdir(parents=True)
    (tmp_path / "my_attention.py").symlink_to(ROOT / "examples/my_attention/my_attention.py")  # one module
    row = {"like": "GPS+kMIP", "set": {"custom_modules": ["my_attention.py"], "gt.layer_type": "GatedGCN+Linear"}}
    (tmp_path / "run/experiments/mine.yaml").write_text(yaml.safe_dump({"rows": {"quickstart/digits": {"Mine": row}}}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    words = ["quickstart/digits", "--only", "model=Mine", "--seeds", "1", "--sample"]
    assert reproduce.main(["run", *words]) == 0
    assert (tmp_path / "results/quickstart-sample/digits-kmip-Mine/0/record.json").is_file()
    capsys.readouterr()
    assert reproduce.main(["plan", *words]) == 0
    command = capsys.readouterr().out.splitlines()[0]
    assert command.startswith(f"python {ROOT}/main.py --cfg configs/quickstart/digits-kmip.yaml ")
    assert command.endswith("# done")


@pytest.mark.parametrize("name", ["mine.yml", "mine/rows.yaml", "Mine.YAML"])
def test_a_file_among_the_experiments_that_is_not_read_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(ManifestError, match=f"{name} is not read: move it to .*/(mine|rows|Mine).yaml, or ranges"):
        with_rows(tmp_path, {})
