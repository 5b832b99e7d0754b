"""Processes that are killed are started again by torchrun, and the run ends with the numbers of an undisturbed one."""

from __future__ import annotations

import socket
import subprocess
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch.distributed import DistError, HashStore

import main
from graphgps_kmip.results.run_record import read_record
from graphgps_kmip.train.distributed import STARTS, number_of_start
from tests.processes import preloaded_at_once, preloaded_ranks
from tests.test_large_graph import CORA, SHORT
from tests.train import toy
from tests.train.four_processes import EPOCHS
from tests.train.killed import at_batch
from tests.train.toy import last_checkpoint, read_stats

ROOT = Path(__file__).parents[2]
DIGITS = str(ROOT / "configs/quickstart/digits-kmip.yaml")
WIDTHS = ["gt.dim_hidden", "16", "gnn.dim_inner", "16", "gt.kmip.dim_kq", "4", "optim.max_epoch", "3"]
CASES = {  # what is trained, and which process is killed in which epoch
    "nodes": (["--cfg", CORA, *SHORT], "3@1"),
    "graphs": (["--cfg", DIGITS, "dataset.sample", "True", "accelerator", "cpu", "num_threads", "1", *WIDTHS], "0@2"),
}


def agents(nodes: int, preload: str, *arguments: str | Path) -> list[subprocess.CompletedProcess[str]]:
    """Run torchrun's agent with four processes, this machine in the place of so many."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    command = ["-m", "tests.train.four_processes", "--agent", str(nodes), endpoint, preload, *arguments]
    ended = preloaded_at_once(nodes, *command)
    assert [process.returncode for process in ended] == [0] * nodes, [process.stderr for process in ended]
    return ended


def assert_same_run(got: Path, want: Path, starts: int) -> None:
    """Equal to the last bit: statistics, parameters, moments and random generators."""
    for split in ("train", "val", "test"):
        assert read_stats(got, split) == read_stats(want, split)
    (state, expected) = (last_checkpoint(folder) for folder in (got, want))
    for key in ("model_state", "optimizer_state", "scheduler_state", "rng", "epoch"):
        torch.testing.assert_close(state[key], expected[key], rtol=0, atol=0)
    record = read_record(got)
    assert (record["finished"], record["resumes"], record["processes"]) == (True, starts - 1, 4)


# Checkpoints are due after epochs 2 and 5. In epoch 4 the first process survives and saves epoch 3; killed itself in
# epoch 5, it saves nothing.
@pytest.mark.parametrize("kills", ["3@4", pytest.param("3@4,0@5", marks=pytest.mark.slow)])
def test_processes_that_are_killed_are_started_again_and_give_the_numbers_of_an_undisturbed_run(
    kills: str, tmp_path: Path
) -> None:
    done = preloaded_ranks(4, "tests/train/four_processes.py", tmp_path / "whole")
    assert [process.returncode for process in done] == [0] * 4, done[0].stderr
    arguments = [tmp_path, kills, ROOT / "tests/train/four_processes.py", tmp_path / "killed"]
    (ended,) = agents(1, "tests.train.toy", *arguments)
    killed = kills.split(",")
    assert sorted(path.name for path in tmp_path.glob("*@*")) == sorted(killed)
    starts = [line for line in ended.stdout.splitlines() if line.startswith("goes on from")]
    assert starts == ["goes on from", *["goes on from 3" for _ in killed]]
    assert_same_run(tmp_path / "killed", tmp_path / "whole", starts=1 + len(killed))
    assert last_checkpoint(tmp_path / "killed")["epoch"] == EPOCHS - 1


@pytest.mark.parametrize(
    ("message", "saved"), [("[pair.cc:552] Connection closed by peer [127.0.0.1]:7", ["2"]), ("a fault", [])]
)
def test_a_process_that_loses_another_one_saves_the_last_completed_epoch(
    message: str, saved: list[str], tmp_path: Path
) -> None:
    def lose() -> None:
        raise RuntimeError(message)

    with pytest.raises(RuntimeError, match=message[-8:]):
        toy.run(tmp_path, at_batch(23, lose), ckpt_period=100)  # 7 batches an epoch: in epoch 3
    assert [path.stem for path in tmp_path.glob("ckpt/*")] == saved


@pytest.mark.slow  # a minute each: eight processes
@pytest.mark.parametrize(("case", "nodes"), [("nodes", 2), ("graphs", 1)])
def test_a_training_goes_on_after_a_process_of_one_or_two_machines_is_killed(
    case: str, nodes: int, tmp_path: Path
) -> None:
    arguments, kills = CASES[case]
    arguments = [*arguments, "train.auto_resume", "True", "train.ckpt_period", "2", "out_dir"]
    done = preloaded_ranks(4, "main.py", *arguments, tmp_path / "whole/r")
    assert [process.returncode for process in done] == [0] * 4, done[0].stderr
    agents(nodes, "graphgps_kmip.gym.experiment", tmp_path, kills, ROOT / "main.py", *arguments, tmp_path / "r")
    folder = f"r-sample/{Path(arguments[1]).stem}/0"
    assert (tmp_path / kills).exists()
    assert_same_run(tmp_path / folder, tmp_path / "whole" / folder, starts=2)


def numbers(store: HashStore, world: int) -> list[str]:
    """Return what each process of a start takes for its number; the further ones come first."""
    answers = [""] * world
    threads = [
        threading.Thread(target=lambda rank=rank: answers.__setitem__(rank, number_of_start(store, rank, world)))
        for rank in reversed(range(world))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_all_processes_of_a_start_have_its_number_whatever_earlier_starts_left() -> None:
    store = HashStore()
    assert numbers(store, 3) == ["1"] * 3
    store.set(f"{STARTS}/word of 2", "of a process that was killed before its answer came")
    assert numbers(store, 3) == ["2"] * 3
    store.add(f"{STARTS}/count", 1)  # a start whose first process came no further
    assert numbers(store, 4) == ["4"] * 4
    assert numbers(store, 1) == ["5"]


def test_a_start_without_all_its_processes_ends_at_the_time_limit() -> None:
    store = HashStore()
    store.set_timeout(timedelta(seconds=0.2))
    with pytest.raises(DistError, match="start 1 of this run has not all of its 2 processes"):
        number_of_start(store, 0, 2)


@pytest.mark.parametrize(
    "more", [[], ["--overwrite", "train.auto_resume", "True"], ["train.auto_resume", "True", "train.epoch_resume", "1"]]
)
def test_restarts_that_would_lose_epochs_are_refused(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    flags = [word for word in more if word.startswith("--")]
    settings = [word for word in more if not word.startswith("--")]
    assert main.run(["--cfg", CORA, *flags, "out_dir", str(tmp_path / "r"), *SHORT, *settings]) == 2
    assert "error: torchrun --max-restarts 3: a restart must go on from the newest" in capsys.readouterr().err
    assert not (tmp_path / "r-sample").exists()
