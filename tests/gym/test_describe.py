"""``--dry-run``: where the files of a data set are missing, the model follows its record, and the text says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import main
from graphgps_kmip.data import DatasetRecord, find
from tests.data.graph_files import arrays, write
from tests.data.sets import raw_graphs
from tests.data.sets.raw_files import offline

pytestmark = pytest.mark.usefixtures("few_digits", "small_samples")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def text(config: str, *opts: str) -> str:
        argv = ["--cfg", str(ROOT / "configs" / f"{config}.yaml"), "--dry-run", "num_threads", "1", *opts]
        with offline():
            code = main.run([*argv, "out_dir", str(tmp_path / "results")])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

    return text


def total(text: str) -> str:
    return re.search(r"^total +(\S+)", text, re.M)[1]


TINY = {  # configs of data sets whose tiny raw files follow the schema of their records
    "LRGB/pascalvoc-kmip": ("PyG-VOCSuperpixels", "edge_wt_region_boundary"),
    "LRGB/peptides-func-gatedgcn": ("OGB", "peptides-functional"),
    "LRGB/peptides-struct-exphormer": ("OGB", "peptides-structural"),
}


@pytest.mark.parametrize("config", TINY)
def test_without_its_files_a_model_has_as_many_parameters_as_with_them(
    config: str, dry_run: Callable[..., str], tmp_path: Path
) -> None:
    record: DatasetRecord = find(*TINY[config])
    raw_graphs.place(record, tmp_path / "there")
    with_files = dry_run(config, "dataset.dir", str(tmp_path / "there"))
    without = dry_run(config, "-v", "dataset.dir", str(tmp_path / "nowhere"))
    assert total(without) == total(with_files)
    assert "raw files are missing" not in with_files
    missing = re.search("^missing .*$", without, re.M)[0]
    reason = f"{record.title}: raw files are missing (a dry run downloads nothing)"
    assert f"{reason}: place {record.raw.files[0]}" in missing
    assert f"into {tmp_path / 'nowhere' / record.raw.folder}, or set dataset.sample True" in missing
    assert "sample: false" in without, "the config that is printed is the user's"
    assert not (tmp_path / "nowhere").exists()
    assert not (tmp_path / "results").exists()


def test_what_is_said_of_missing_data_is_what_was_published(dry_run: Callable[..., str], tmp_path: Path) -> None:
    rows = dry_run("LRGB/pascalvoc-kmip", "dataset.dir", str(tmp_path)).split("--- data\n")[1].splitlines()
    assert [line.split("  ")[-1].strip() for line in rows[:6]] == [
        "PascalVOC-SP",
        "8,498 / 1,428 / 1,429, as published",
        "479.40 on average, as published",
        "2,710.48 on average, as published",
        "14 of a node, 2 of an edge",
        "21 for each node",
    ]
    assert rows[-2:] == ["batches of an epoch          170", "optimizer steps of a run     34,000"]


def test_where_only_the_files_tell_the_dims_a_dry_run_without_them_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--cfg", str(ROOT / "configs/quickstart/digits-kmip.yaml"), "--dry-run", "dataset.dir", str(tmp_path)]
    assert main.run([*argv, "dataset.format", "Folder", "dataset.name", "mine"]) == 2
    assert "dataset.name: there is no folder" in capsys.readouterr().err
    ern = ["posenc_ERN.enable", "True", "dataset.node_encoder_name", "LinearNode+ERN"]
    with offline():
        config = str(ROOT / "configs/LRGB/pascalvoc-kmip.yaml")
        assert main.run(["--cfg", config, "--dry-run", "dataset.dir", str(tmp_path), *ern]) == 2
    assert "PascalVOC-SP: raw files are missing" in capsys.readouterr().err


def test_a_folder_that_is_there_is_looked_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "mine", {f"{number}.npz": arrays(number, pos=np.ones((3, 2))) for number in range(10)})
    argv = ["--cfg", str(ROOT / "configs/quickstart/digits-kmip.yaml"), "--dry-run", "dataset.dir", str(tmp_path)]
    assert main.run([*argv, "dataset.format", "Folder", "dataset.name", "mine"]) == 0
    assert "graphs (train / val / test)  6 / 2 / 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "missing"),
    [((), False), (("gt.gatedgcn.residual", "False"), True), (("gt.gatedgcn.outer_residual", "True"), False)],
)
def test_the_recipe_says_where_message_passing_has_no_residual(
    options: tuple[str, ...], missing: bool, dry_run: Callable[..., str]
) -> None:
    options = ("gt.gatedgcn.residual", "False", *options) if options else ()
    line = dry_run("quickstart/digits-kmip", *options).partition("--- layers\n")[2].partition("\n")[0]
    assert "residuals around all branches" in line
    assert line.endswith("; no residual of nodes in GatedGCN") == missing
