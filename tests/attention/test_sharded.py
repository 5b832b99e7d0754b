"""k-MIP attention over sharded nodes equals the unsharded one, in 1, 2 and 4 processes, and errors reach every rank."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from graphgps_kmip.attention.sharded_attention import sharded_kmip_attention
from graphgps_kmip.attention.sparse_attention import sparse_attention
from graphgps_kmip.search import topk_inner_product
from graphgps_kmip.search.problem import NotFinite
from tests.attention.sharded_cases import Case, cases, unsharded
from tests.processes import preloaded

WORLDS = (1, 2, 4)
GOOD = [(world, name) for world in WORLDS for name, case in cases(world).items() if not case.on_rank]
SEVERAL = [(world, name) for world, name in GOOD if world > 1]
# Rounding: another order of summation, each value of a few terms of size 1; halves are rounded once, at the end.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}
SHAPES = "same rows and heads, got"
# What the ranks say whose input is at fault; None: that there is a disagreement, which all see alike.
ERRORS = {
    "another D": (None, "the width D of queries and keys must be the same on every rank, got .*3, 6] on ranks 0 to"),
    "another C": (None, "the width C of values must be the same on every rank, got .*5, 2]"),
    "another K": (None, "num_keys must be the same on every rank, got .*4, 3]"),
    "another dtype": (None, "the dtype of q must be the same on every rank, got .*float64, torch.float32]"),
    "another ptr": (None, "the checksum of ptr .* must be the same on every rank"),
    "no ptr": (None, "the end of ptr must be the same on every rank, got .*37, -1]"),
    "a ptr of the shard": (None, r"ptr must end at 37, the rows of all ranks together, got \[0, 5\]"),
    "a gradient on one rank": (None, "whether a gradient is required must be the same on every rank, got .*1, 0]"),
    "a falling ptr": (r"ptr must increase from 0 .*, got \[0, 7, 5, 37\]", "refused its shard"),
    "a ptr of floats": (r"ptr must be \(B\+1,\) of torch.int64 on cpu, got shape \(2,\) of torch.float32", "refused"),
    "NaN in q": ("q has NaN or infinite values", "refused its shard"),
    "infinity in k": ("k has NaN or infinite values", "refused its shard"),
    "a flat v": (SHAPES, "refused its shard"),
    "a short v": (SHAPES, "refused its shard"),
    "a v of another dtype": ("v must be of torch.float64 on cpu as q is, got torch.float32", "refused its shard"),
    "no keys wanted": ("num_keys must be an integer >= 1, got 0", "refused its shard"),
    "an unknown backend": ("unknown search backend 'chunky'", "refused its shard"),
}


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("sharded")
    return preloaded("-m", "tests.attention.sharded_worker", str(folder)), folder


@pytest.fixture(scope="module")
def found(processes: tuple[subprocess.CompletedProcess[str], Path]) -> dict[int, list[dict[str, Any]]]:
    """What each rank of each group of processes got, by case; nothing for the cases after the one that failed."""
    files = {world: [processes[1] / f"{world}-{rank}.pt" for rank in range(world)] for world in WORLDS}
    return {
        world: [torch.load(file, weights_only=False) if file.exists() else {} for file in of_ranks]
        for world, of_ranks in files.items()
    }


def test_every_process_ends_well(processes: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    assert processes[0].returncode == 0, processes[0].stderr[-4000:]


def together(results: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Put the shards of all ranks together again."""
    parts = [result[name] for result in results]
    whole = {key: torch.cat([part[key] for part in parts]) for key in ("index", "score", "out") if key in parts[0]}
    if "grad" in parts[0]:
        whole["grad"] = tuple(torch.cat(shards) for shards in zip(*(part["grad"] for part in parts), strict=True))
    return whole


def assert_equal(result: dict[str, Any], expected: dict[str, Any], case: Case) -> None:
    tolerance = {"rtol": TOLERANCE[case.dtype], "atol": TOLERANCE[case.dtype]}
    if "score" in result:
        torch.testing.assert_close(result["score"], expected["score"], **tolerance)
        if case.keys != "duplicate":
            torch.testing.assert_close(result["index"].long(), expected["index"])
    torch.testing.assert_close(result["out"], expected["out"], **tolerance)
    assert ("grad" in result) == case.grad
    for at, (ours, theirs) in enumerate(zip(result.get("grad", ()), expected["grad"], strict=False)):
        if at and case.keys == "duplicate":  # which of equal keys is taken is free: the copies together have the sum
            ours, theirs = (grad.unflatten(0, (3, -1)).sum(0) for grad in (ours, theirs))
        torch.testing.assert_close(ours, theirs, **tolerance)


@pytest.mark.parametrize(("world", "name"), GOOD)
def test_output_and_gradients_equal_those_of_the_unsharded_attention(
    world: int, name: str, found: dict[int, list[dict[str, Any]]]
) -> None:
    assert_equal(together(found[world], name), unsharded(world, name), cases(world)[name])


def test_groups_of_processes_work_side_by_side(found: dict[int, list[dict[str, Any]]]) -> None:
    name, case = "graphs over the borders", cases(2)["graphs over the borders"]
    for group in (found[4][::2], found[4][1::2]):
        assert_equal(together(group, "in a group of two"), unsharded(2, name), case)


