"""One large graph through the command line: in batches, with recomputed layers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import main
from tests.train.toy import last_checkpoint, read_stats

ROOT = Path(__file__).parents[1]
CORA = str(ROOT / "configs/Node/cora-kmip.yaml")
EXACT = ["train.precision", "64-true", "gt.dropout", "0", "gnn.dropout", "0"]
SHORT = ["dataset.sample", "True", "optim.max_epoch", "3", "accelerator", "cpu", "num_threads", "1",
         "gt.dim_hidden", "16", "gnn.dim_inner", "16", "gt.kmip.dim_kq", "4", "posenc_LapPE.dim_pe", "4"]  # fmt: skip


def arguments(out: Path, *more: str) -> list[str]:
    return ["--cfg", CORA, "out_dir", str(out / "r"), *SHORT, *more]


def trained(out: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    folder = out / "r-sample/cora-kmip/0"
    lines = [line for split in ("train", "val", "test") for line in read_stats(folder, split)]
    numbers = [{key: value for key, value in line.items() if not key.startswith(("time", "eta"))} for line in lines]
    return numbers, last_checkpoint(folder)["model_state"]


def assert_same(out: Path, other: Path) -> None:
    (lines, state), (expected, expected_state) = trained(out), trained(other)
    torch.testing.assert_close(state, expected_state, rtol=1e-9, atol=1e-9)  # float64 sums in another order
    for line, expected_line in zip(lines, expected, strict=True):
        assert line == pytest.approx(expected_line, rel=1e-5)  # six digits on disk


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    assert main.run(arguments(out, *EXACT)) == 0
    return out


def test_recomputed_layers_train_the_same_model(whole: Path, tmp_path: Path) -> None:
    assert main.run(arguments(tmp_path, *EXACT, "share.gradient_checkpointing", "True")) == 0
    assert_same(tmp_path, whole)


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("sampler", ["neighbor", "cluster", "random_node"])
def test_batches_of_nodes_train_and_evaluate_every_node_of_a_split(
    sampler: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = ["gt.dropout", "0.0", "train.batch_size", "30", "train.train_parts", "60", "train.neighbor_sizes", "[3, 2]"]
    with caplog.at_level(logging.INFO):
        assert main.run(arguments(tmp_path, "train.sampler", sampler, "val.sampler", sampler, *sizes)) == 0
    lines, _ = trained(tmp_path)
    assert lines[2]["loss"] < lines[0]["loss"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["train.sampler", "neighbour"], "train.sampler: choose one of full_batch, neighbor"),
        (["train.neighbor_sizes", "[0]"], "train.neighbor_sizes: numbers above 0"),
    ],
)
def test_a_wrong_setting_is_one_line_before_anything_is_touched(
    more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments(tmp_path, *more)) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert message in line
    assert not (tmp_path / "r-sample").exists()
