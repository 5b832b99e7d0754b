"""The experiments of this repository: each printed cell has its run, each run its config and a folder of its own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.experiments.experiment_spec import Experiment, TableSpec, Training
from graphgps_kmip.experiments.manifest import PrintedCell
from graphgps_kmip.experiments.run_status import experiment_markdown
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.planned_runs import planned_hash
from graphgps_kmip.gym.sparse_loading import is_sparse
from graphgps_kmip.report.result_table import ResultTable, build_table
from run import brec
from tests.experiments.repository import EXPERIMENTS, PRINTED, ROOT

FOLDERS = {training.folder: training for owner in EXPERIMENTS.values() for training in owner.trainings}
# Cells that trainings fill (counted in the documents, dashes left out, OOM counted), and those of GRIT, which PPGT's
# paper quotes.
CELLS = {
    **{("T-6.1", "kmip-thesis/table6.1"): 36, ("T-6.1", "kmip-thesis/tableA.3"): 72},
    **{("T-6.4a", "kmip-thesis/table6.2"): 36, ("T-6.4b", "kmip-thesis/table6.3"): 36},
    **{("T-6.4c", "kmip-thesis/table6.2"): 36, ("T-6.4c", "kmip-thesis/table6.3"): 36},
    **{("T-6.5", "kmip-thesis/table6.4"): 28, ("T-6.6", "kmip-thesis/table6.5"): 33},
    **{("T-6.6", "kmip-thesis/tableA.10"): 66, ("K-5.2", "kmip-paper/table2"): 36},
    **{("K-5.3a", "kmip-paper/table13"): 35, ("K-5.3b", "kmip-paper/table13"): 35},
    **{("K-5.3b", "kmip-paper/table14"): 29, ("K-5.3c", "kmip-paper/table3"): 16},
    **{("K-I.2", "kmip-paper/table8"): 36, ("K-I.2", "kmip-paper/table9"): 36},
    **{("P-T2", "ppgt/table2"): 10, ("P-T2", "ppgt/table1-zinc"): 2, ("P-T3", "ppgt/table3"): 4},
    **{("P-T4", "ppgt/table4"): 2, ("P-T10", "ppgt/table10"): 2},
    **{("L-T1", "low-width/table1"): 25, ("L-T2", "low-width/table2"): 3},
    **{("G-T1", "geco/table1"): 5, ("G-T1b", "geco/text-encodings"): 2, ("G-T2", "geco/table2"): 4},
    **{("G-T3", "geco/table3"): 1, ("G-T4", "geco/table4"): 4, ("G-T5", "geco/table5"): 21},
    **{("G-T6a", "geco/table6"): 8, ("G-T6b", "geco/table6"): 4, ("G-T11", "geco/table11"): 4},
}
PAPERS = {table.split("/")[0] for _, table in CELLS}
# Runs of a cell whose paper does not say how many it averages.
RUNS = {"low-width": 5, "geco": 4, "geco/table6": 10, "geco/table3": 1}
NOT_TRAINED = {"geco/table3": {("GECO", "training MAE"), ("GECO", "parameters")}}  # numbers that no run is for
# Whose configs say in their heads what is printed.
HEADS = ("T-6.1", "T-6.6", "K-5.2", "K-5.3a", "K-5.3c", "P-T2", "P-T3")
GECO = [training for key in ("G-T1", "G-T2", "G-T3", "G-T4") for training in EXPERIMENTS[key].trainings]
LOW_WIDTH = [training for key in ("L-T1", "L-T2") for training in EXPERIMENTS[key].trainings]


def specs() -> Iterator[tuple[Experiment, TableSpec]]:
    for experiment in EXPERIMENTS.values():
        for spec in experiment.tables.values():
            yield experiment, spec


def build(experiment: Experiment, spec: TableSpec) -> ResultTable:
    return build_table(experiment, spec, PRINTED, Path("nowhere"), lambda _: "")


def test_every_number_of_the_five_documents_has_trainings_and_as_many_runs_as_printed() -> None:
    filled: Counter[tuple[str, str]] = Counter()
    missing: dict[str, set[tuple[str, str]]] = {}
    for experiment, spec in specs():
        paper = spec.id.split("/")[0]
        if paper not in PAPERS or (spec.value == "cells" and paper != "ppgt"):
            continue
        rows = build(experiment, spec).rows
        cells = {(row, column): cell for row in rows for column, cell in rows[row].items()}
        here = {place for place, cell in cells.items() if cell.ours is not None}
        printed = {place: cell.printed for place, cell in cells.items() if cell.printed is not None}
        required = {place for place, cell in printed.items() if not cell.quoted or "kmip" in paper}
        required -= {place for place in required if paper == "ppgt" and place[1] in ("parameters", "memory")}
        missing[spec.id] = missing.get(spec.id, required - NOT_TRAINED.get(spec.id, set())) - here
        for place in here if spec.value != "cells" else ():
            cell, runs = printed.get(place), cells[place].ours.planned
            once = (cell and cell.text == "OOM") or (paper == "ppgt" and spec.value != "score")
            expected = 1 if once else (cell and cell.n) or RUNS.get(spec.id, RUNS.get(paper, runs))
            assert runs == expected > 0, (spec.id, place)
            filled[experiment.id, spec.id] += bool(cell or "kmip" not in paper)
    assert filled == CELLS
    assert not any(missing.values()), missing


@pytest.mark.parametrize("training", [*LOW_WIDTH, *GECO], ids=lambda training: training.folder)
def test_the_head_of_a_config_of_low_width_or_geco_prints_the_number_of_its_cell(training: Training) -> None:
    model, dataset = training.point.get("model", "GECO"), training.point["dataset"]
    text = (ROOT / "configs" / training.cfg).read_text(encoding="utf-8")
    if training in LOW_WIDTH:
        cell = PRINTED["low-width/table2" if dataset == "ogbn-arxiv" else "low-width/table1"].rows[model][dataset]
        assert f"Printed: accuracy {cell.text.replace('±', '+-')} %, of an unknown number of runs." in text
        return
    rows = [PRINTED[f"geco/table{number}"].rows["GECO"] for number in (1, 2, 4)]
    rows.append({"PCQM4Mv2": PRINTED["geco/table3"].rows["GECO"]["MAE"]})
    cell = next(row[dataset] for row in rows if dataset in row)
    assert f"{cell.text.replace('±', '+-')}{' %, 10 seeds.' if cell.n else ', of an unknown number of runs'}" in text


@pytest.mark.parametrize("key", HEADS)
def test_the_head_of_a_config_prints_the_number_of_its_cell(key: str) -> None:
    table = PRINTED[next(iter(EXPERIMENTS[key].tables))]
    for training in EXPERIMENTS[key].trainings:
        cell = table.rows[training.point["model"]][training.point["dataset"]]
        text = (ROOT / "configs" / training.cfg).read_text(encoding="utf-8").split("Printed: ")[1].split("#")[0]
        assert head(text) == (cell.text, runs_of(cell)), training.cfg


def runs_of(cell: PrintedCell) -> int | None:
    return None if cell.text == "OOM" else cell.n


def head(text: str) -> tuple[str, int | None]:
    if text.startswith("out of memory"):
        return "OOM", None
    match = re.match(r"[A-Za-z1 ]+? ([\d.]+)(?: \+- ([\d.]+))?(?: %)?, (one|\d+) seed", text)
    assert match, text
    mean, std, n = match.groups()
    return (f"{mean} ± {std}" if std else mean), 1 if n == "one" else int(n)


def test_every_table_can_be_built_and_every_printed_one_belongs_to_an_experiment_or_to_the_text() -> None:
    tables = [build(experiment, spec) for experiment, spec in specs()]
    assert all(table.rows or table.id not in PRINTED for table in tables)
    assert {key for key in PRINTED if not key.endswith("/prose")} <= {table.id for table in tables}
    assert set(range(1, 65)) <= {experiment.number for experiment in EXPERIMENTS.values()}


def test_the_table_of_brec_says_which_models_run_here_and_has_no_column_without_a_source() -> None:
    experiment = EXPERIMENTS["P-T1"]
    table = build(experiment, experiment.tables["ppgt/table1"])
    models = {training.point["model"] for training in experiment.trainings} | {"1-WL", "3-WL"}
    assert {row for row, status in table.settings.items() if status != "quoted"} == models
    for row, cells in table.rows.items():
        assert all((cell.ours is not None) == (row in models) for cell in cells.values()), row
    assert set(table.columns) <= {*brec.PRINTED}, "what run/brec.py counts"


def test_every_experiment_says_what_it_claims_and_costs_and_draws_what_it_makes() -> None:
    for owner in EXPERIMENTS.values():
        assert owner.title, owner.id
        assert {"hours", "card", "memory_gb"} <= owner.cost.keys(), owner.id
        assert set(owner.settings.values()) <= {"exact", "ours", "none", "quoted"}, owner.id
        assert not owner.number or (owner.paper and owner.claim and owner.cost.get("source")), owner.id
        tables = {spec.id for key in owner.of or [owner.id] for spec in EXPERIMENTS[key].tables.values()}
        for figure in owner.figures.values():
            assert set(figure.tables) <= tables, figure.name
            for command, _, file in (source.partition("/") for source in figure.sources):
                assert file in owner.commands[command].produces, figure.name


def test_a_sparse_network_that_is_trained_on_several_splits_has_an_estimator_for_each() -> None:
    sparse = []
    for training in (training for training in FOLDERS.values() if training.splits):
        load_config(cfg, ROOT / "configs" / training.cfg, [])
        if is_sparse(cfg):
            sparse.append(training)
    # The estimator of seed 0 has seen labels of the test nodes of other splits, so that its scores are refused there.
    assert {training.seeded for training in sparse} == {("spexphormer.estimator_seed",)}


@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.thorough)])
def test_every_training_loads_and_its_folder_is_the_one_that_main_py_writes_to(step: int, tmp_path: Path) -> None:
    hashes: dict[str, str] = {}
    for folder, training in list(FOLDERS.items())[::step]:
        digest = planned_hash(training.arguments(training.seeds[0], tmp_path), ROOT)
        assert cfg.name_tag == training.tag, f"{folder}: main.py would write to another, by name_tag {cfg.name_tag}"
        assert hashes.setdefault(digest, folder) == folder, f"{folder} repeats {hashes[digest]}"


def test_the_page_of_experiments_lists_them_as_they_are() -> None:
    page = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    listed = page.partition("<!-- below: python run/reproduce.py list --markdown -->\n")[2]
    assert listed.strip() == experiment_markdown(EXPERIMENTS.values()).strip()