def test_a_process_outside_the_group_is_refused(found: dict[int, list[dict[str, Any]]]) -> None:
    for result in found[4]:
        with pytest.raises(ValueError, match="not a member of the given process group"):
            raise result["a group of others"]


@pytest.mark.parametrize("world", [2, 4])
def test_it_repeats_bit_for_bit(world: int, found: dict[int, list[dict[str, Any]]]) -> None:
    first, second = together(found[world], "even shards"), together(found[world], "twice")
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", ERRORS)
def test_an_error_of_one_rank_is_raised_by_all(world: int, name: str, found: dict[int, list[dict[str, Any]]]) -> None:
    own, others = ERRORS[name]
    at_fault = cases(world)[name].on_rank
    for rank, result in enumerate(found[world]):
        message = own if own and rank in at_fault else others
        kind = NotFinite if name in ("NaN in q", "infinity in k") else ValueError
        with pytest.raises(kind, match=message):
            raise result[name]
        if own and rank not in at_fault:
            assert f"rank {next(iter(at_fault))} refused" in str(result[name])


def test_every_wrong_case_has_its_message() -> None:
    assert {name for name, case in cases(2).items() if case.on_rank} == set(ERRORS)


@pytest.mark.parametrize(("world", "name"), SEVERAL)
def test_the_bytes_that_travel_are_those_of_the_documentation(
    world: int, name: str, found: dict[int, list[dict[str, Any]]]
) -> None:
    case = cases(world)[name]
    index = together(found[world], name)["index"]
    owner = torch.repeat_interleave(torch.tensor(case.sizes))
    graph = torch.repeat_interleave(torch.tensor(case.bounds).diff())
    met = torch.stack([torch.isin(graph, graph[owner == rank]) for rank in range(world)], dim=1).long()  # (N, R)
    chosen = torch.stack([(index >= 0) & (owner[index.clamp(min=0).long()] == rank) for rank in range(world)])
    pairs, visits = (counts.movedim(0, 1).flatten(2).sum(2) for counts in (chosen, chosen.any(-1)))  # (N, R)
    heads, dim, channels, num_keys = case.heads, 3, 5, case.num_keys
    narrow = torch.empty(0, dtype=case.dtype).element_size()
    wide = max(narrow, 4)
    for rank, result in enumerate(found[world]):
        out, back = (owner == rank)[:, None], owner != rank
        others = torch.arange(world) != rank
        sent = [int((counts * out)[:, others].sum()) for counts in (met, pairs, visits)]
        came = [int(counts[back, rank].sum()) for counts in (met, pairs, visits)]
        bytes_of = result[name]
        assert bytes_of["search bytes"] == heads * (sent[0] * dim * narrow + came[0] * num_keys * (wide + 4))
        counts_of_visits = 16 * (world - 1)
        expected = counts_of_visits + sent[1] * (4 + wide) + sent[2] * 4 + came[2] * channels * wide
        assert bytes_of["forward bytes"] == expected
        if case.grad:
            expected = sent[2] * (dim + channels) * wide + came[1] * wide + sent[1] * 2 * wide + came[2] * dim * wide
            assert bytes_of["backward bytes"] == expected


@pytest.mark.parametrize("world", [2, 4])
def test_the_ranks_meet_as_often_as_documented(world: int, found: dict[int, list[dict[str, Any]]]) -> None:
    steps = 3 * (world - 1)
    for result in found[world]:
        calls = [result["even shards"][f"{part} calls"] for part in ("search", "forward", "backward")]
        assert calls == [steps, steps + 5, 4]


@pytest.mark.parametrize("world", [2, 4])
def test_graphs_inside_their_shards_send_nothing_but_counts(world: int, found: dict[int, list[dict[str, Any]]]) -> None:
    for result in found[world]:
        case = result["graphs that end at the borders"]
        assert case["search calls"] == 0
        assert (case["search bytes"], case["forward bytes"], case["backward bytes"]) == (0, 16 * (world - 1), 0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_without_a_process_group_it_is_the_unsharded_attention(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(13, 2, width).to(dtype) for width in (3, 3, 5))
    for ptr in (None, torch.tensor([0, 5, 13])):
        heads = [tensor.transpose(0, 1).to(torch.promote_types(dtype, torch.float32)) for tensor in (q, k)]
        index, score = topk_inner_product(*heads, ptr, ptr, 4)
        assert torch.equal(sharded_kmip_attention(q, k, v, 4, ptr), sparse_attention(q, k, v, index, score))
        torch.manual_seed(1)
        dropped = sharded_kmip_attention(q, k, v, 4, ptr, dropout=0.5)
        torch.manual_seed(1)
        assert torch.equal(dropped, sparse_attention(q, k, v, index, score, 0.5))


def test_without_a_process_group_wrong_arguments_are_refused() -> None:
    q = torch.randn(4, 2, 3)
    with pytest.raises(ValueError, match=SHAPES):
        sharded_kmip_attention(q, q, q[:3], 2)
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\), got 1"):
        sharded_kmip_attention(q, q, q, 2, dropout=1.0)
