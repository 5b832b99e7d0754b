"""The printed tables: as many cells as in print, as precise, and the same number wherever a number is printed twice."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
import yaml

from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.manifest import load_printed
from tests.experiments.repository import PRINTED as TABLES
from tests.experiments.repository import ROOT

COUNTS = yaml.safe_load((ROOT / "tests" / "parameter_counts.yaml").read_text())
# Counted in the documents, dashes left out, OOM counted.
CELLS = {
    "kmip-paper": {
        **{"table2": 36, "table3": 16, "table4": 48, "table8": 36, "table9": 36, "table10": 45, "table11": 45},
        **{"table12": 45, "table13": 35, "table14": 29, "table15": 40, "table16": 44, "prose": 18},
        **{"figure8a": 1, "figure8b": 2},
    },
    "kmip-thesis": {
        **{"table6.1": 36, "table6.2": 36, "table6.3": 36, "table6.4": 28, "table6.5": 33},
        **{"tableA.1": 32, "tableA.3": 72, "tableA.10": 66, "prose": 10, "figure6.6": 1, "figure6.7": 2},
    },
    "geco": {
        **{"table1": 50, "text-encodings": 2, "table2": 40, "table3": 30, "table4": 48, "table5": 21, "table6": 8},
        **{"table7": 40, "table8": 20, "table11": 48, "prose": 6},
    },
}
DATASETS = {
    **{"SmallGraphs/cifar10": "CIFAR10", "SmallGraphs/malnet": "MalNet-Tiny", "SmallGraphs/pascalvoc": "PascalVOC-SP"},
    **{"SmallGraphs/peptides-func": "Peptides-func", "LargeGraphs/shapenet": "ShapeNet-Part"},
    **{"LargeGraphs/s3dis": "S3DIS", "PointClouds/modelnet10": "ModelNet10", "Node/computers": "Amazon-Computer"},
}
MODELS = {
    **{"gcn": "GCN", "gine": "GINE", "gat": "GAT", "gatedgcn": "GatedGCN", "bigbird": "GPS+BigBird"},
    **{"performer": "GPS+Performer", "transformer": "GPS+Transformer", "exphormer": "Exphormer", "kmip": "GPS+kMIP"},
}
ROWS = {"x": {"a": "1.50 ± 0.20", "b": None}, "y": {"a": "OOM"}}
TABLE = {"title": "t", "columns": {"a": {}, "b": {}}, "rows": ROWS}


def texts(table: str) -> dict[str, dict[str, str]]:
    return {row: {column: cell.text for column, cell in cells.items()} for row, cells in TABLES[table].rows.items()}


def test_every_table_of_the_documents_is_there_with_all_its_cells() -> None:
    counts: dict[str, dict[str, int]] = {paper: {} for paper in CELLS}
    for paper, name in (key.split("/") for key in TABLES):
        if paper in CELLS:
            counts[paper][name] = sum(len(cells) for cells in TABLES[f"{paper}/{name}"].rows.values())
    assert counts == CELLS


@pytest.mark.parametrize(
    ("table", "row", "column", "text", "mean", "std"),
    [
        ("kmip-thesis/table6.1", "GPS+kMIP", "CIFAR10", "75.20 ± 0.34", 75.2, 0.34),
        ("kmip-paper/table11", "N=10^2.5", "inference_total", "2.00", 2.0, None),
        ("kmip-paper/table4", "London", "edges", "759k", 759_000, None),
        ("kmip-paper/table12", "N=10^5.0", "train_total", "OOM", None, None),
        ("kmip-paper/prose", "hours of an MPNN on ShapeNet-Part", "value", "3-8", None, None),
    ],
)
def test_a_cell_keeps_its_text_and_has_the_numbers_in_it(
    table: str, row: str, column: str, text: str, mean: float | None, std: float | None
) -> None:
    cell = TABLES[table].rows[row][column]
    assert (cell.text, cell.mean, cell.std) == (text, mean, std)


def test_of_the_kmip_papers_five_rows_of_the_long_range_benchmark_are_quoted_and_no_other_cell() -> None:
    quoted = {
        (key, row): {cell.quoted for cell in cells.values()}
        for key, table in TABLES.items()
        for row, cells in table.rows.items()
        if any(cell.quoted for cell in cells.values()) and key.startswith(("kmip-paper/", "kmip-thesis/"))
    }
    rows = ("GCN", "GINE", "GatedGCN", "GPS+Transformer")
    sources = {("kmip-paper/table2", row): {"Tönshoff et al. 2023"} for row in rows}
    assert quoted == sources | {("kmip-paper/table2", "Exphormer"): {"Shirzad et al. 2023"}}


def test_the_paper_repeats_the_thesis_where_it_is_known_to() -> None:
    paper, thesis = texts("kmip-paper/table8"), texts("kmip-thesis/table6.2")
    assert (paper["k=100"].pop("MalNet-Tiny"), thesis["k=100"].pop("MalNet-Tiny")) == ("93.40 ± 0.37", "93.40 ± 0.57")
    assert paper == thesis
    assert texts("kmip-paper/table9") == texts("kmip-thesis/table6.3")
    clouds, larger = texts("kmip-paper/table3"), texts("kmip-thesis/table6.5")
    differ = {(row, column) for row in clouds for column in clouds[row] if clouds[row][column] != larger[row][column]}
    assert differ == {
        *(("Exphormer", "ShapeNet-Part"), ("GPS+kMIP", "ShapeNet-Part")),
        *((row, "S3DIS") for row in ("GatedGCN", "GPS+BigBird", "GPS+kMIP")),
    }


def test_numbers_of_parameters_are_those_of_the_test_of_parameter_counts() -> None:
    printed = {
        (row, column.removesuffix(" params")): cell.text
        for table in ("kmip-thesis/tableA.3", "kmip-thesis/tableA.10")
        for row, cells in TABLES[table].rows.items()
        for column, cell in cells.items()
        if column.endswith(" params")
    }
    places = {run: run.rsplit("-", 1) for run in COUNTS}
    assert printed == {
        (MODELS[model], DATASETS[file]): str(COUNTS[run]["printed"]) for run, (file, model) in places.items()
    }


def test_the_geco_paper_prints_one_number_wherever_it_prints_a_score_twice() -> None:
    small, large = texts("geco/table2")["GECO"], texts("geco/table4")["GECO"]
    survey = TABLES["geco/table11"].rows["GECO"]
    assert {name: cell.text for name, cell in survey.items() if name in small}.items() <= small.items()
    for name in ("Flickr", "ogbn-arxiv"):
        printed = TABLES["geco/table4"].rows["GECO"][name]
        assert (survey[name].mean * 100, survey[name].std * 100) == pytest.approx((printed.mean, printed.std))
    assert texts("geco/table6")["GECO natural"] == large
    without = texts("geco/text-encodings")["without encodings"]
    assert without == {"PascalVOC-SP": texts("geco/table1")["GECO"]["PascalVOC-SP"]}


def test_names_of_models_and_data_sets_are_spelt_alike_in_all_tables() -> None:
    names = {name for table in TABLES.values() for name in (*table.rows, *table.columns)}
    plain = {name: "".join(character for character in name.lower() if character.isalnum()) for name in names}
    assert not [(a, b) for a, b in combinations(sorted(names), 2) if plain[a] == plain[b]]


def write_example(folder: Path, table: object) -> Path:
    (folder / "paper.yaml").write_text(yaml.safe_dump({"t": table}, allow_unicode=True), encoding="utf-8")
    return folder


def test_the_first_rule_that_fits_says_how_many_runs_and_whom_the_paper_quotes(tmp_path: Path) -> None:
    rules = {"seeds": [{"rows": ["y"], "n": 1}, {"n": 4}], "quoted": [{"columns": ["a"], "source": "them"}]}
    rows = load_printed(write_example(tmp_path, TABLE | rules))["paper/t"].rows
    assert [(rows[row]["a"].n, rows[row]["a"].quoted) for row in ("x", "y")] == [(4, "them"), (1, "them")]


def test_a_key_of_a_printed_table_that_is_unknown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="^paper/t: unknown key 'colour'"):
        load_printed(write_example(tmp_path, TABLE | {"colour": "red"}))
