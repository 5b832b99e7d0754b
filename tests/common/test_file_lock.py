"""File locks: seen by other processes, by both kinds of holder, and gone with their process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import Timeout

from graphgps_kmip.common.file_lock import held, is_held, take_descriptor

HOLD = "import sys, time; from pathlib import Path; from graphgps_kmip.common.file_lock import held\n"
HOLD += "with held(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"


def test_the_lock_of_another_process_is_seen_and_ends_with_it(tmp_path: Path) -> None:
    file = tmp_path / "new" / ".lock"
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(file)], stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    assert is_held(file)
    assert take_descriptor(file) is None
    with pytest.raises(Timeout), held(file, wait=0.1):
        pass
    other.kill()
    other.wait()
    assert not is_held(file)
    with held(file, wait=5):
        assert is_held(file)


def test_a_process_takes_its_own_lock_again(tmp_path: Path) -> None:
    with held(tmp_path / "a"), held(tmp_path / "a", wait=0.1):
        pass
    assert not is_held(tmp_path / "a")


def test_a_descriptor_is_a_lock_for_both_kinds(tmp_path: Path) -> None:
    descriptor = take_descriptor(tmp_path / "a")
    assert descriptor is not None
    with pytest.raises(Timeout), held(tmp_path / "a", wait=0.1):
        pass
    os.close(descriptor)
    assert not is_held(tmp_path / "a")


def test_asking_makes_no_file(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "a")
    assert not list(tmp_path.iterdir())
