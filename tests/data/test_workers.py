"""Errors of the processes that load data: one line with graph and file, and a killed process is reported as such."""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from graphgps_kmip.data import DataError, GraphDataset, GraphLoader, make_loaders
from graphgps_kmip.data.loaders import with_node_budget
from graphgps_kmip.errors import is_users, one_line
from tests.processes import python

Rings = Callable[[int], GraphDataset]
WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


class Odd(list):
    """A sequence of graphs in which reading number 3 does something else."""

    def __init__(self, graphs: Any, event: Callable[[], Any]) -> None:
        super().__init__(graphs)
        self.event = event

    def __getitem__(self, number: int) -> Data:
        return self.event() if number == 3 else super().__getitem__(number)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)


@pytest.fixture
def _ended_here(_short_waits: None) -> Iterator[None]:
    """Let a loader with a killed process wait for the others when its test ends, not for 5 seconds in a later one."""
    yield
    gc.collect()


def failing(error: Exception) -> Callable[[], Any]:
    def event() -> Any:
        raise error

    return event


def line_of(loader: GraphLoader) -> str:
    with pytest.raises(DataError) as raised:
        list(loader)
    line = str(raised.value)
    assert "\n" not in line
    assert "Traceback" not in line
    assert str(pickle.loads(pickle.dumps(raised.value))) == line
    return line


@WORKERS
@pytest.mark.parametrize("error", [EOFError("the file ends here"), OSError(5, "Input/output error"), ValueError("odd")])
def test_a_graph_that_cannot_be_read_is_named_with_its_file(error: Exception, num_workers: int, rings: Rings) -> None:
    files = [f"/data/{number}.pt" for number in range(9)]
    dataset = GraphDataset(Odd(rings(9).graphs, failing(error)), ([0, 1, 2, 4], [5, 3], [6, 7]), files=files)
    train, val, _ = make_loaders(dataset, "graph", 4, seed=0, num_workers=num_workers)
    assert line_of(val).startswith(f"graph 3 (/data/3.pt) cannot be read ({type(error).__name__}: ")
    assert sum(batch.num_graphs for batch in train) == 4


@WORKERS
def test_graphs_that_no_batch_can_join_are_named(num_workers: int, rings: Rings) -> None:
    graphs = rings(6).graphs
    graphs[0].weight = torch.ones(2)
    line = "graph 1: weight is missing, and graph 0 has it: give it to every graph, or to none"
    assert line_of(GraphLoader(graphs, 6, num_workers=num_workers)) == line
    for graph in graphs:
        graph.weight = torch.ones(2, 3 if graph is graphs[3] else 4)
    wide = GraphLoader(graphs, 2, num_workers=num_workers)
    assert line_of(wide) == "graph 3: graphs differ in the columns of weight: 3 here, 4 in graph 2: give all the same"
    assert line_of(with_node_budget(wide, 1_000)).startswith("graph 3: graphs differ in the columns of weight: 3 here")


@WORKERS
def test_a_fault_of_the_code_that_reads_keeps_its_type(num_workers: int, rings: Rings) -> None:
    graphs = Odd(rings(6).graphs, failing(AttributeError("no such thing")))
    with pytest.raises(AttributeError, match="no such thing"):
        list(GraphLoader(graphs, 6, num_workers=num_workers))


@pytest.mark.usefixtures("_ended_here")
def test_a_killed_process_is_told_as_such(rings: Rings) -> None:
    graphs = Odd(rings(6).graphs, lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RuntimeError) as raised:
        list(GraphLoader(graphs, 2, num_workers=2))
    assert is_users(raised.value)
    assert one_line(raised.value).startswith("num_workers: a process that loads data was killed: it may have needed")


# Two forked processes, each of which lists the threads of every BLAS that it has loaded after a first use of scipy.
BLAS = """
import json
from threadpoolctl import threadpool_info
from graphgps_kmip.data.precomputed_encodings import map_in_order

def work(chunk):
    import scipy.linalg
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

print(json.dumps(list(map_in_order("", work, [range(1), range(1, 2)], 2))))
"""


def test_every_blas_of_a_forked_process_has_one_thread() -> None:
    done = python("-W", "ignore", "-c", BLAS, env=os.environ | {"OPENBLAS_NUM_THREADS": "2"})
    assert done.returncode == 0, done.stderr
    for threads in json.loads(done.stdout.splitlines()[-1]):
        assert set(threads) == {1}
        assert len(threads) >= 2  # numpy's and scipy's
