"""Several processes: the numbers of one with the same global batch; and what a process keeps of freed memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from graphgps_kmip.results.run_record import read_record
from graphgps_kmip.train import distributed
from tests.processes import forked, preloaded_ranks
from tests.train.toy import TEST, last_checkpoint, read_stats, run
from tests.train.two_processes import OPTIONS, normalise, uneven_loaders

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    """What two processes left: exit codes by rank, both outputs, and their folder."""

    exit_codes: list[int]
    stdout: str
    stderr: str
    folder: Path


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Two processes with the environment that torchrun sets, without the seconds of torchrun itself."""
    folder = tmp_path_factory.mktemp("two")
    done = preloaded_ranks(2, "tests/train/two_processes.py", folder)
    stdout, stderr = ("".join(getattr(process, name) for process in done) for name in ("stdout", "stderr"))
    return Outcome([process.returncode for process in done], stdout, stderr, folder)


def assert_same_numbers(got: Path, want: Path) -> None:
    for split in ("train", "val", "test"):
        lines, expected = read_stats(got, split), read_stats(want, split)
        assert len(lines) == len(expected)
        for line, expected_line in zip(lines, expected, strict=True):
            assert line == pytest.approx(expected_line, rel=1e-5)  # float32, and six digits on disk
    torch.testing.assert_close(
        last_checkpoint(got)["model_state"], last_checkpoint(want)["model_state"], rtol=1e-4, atol=1e-5
    )  # float32 sums in another order, through a few steps


def test_two_processes_give_the_numbers_of_one_with_the_same_global_batch(two: Outcome, tmp_path: Path) -> None:
    run(tmp_path, loaders=uneven_loaders(), **OPTIONS)
    assert read_record(two.folder / "two")["processes"] == 2, two.stderr
    assert_same_numbers(two.folder / "two", tmp_path)
    assert [line["rows"] for line in read_stats(two.folder / "two", "test")] == [TEST] * OPTIONS["max_epoch"]


def test_two_processes_resume(two: Outcome) -> None:
    assert read_record(two.folder / "resumed")["resumes"] == 1, two.stderr
    for split in ("train", "val", "test"):
        assert read_stats(two.folder / "resumed", split) == read_stats(two.folder / "two", split)


def test_batch_norm_sees_the_rows_of_all_processes(two: Outcome) -> None:
    first, second = (torch.load(two.folder / f"norm{rank}.pt") for rank in range(2))
    for name, value in normalise().items():
        if name.endswith(("out", "gradient")):
            got = torch.cat([first[name], second[name]])
        elif name.endswith(("weight", "bias")):
            got = first[name] + second[name]
        else:
            got = first[name]
            torch.testing.assert_close(second[name], got, rtol=0, atol=0)
        torch.testing.assert_close(got, value, rtol=1e-12, atol=1e-12, msg=name)


def test_an_error_of_the_first_process_is_raised_in_all(two: Outcome) -> None:
    assert two.stdout.count("in all processes: no room") == 2


def test_a_loader_that_is_not_sharded_is_refused(two: Outcome) -> None:
    assert two.stdout.count("The train loader gives every one of the 2 processes all samples") == 2


def test_a_signal_to_two_processes_saves_once_and_ends_both(two: Outcome) -> None:
    assert two.exit_codes == [143, 143], two.stderr
    assert two.stderr.count("the last good checkpoint is") == 1
    assert [path.name for path in (two.folder / "stopped" / "ckpt").iterdir()] == ["1.ckpt"]
    assert [line["epoch"] for line in read_stats(two.folder / "stopped", "train")] == [0, 1]


# Prints how many pages are new, 4 KiB each, when a tensor is filled after eight others of its size: the fewest of eight
# times, since a small object may take a part of the memory that the tensor before has left.
NEW_PAGES = """
import resource, torch
from graphgps_kmip.train import distributed
{setting}
pages = []
for _ in range(16):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones({size}, dtype=torch.uint8)
    pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(pages[8:]))
"""
BYTES = 48 * 2**20


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="no glibc")
def test_a_process_that_keeps_freed_memory_takes_no_new_pages_for_its_next_tensors() -> None:
    keep, fabric = "distributed.keep_freed_memory()", "distributed.make_fabric('cpu')"
    codes = [
        NEW_PAGES.format(setting=setting, size=size)
        for setting, size in (("", BYTES), (keep, BYTES), (fabric, BYTES), (keep, 2 * distributed.KEPT_BYTES))
    ]
    ended = forked("import graphgps_kmip.train.distributed", codes)
    default, keeping, trained, large = (int(process.stdout.split()[-1]) for process in ended)
    pages = BYTES // 4096
    assert default > pages / 2
    assert max(keeping, trained) < pages / 100
    assert large > pages  # goes back


@pytest.mark.parametrize("name", distributed.OWN_SETTINGS)
def test_settings_of_the_user_are_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert not distributed.keep_freed_memory()
