from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from graphgps_kmip.train import CheckpointError, replace_file
from graphgps_kmip.train.checkpoint import read_checkpoint, write_checkpoint
from tests.train.toy import ToyModel, run


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run, without record.json."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "record.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "ckpt").iterdir())


def test_checkpoints_are_written_at_the_period_and_at_the_end(tmp_path: Path) -> None:
    run(tmp_path, max_epoch=5, ckpt_period=2, ckpt_clean=False)
    assert names(tmp_path) == ["1.ckpt", "3.ckpt", "4.ckpt"]


def test_cleaning_leaves_the_newest_and_the_best(tmp_path: Path) -> None:
    run(tmp_path, max_epoch=4, ckpt_best=True)
    assert names(tmp_path) == ["3.ckpt", "best.ckpt"]


def test_no_checkpoint_is_written_where_they_are_off(tmp_path: Path) -> None:
    run(tmp_path, max_epoch=2, enable_ckpt=False, ckpt_best=True)
    assert not (tmp_path / "ckpt").exists()


def test_a_checkpoint_holds_the_names_of_graphgym_and_loads_as_plain_data(tmp_path: Path) -> None:
    run(tmp_path, max_epoch=2)
    content = torch.load(tmp_path / "ckpt" / "1.ckpt", weights_only=True)
    assert {"model_state", "optimizer_state", "scheduler_state", "epoch", "best", "rng", "config_hash"} < content.keys()
    ToyModel().load_state_dict(content["model_state"])
    assert content["epoch"] == 1


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-500])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_bit_of_a_tensor(path: Path) -> None:
    weight = torch.load(path, weights_only=True)["model_state"]["inner.weight"].numpy().tobytes()
    content = path.read_bytes()
    at = content.index(weight)
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


class Code:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.folder,)


def put_code_there(path: Path) -> None:
    torch.save({"model_state": Code(path.parent / "executed")}, path)


def put_another_file_there(path: Path) -> None:
    torch.save({"model_state": {}}, path)


DAMAGES = (truncate, empty, flip_a_bit_of_a_tensor, put_code_there, put_another_file_there)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_checkpoint_is_named_with_the_older_one_and_nothing_is_touched(
    damage: object, tmp_path: Path
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
    assert run(tmp_path, max_epoch=3, auto_resume=True, epoch_resume=1)["finished"]  # the mend works


def test_the_only_checkpoint_damaged_says_to_start_anew(tmp_path: Path) -> None:
    run(tmp_path, max_epoch=2)
    truncate(tmp_path / "ckpt" / "1.ckpt")
    with pytest.raises(CheckpointError, match="no other one: delete it to start from epoch 0"):
        run(tmp_path, max_epoch=2, auto_resume=True)


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path) -> None:
    run(tmp_path, max_epoch=1)
    with pytest.raises(CheckpointError, match="is of configuration 'toy', this run of 'other'"):
        read_checkpoint(tmp_path / "ckpt" / "0.ckpt", "other")


def test_parameters_of_other_shapes_are_named_in_one_line(tmp_path: Path) -> None:
    run(tmp_path, max_epoch=1)
    before = contents(tmp_path)
    model = ToyModel()
    model.outer = torch.nn.Linear(8, 5)
    model.more = torch.nn.Linear(1, 1)
    with pytest.raises(CheckpointError) as error:
        run(tmp_path, model=model, max_epoch=1, auto_resume=True)
    assert "more.weight is missing; more.bias is missing; outer.weight is (3, 8), the model's (5, 8) and 1 more" in str(
        error.value
    )
    assert contents(tmp_path) == before


def test_a_failed_write_keeps_the_old_content_and_leaves_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "1.ckpt"
    write_checkpoint(path, {"epoch": 1})

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device; make room"):
        write_checkpoint(path, {"epoch": 2})
    assert torch.load(path, weights_only=True) == {"epoch": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["1.ckpt"]


def test_a_replaced_file_has_all_of_the_new_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old and long")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
