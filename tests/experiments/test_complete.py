"""The experiments of this repository: each printed cell has its run, each run its config and a folder of its own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.experiments.experiment_spec import Experiment, TableSpec, Training
from graphgps_kmip.experiments.listing import experiment_markdown
from graphgps_kmip.experiments.manifest import load_manifest
from graphgps_kmip.experiments.printed_tables import PrintedCell, load_printed
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.planned_runs import planned_hash
from graphgps_kmip.gym.sparse_loading import is_sparse
from graphgps_kmip.report.result_table import build_table
from run import brec

ROOT = Path(__file__).parents[2]
EXPERIMENTS = load_manifest(ROOT / "run" / "experiments")
PRINTED = load_printed(ROOT / "run" / "experiments" / "printed")
FOLDERS = {training.folder: training for one in EXPERIMENTS.values() for training in one.trainings}
# Cells of the two documents that a training fills (counted there, dashes left out, OOM counted), and how many trainings
# there are for them: OOM has one, without hours.
CELLS = {
    ("T-6.1", "table6.1"): 36,
    ("T-6.1", "tableA.3"): 72,
    ("T-6.4a", "table6.2"): 36,
    ("T-6.4b", "table6.3"): 36,
    ("T-6.4c", "table6.2"): 36,
    ("T-6.4c", "table6.3"): 36,
    ("T-6.5", "table6.4"): 28,
    ("T-6.6", "table6.5"): 33,
    ("T-6.6", "tableA.10"): 66,
    ("K-5.2", "table2"): 36,
    ("K-5.3a", "table13"): 35,
    ("K-5.3b", "table13"): 35,
    ("K-5.3b", "table14"): 29,
    ("K-5.3c", "table3"): 16,
    ("K-I.2", "table8"): 36,
    ("K-I.2", "table9"): 36,
}
# Of PPGT's tables: cells that trainings fill, those of GRIT included, which the paper quotes.
PPGT_CELLS = {
    **{("P-T2", "table2"): 10, ("P-T2", "table1-zinc"): 2, ("P-T3", "table3"): 4, ("P-T4", "table4"): 2},
    ("P-T10", "table10"): 2,
}
# Of the low-width paper's tables: cells that trainings fill; it does not say how many runs it averages, ours are 5.
LOW_WIDTH_CELLS = {("L-T1", "table1"): 25, ("L-T2", "table2"): 3}
# Of the GECO paper's tables of scores: cells that trainings fill. It says of the large graphs alone how many runs it
# averages; where it does not, ours are 4, and 1 on PCQM4Mv2.
GECO_CELLS = {
    **{("G-T1", "table1"): 5, ("G-T1b", "text-encodings"): 2, ("G-T2", "table2"): 4, ("G-T3", "table3"): 1},
    **{("G-T4", "table4"): 4, ("G-T5", "table5"): 21, ("G-T6a", "table6"): 8, ("G-T6b", "table6"): 4},
    ("G-T11", "table11"): 4,
}
GECO = [one for key in ("G-T1", "G-T2", "G-T3", "G-T4") for one in EXPERIMENTS[key].trainings]
LOW_WIDTH = [one for key, _ in LOW_WIDTH_CELLS for one in EXPERIMENTS[key].trainings]
# Whose configs say in their heads what is printed.
HEADS = ("T-6.1", "T-6.6", "K-5.2", "K-5.3a", "K-5.3c", "P-T2", "P-T3")


def specs() -> Iterator[tuple[Experiment, TableSpec]]:
    for experiment in EXPERIMENTS.values():
        for spec in experiment.tables.values():
            yield experiment, spec


def test_every_printed_cell_of_the_trainings_is_filled_by_one(tmp_path: Path) -> None:
    filled: dict[tuple[str, str], int] = {}
    for experiment, spec in specs():
        if spec.value == "cells" or not spec.id.startswith(("kmip-paper/", "kmip-thesis/")):
            continue
        table = build_table(experiment, spec, PRINTED, tmp_path, lambda _: "")
        for row, cells in table.rows.items():
            for column, cell in cells.items():
                if cell.printed is not None:
                    assert cell.ours is not None, f"{spec.id}: no training for {row}, {column}"
                    filled[experiment.id, spec.id] = filled.get((experiment.id, spec.id), 0) + 1
                    oom = cell.printed.text == "OOM"
                    assert cell.ours.wanted == (1 if oom else cell.printed.n or cell.ours.wanted) > 0, (row, column)
    assert {(key, table.split("/")[1]): count for (key, table), count in filled.items()} == CELLS


def test_every_number_of_ppgt_itself_has_trainings_or_a_command(tmp_path: Path) -> None:
    filled: Counter[tuple[str, str]] = Counter()
    for experiment, spec in specs():
        if not spec.id.startswith("ppgt/"):
            continue
        table = build_table(experiment, spec, PRINTED, tmp_path, lambda _: "")
        for row, cells in table.rows.items():
            for column, cell in cells.items():
                own = cell.printed is not None and not cell.printed.quoted and column not in ("parameters", "memory")
                assert not own or cell.ours is not None, f"{spec.id}: nothing for {row}, {column}"
                if cell.ours is not None and spec.value != "cells":
                    assert cell.ours.wanted == (1 if spec.value != "score" else cell.printed.n), (spec.id, row, column)
                    filled[experiment.id, spec.id.split("/")[1]] += 1
    assert filled == PPGT_CELLS


def test_every_number_of_the_low_width_paper_itself_has_trainings(tmp_path: Path) -> None:
    filled: Counter[tuple[str, str]] = Counter()
    for experiment, spec in specs():
        if not spec.id.startswith("low-width/table") or spec.value == "cells":
            continue
        table = build_table(experiment, spec, PRINTED, tmp_path, lambda _: "")
        for row, cells in table.rows.items():
            for column, cell in cells.items():
                quoted = cell.printed is None or cell.printed.quoted
                assert cell.ours is not None or quoted, f"{spec.id}: nothing for {row}, {column}"
                if cell.ours is not None:
                    assert (cell.ours.wanted, cell.printed.n) == (5, None), (row, column)
                    filled[experiment.id, spec.id.split("/")[1]] += 1
    assert filled == LOW_WIDTH_CELLS


@pytest.mark.parametrize("training", LOW_WIDTH, ids=lambda one: one.folder)
def test_the_head_of_a_config_of_the_low_width_paper_prints_the_number_of_its_cell(training: Training) -> None:
    table = PRINTED["low-width/table2" if training.point["dataset"] == "ogbn-arxiv" else "low-width/table1"]
    cell = table.rows[training.point["model"]][training.point["dataset"]]
    text = (ROOT / "configs" / training.cfg).read_text(encoding="utf-8")
    assert f"Printed: accuracy {cell.text.replace('±', '+-')} %, of an unknown number of runs." in text


def test_every_number_of_the_geco_paper_itself_has_trainings(tmp_path: Path) -> None:
    filled: Counter[tuple[str, str]] = Counter()
    missing: dict[str, set[tuple[str, str]]] = {}
    for experiment, spec in specs():
        if not spec.id.startswith("geco/") or spec.value == "cells":
            continue
        table = build_table(experiment, spec, PRINTED, tmp_path, lambda _: "")
        cells = {(row, column): cell for row, found in table.rows.items() for column, cell in found.items()}
        own = {place for place, one in cells.items() if one.printed and not one.printed.quoted} - {
            ("GECO", "training MAE"),
            ("GECO", "parameters"),
        }
        here = {place for place, one in cells.items() if one.ours is not None}
        missing[spec.id] = missing.get(spec.id, own) - here  # table 6 is filled by two experiments
        filled[experiment.id, spec.id.split("/")[1]] += len(here)
        for place in here:
            printed = cells[place].printed
            unprinted = {"geco/table6": 10, "geco/table3": 1}.get(spec.id, 4)
            assert cells[place].ours.wanted == ((printed and printed.n) or unprinted), (spec.id, place)
    assert filled == GECO_CELLS
    assert not any(missing.values()), missing


@pytest.mark.parametrize("training", GECO, ids=lambda one: one.folder)
def test_the_head_of_a_config_of_the_geco_paper_prints_the_number_of_its_cell(training: Training) -> None:
    places = [PRINTED[f"geco/table{number}"].rows["GECO"] for number in (1, 2, 4)]
    places.append({"PCQM4Mv2": PRINTED["geco/table3"].rows["GECO"]["MAE"]})
    cell = next(row[training.point["dataset"]] for row in places if training.point["dataset"] in row)
    unit = " %, 10 seeds." if cell.n else ", of an unknown number of runs"
    text = (ROOT / "configs" / training.cfg).read_text(encoding="utf-8")
    assert f"{cell.text.replace('±', '+-')}{unit}" in text


def test_every_table_of_every_experiment_can_be_built(tmp_path: Path) -> None:
    built = [build_table(experiment, spec, PRINTED, tmp_path, lambda _: "") for experiment, spec in specs()]
    assert all(table.rows or table.id not in PRINTED for table in built)


def test_every_printed_table_belongs_to_an_experiment_or_to_the_text() -> None:
    made = {spec.id for _, spec in specs()}
    assert {key for key in PRINTED if not key.endswith("/prose")} <= made


def test_every_experiment_of_the_five_documents_is_there() -> None:
    missing = set(range(1, 65)) - {one.number for one in EXPERIMENTS.values()}
    assert not missing


def test_the_table_of_brec_says_which_models_run_here_and_has_no_column_without_a_source(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["P-T1"]
    table = build_table(experiment, experiment.tables["ppgt/table1"], PRINTED, tmp_path, lambda _: "")
    ours = {training.point["model"] for training in experiment.trainings} | {"1-WL", "3-WL"}
    assert {row for row, status in table.settings.items() if status != "quoted"} == ours
    for row, cells in table.rows.items():
        assert all((cell.ours is not None) == (row in ours) for cell in cells.values()), row
    assert set(table.columns) <= {*brec.PRINTED}, "what run/brec.py counts"


def test_every_experiment_says_what_it_claims_and_costs() -> None:
    for one in EXPERIMENTS.values():
        assert one.title, one.id
        assert {"hours", "card", "memory_gb"} <= one.cost.keys(), one.id
        assert set(one.settings.values()) <= {"exact", "ours", "none"}, one.id
        if one.number:
            assert one.paper, one.id
            assert one.claim, one.id
            assert one.cost.get("source"), one.id


def test_figures_draw_tables_and_files_that_are_made() -> None:
    for experiment in EXPERIMENTS.values():
        for figure in experiment.figures.values():
            owners = [EXPERIMENTS[key] for key in experiment.of] or [experiment]
            assert set(figure.tables) <= {spec.id for one in owners for spec in one.tables.values()}, figure.name
            for source in figure.sources:
                command, _, file = source.partition("/")
                assert file in experiment.commands[command].produces, source


def test_a_sparse_network_that_is_trained_on_several_splits_has_an_estimator_for_each() -> None:
    sparse = []
    for training in (one for one in FOLDERS.values() if one.splits):
        load_config(cfg, ROOT / "configs" / training.cfg, [])
        if is_sparse(cfg):
            sparse.append(training)
    # The estimator of seed 0 has seen labels of the test nodes of other splits, so that its scores are refused there.
    assert {one.folder: one.seeded for one in sparse if one.seeded != ("spexphormer.estimator_seed",)} == {}
    assert sparse


@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.thorough)])
def test_every_training_loads_and_its_folder_is_the_one_that_main_py_writes_to(step: int, tmp_path: Path) -> None:
    hashes: dict[str, str] = {}
    for folder, training in list(FOLDERS.items())[::step]:
        digest = planned_hash(training.words(training.seeds[0], tmp_path), ROOT)
        assert cfg.name_tag == training.tag, f"{folder}: main.py would write to another, by name_tag {cfg.name_tag}"
        assert hashes.setdefault(digest, folder) == folder, f"{folder} repeats {hashes[digest]}"


@pytest.mark.parametrize("key", HEADS)
def test_the_head_of_a_config_prints_the_number_of_its_cell(key: str) -> None:
    experiment = EXPERIMENTS[key]
    table = PRINTED[next(iter(experiment.tables))]
    for training in experiment.trainings:
        cell = table.rows[training.point["model"]][training.point["dataset"]]
        text = (ROOT / "configs" / training.cfg).read_text(encoding="utf-8").split("Printed: ")[1].split("#")[0]
        assert head(text) == (cell.text, n_of(cell)), training.cfg


def n_of(cell: PrintedCell) -> int | None:
    return None if cell.text == "OOM" else cell.n


def head(text: str) -> tuple[str, int | None]:
    """Return text and number of runs of a cell from the head of a config."""
    if text.startswith("out of memory"):
        return "OOM", None
    found = re.match(r"[A-Za-z1 ]+? ([\d.]+)(?: \+- ([\d.]+))?(?: %)?, (one|\d+) seed", text)
    assert found, text
    mean, std, n = found.groups()
    return (f"{mean} ± {std}" if std else mean), 1 if n == "one" else int(n)


def test_the_sweep_over_k_of_paper_and_thesis_are_the_same_runs() -> None:
    sweeps = [EXPERIMENTS[key].trainings for key in ("T-6.4a", "T-6.4b", "T-6.4c", "K-I.2")]
    assert all(Counter(map(repr, sweep)) == Counter(map(repr, sweeps[0])) for sweep in sweeps)
    shared = {one.folder for one in sweeps[0]} & {one.folder for one in EXPERIMENTS["T-6.1"].trainings}
    assert shared == {f"SmallGraphs/{name}-kmip" for name in ("cifar10", "malnet", "pascalvoc", "peptides-func")}


def test_the_page_of_experiments_lists_them_as_they_are() -> None:
    page = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    listed = page.partition("<!-- below: python run/reproduce.py list --markdown -->\n")[2]
    assert listed.strip() == experiment_markdown(EXPERIMENTS.values()).strip()
