"""Message passing on the shards of a graph gives the outputs and gradients of the whole graph, for every layer."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from tests.mpnn.cases import LAYERS, build
from tests.mpnn.sharded_layers import run, whole_graph
from tests.processes import preloaded_ranks

EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64 sums in another order
WORLDS = (1, 2, 4)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """What each process of groups of 1, 2 and 4 got, by layer."""
    folder = tmp_path_factory.mktemp("shards")
    for world in WORLDS:
        done = preloaded_ranks(world, "-m", "tests.mpnn.sharded_layers", folder)
        assert [one.returncode for one in done] == [0] * world, done[0].stderr
    return {world: [torch.load(folder / f"{world}-{rank}.pt") for rank in range(world)] for world in WORLDS}


@cache
def expected(name: str) -> dict[str, Any]:
    graph = whole_graph()
    return run(build(name), graph, torch.arange(graph.num_nodes))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_and_gradients_over_shards_are_those_of_the_whole_graph(
    name: str, world: int, found: dict[int, list[dict[str, Any]]]
) -> None:
    shards, whole = [rank[name] for rank in found[world]], expected(name)
    rows = torch.cat([shard["rows"] for shard in shards])
    assert sorted(rows.tolist()) == list(range(len(whole["out"])))
    for key in ("out", "x"):
        torch.testing.assert_close(torch.cat([shard[key] for shard in shards]), whole[key][rows], **EXACT)
    for parameter, gradient in whole["parameters"].items():
        summed = sum(shard["parameters"][parameter] for shard in shards)
        torch.testing.assert_close(summed, gradient, **EXACT, msg=lambda text, one=parameter: f"{one}: {text}")
