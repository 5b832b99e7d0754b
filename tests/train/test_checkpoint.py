"""Checkpoints: when they are written and kept, and one line where a run cannot go on from one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphgps_kmip.errors import CheckpointError
from graphgps_kmip.train.checkpoint import read_checkpoint
from tests.data.sets.raw_files import Code
from tests.train.toy import ToyModel, run


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "record.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"max_epoch": 5, "ckpt_period": 2, "ckpt_clean": False}, ["1.ckpt", "3.ckpt", "4.ckpt"]),
        ({"max_epoch": 4, "ckpt_best": True}, ["3.ckpt", "best.ckpt"]),
        ({"max_epoch": 2, "enable_ckpt": False, "ckpt_best": True}, []),
    ],
)
def test_checkpoints_are_written_at_the_period_and_the_end_and_all_but_newest_and_best_are_removed(
    options: dict, names: list[str], tmp_path: Path
) -> None:
    run(tmp_path, **options)
    assert sorted(path.name for path in tmp_path.glob("ckpt/*")) == names


def test_a_checkpoint_holds_the_names_of_graphgym_and_loads_as_plain_data(tmp_path: Path) -> None:
    run(tmp_path, max_epoch=2)
    content = torch.load(tmp_path / "ckpt" / "1.ckpt", weights_only=True)
    assert {"model_state", "optimizer_state", "scheduler_state", "epoch", "best", "rng", "config_hash"} < content.keys()
    ToyModel().load_state_dict(content["model_state"])
    assert content["epoch"] == 1


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-500])


def flip_a_bit_of_a_tensor(path: Path) -> None:
    weight = torch.load(path, weights_only=True)["model_state"]["inner.weight"].numpy().tobytes()
    content = path.read_bytes()
    at = content.index(weight)
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "half": truncate,
    "a flipped bit": flip_a_bit_of_a_tensor,
    "code": lambda path: torch.save({"model_state": Code(path.parent / "executed")}, path),
    "another file": lambda path: torch.save({"model_state": {}}, path),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_named_with_the_older_one_and_nothing_is_touched(
    damage: Callable[[Path], object], tmp_path: Path
) -> None:
    run(tmp_path, max_epoch=3, ckpt_clean=False)
    newest = tmp_path / "ckpt" / "2.ckpt"
    damage(newest)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError) as error:
        run(tmp_path, max_epoch=3, auto_resume=True)
    message = str(error.value)
    assert str(newest) in message
    assert f"delete it to go on from {tmp_path}/ckpt/1.ckpt, or set train.epoch_resume 1" in message
    assert "\n" not in message
    assert contents(tmp_path) == before
    assert not (tmp_path / "ckpt" / "executed").exists()
    assert run(tmp_path, max_epoch=3, auto_resume=True, epoch_resume=1)["finished"]  # the fix works


def more_parameters() -> torch.nn.Module:
    model = ToyModel()
    model.outer = torch.nn.Linear(8, 5)
    model.more = torch.nn.Linear(1, 1)
    return model


REFUSED: dict[str, tuple[Callable[[Path], object], dict[str, Any], str]] = {
    "the only one is damaged": (
        lambda folder: truncate(folder / "ckpt/1.ckpt"), {}, "no other one: delete it to start from epoch 0",
    ),
    "no such epoch": (lambda _: None, {"epoch_resume": 7}, r"train.epoch_resume is 7.* has the epochs 1;"),
    "another model": (
        lambda _: None,
        {"model": more_parameters()},
        r"does not fit the model: Missing key.* \"more.weight\", \"more.bias\". size mismatch for outer.weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_resume_that_cannot_be_is_one_line_and_changes_nothing(case: str, tmp_path: Path) -> None:
    prepare, options, message = REFUSED[case]
    run(tmp_path, max_epoch=2)
    prepare(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        run(tmp_path, max_epoch=2, auto_resume=True, **options)
    assert contents(tmp_path) == before


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path) -> None:
    run(tmp_path, max_epoch=1)
    with pytest.raises(CheckpointError, match="is of configuration 'toy', this run of 'other'"):
        read_checkpoint(tmp_path / "ckpt" / "0.ckpt", "other")
