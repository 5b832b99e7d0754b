"""Parallel work in forked processes: every result once, errors as they were raised, killed processes named."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from graphgps_kmip.common.forked_work import as_done
from graphgps_kmip.errors import InputError
from tests.processes import wait_for


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_item_comes_once_with_its_result_and_each_in_a_process_of_its_own(workers: int) -> None:
    results = list(as_done("squares", lambda item: (item**2, os.getpid()), range(7), workers))
    assert sorted((item, square) for item, (square, _) in results) == [(item, item**2) for item in range(7)]
    assert (os.getpid() in {pid for _, (_, pid) in results}) == (workers == 1)
    assert len({pid for _, (_, pid) in results}) == (1 if workers == 1 else 7)


def test_results_come_when_they_are_there(tmp_path: Path) -> None:
    def work(item: int) -> int:
        if item == 0:
            wait_for((tmp_path / "others are done").exists)
        return torch.get_num_threads()

    order = []
    for item, threads in as_done("naps", work, range(4), 2):
        order.append(item)
        assert threads == 1
        if len(order) == 3:
            (tmp_path / "others are done").touch()
    assert order == [1, 2, 3, 0]


def test_an_error_is_raised_as_it_was_and_one_that_cannot_be_sent_by_name() -> None:
    class Odd(Exception):
        def __init__(self, first: int, second: int) -> None:
            super().__init__(f"{first} {second}")

    def work(item: int) -> None:
        raise InputError("key: wrong") if item == 0 else Odd(1, 2)

    with pytest.raises(InputError, match="key: wrong"):
        list(as_done("work", work, [0], 2))
    with pytest.raises(RuntimeError, match="Odd: 1 2"):
        list(as_done("work", work, [1], 2))


def test_a_killed_process_is_one_line() -> None:
    def work(_item: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(InputError, match=r"pairs: the process of 3 was killed \(exit code -9\); .* num_threads"):
        list(as_done("pairs", work, [3], 2))


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_closed_iteration_ends_its_processes_at_once() -> None:
    reader, writer = os.pipe()

    def work(item: int) -> None:
        os.write(writer, b"%d\n" % os.getpid())
        if item:
            time.sleep(600)

    results = as_done("naps", work, range(3), 3)
    assert next(results)[0] == 0
    with os.fdopen(reader) as file:
        pids = {int(file.readline()) for _ in range(3)}
        results.close()
    os.close(writer)
    for pid in pids:
        wait_for(partial(is_gone, pid))
