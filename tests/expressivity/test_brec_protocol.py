"""BREC's protocol: the statistic against records, verdicts of models of known power, protocols, seeds, resumption."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch_geometric.data import Batch, Data
from torch_geometric.utils import to_dense_adj

from graphgps_kmip.data.sets.brec import pair_graphs
from graphgps_kmip.errors import InputError, ResultsError
from graphgps_kmip.expressivity.brec_protocol import (
    THRESHOLD,
    PairTest,
    category_rows,
    hotelling_t2,
    is_distinguished,
    read_results,
    resume_results,
    run_pair,
    run_pairs,
    run_to_file,
    table_text,
)
from graphgps_kmip.networks.create_model import create_model
from tests.data.sets.brec_pairs import BASIC, CFI, EXTENSION, SIMPLE_REGULAR, STRONGLY_REGULAR, brec_pairs
from tests.record_files import kind_of_records

PAIRS = brec_pairs().pairs
WALKS = 8


class Walks(nn.Module):
    """Squares of numbers of closed walks (3-WL at most), plus `order` times a dependence on the order of nodes."""

    def __init__(self, norm: bool = True, order: float = 0.0, shift: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(WALKS, 16)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.order, self.shift = order, shift

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        dense = to_dense_adj(batch.edge_index, batch.batch).to(self.linear.weight) / 7  # (B, N, N)
        power, traces = dense, []
        for _ in range(WALKS):
            power = power @ dense
            traces.append(torch.diagonal(power, dim1=1, dim2=2).pow(2).sum(1))
        features = torch.stack(traces, 1)
        features = features + self.order * dense[:, 0, :WALKS]
        second = torch.arange(len(features), device=features.device).remainder(2)[:, None]
        return self.norm(self.linear(self.features(features))) + self.shift * second, batch.y

    def features(self, features: Tensor) -> Tensor:
        return features


def gin() -> nn.Module:
    options = {"node_encoder": "TypeDictNode", "settings": {"dataset.node_encoder_num_types": 1}}
    return create_model("GIN", 1, 16, network="custom_gnn", num_layers=2, dim=8, **options)


def adam(model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return optimizer, LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))


def graphs_of(pair: int) -> tuple[list[Data], list[Data]]:
    return pair_graphs(brec_pairs(), PAIRS.index(pair))


def pair_test(model: Callable[[], nn.Module] = Walks, **options: Any) -> PairTest:
    return PairTest(model, adam, **{"epochs": 3, "dtype": torch.float64} | options)


def without_time(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "seconds"}


@pytest.mark.parametrize("name", kind_of_records("I_brec"))
def test_the_statistic_is_the_recorded_one(name: str) -> None:
    record = kind_of_records("I_brec")[name]
    first, second = (torch.from_numpy(record[key].copy()) for key in ("in/X", "in/Y"))
    assert hotelling_t2(first, second) == pytest.approx(float(record["eval/out/T2"]), rel=1e-9)


def test_the_statistic_does_not_change_with_an_affine_map_of_the_outputs_and_is_0_for_equal_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(32, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    linear, shift = (torch.randn(5, *size, generator=generator, dtype=torch.float64) for size in ((5,), ()))
    expected = hotelling_t2(first, second)
    assert hotelling_t2(first @ linear + shift, second @ linear + shift) == pytest.approx(expected, rel=1e-9)
    assert hotelling_t2(first, first) == 0
    difference = (first - second)[:, :1]
    single = float(difference.mean() ** 2 / difference.var())
    assert hotelling_t2(first[:, :1], second[:, :1]) == pytest.approx(single, rel=1e-12)


def test_a_pair_is_distinguished_above_the_threshold_unless_its_reliability_test_gives_the_same() -> None:
    assert is_distinguished(73.0, 1.0)
    assert not is_distinguished(THRESHOLD, 1.0)
    assert not is_distinguished(1000.0, 1000.005)
    assert is_distinguished(1000.0, 1000.02)
    assert is_distinguished(1000.0, 1000.0 + 1e-5 * 1001 + 1e-5)


def test_gin_distinguishes_no_pair_that_1wl_leaves_equal() -> None:
    for result in run_pairs(pair_test(gin, epochs=2), PAIRS, graphs_of):
        assert not result["distinguished"]
        assert result["reliable"]
        assert result["first_loss"] == pytest.approx(1, abs=1e-6)  # equal outputs: the cosine is 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_protocols_give_the_verdicts_of_closed_walks(dtype: torch.dtype) -> None:
    expected = dict.fromkeys((BASIC, SIMPLE_REGULAR, EXTENSION), True) | {STRONGLY_REGULAR: False}
    for protocol in ("literal", "economical", "untrained"):
        # Noise of the order of nodes, far above rounding, so that the statistic is the same on every machine.
        test = pair_test(partial(Walks, order=1e-4), protocol=protocol, dtype=dtype)
        results = {result["pair"]: result for result in run_pairs(test, list(expected), graphs_of)}
        assert {pair: result["distinguished"] for pair, result in results.items()} == expected, protocol
        assert all(result["reliable"] for result in results.values())
        trained = {"literal": {3}, "economical": {1}, "untrained": {0}}[protocol]
        assert {result["epochs"] for result in results.values()} == trained


class Faint(Walks):
    """Closed walks 10^5 times smaller, and 1000: they are seen after a batch norm whose statistics are theirs."""

    def __init__(self, order: float = 1e-4) -> None:
        super().__init__(order=order)
        self.inner_norm = nn.BatchNorm1d(WALKS, eps=1e-20)

    def features(self, features: Tensor) -> Tensor:
        return self.inner_norm(features * 1e-5) + 1000


@pytest.mark.parametrize("protocol", ["literal", "economical"])
def test_statistics_of_batch_norms_are_those_of_a_long_training_where_it_stops_at_once(protocol: str) -> None:
    models: list[nn.Module] = []

    def keep() -> nn.Module:
        models.append(Faint())
        return models[-1]

    result = run_pair(pair_test(keep, protocol=protocol, epochs=40, dtype=torch.float32), BASIC, graphs_of(BASIC))
    assert result["distinguished"], "with a variance that is still near 1 the features are below the rounding of 1000"
    assert models[0].inner_norm.momentum == 0.1
    assert float(models[0].inner_norm.running_var.max()) < 1e-3
    assert not run_pair(pair_test(Faint, protocol=protocol, epochs=40), STRONGLY_REGULAR, graphs_of(STRONGLY_REGULAR))[
        "distinguished"
    ]


def test_a_model_that_reads_the_order_of_nodes_fails_the_reliability_test() -> None:
    model = partial(Walks, norm=False, order=0.1, shift=1.0)  # it tells the places in a batch apart
    result = run_pair(pair_test(model, protocol="untrained"), BASIC, graphs_of(BASIC))
    assert not result["reliable"]
    assert result["t2_reliability"] > THRESHOLD
    assert result["distinguished"]  # failures are counted apart, as in the public script
    noisy = run_pair(pair_test(partial(Walks, order=100.0), protocol="untrained"), BASIC, graphs_of(BASIC))
    assert (noisy["distinguished"], noisy["reliable"]) == (False, True)  # the noise of the order hides the pair


def test_outputs_that_are_not_finite_are_reported_and_wrong_shapes_refused() -> None:
    class Broken(Walks):
        def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
            out, label = super().forward(batch)
            return out * math.inf, label

    result = run_pair(pair_test(Broken), BASIC, graphs_of(BASIC))
    assert (result["distinguished"], result["reliable"], result["t2"]) == (False, False, None)
    assert "not finite" in result["failed"]
    assert (result["epochs"], result["last_loss"]) == (1, None)

    class Nodes(Walks):
        def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
            return batch.x.double() * self.linear.weight[0, 0], batch.y

    with pytest.raises(InputError, match=r"a row of numbers for each graph, this one \(160, 1\) for 64|for 64 graphs"):
        run_pair(pair_test(Nodes, protocol="untrained"), BASIC, graphs_of(BASIC))
    with pytest.raises(InputError, match=r"brec.protocol: expected one of literal, economical, untrained"):
        pair_test(protocol="literl")


@pytest.mark.parametrize(("protocol", "graphs"), [("literal", 16), ("economical", 2)])
def test_a_model_sees_the_precision_the_split_and_the_progress_of_training(protocol: str, graphs: int) -> None:
    seen, rates = [], []

    class Spy(Walks):
        def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
            seen.append((batch.split, batch.progress, batch.num_graphs, self.training))
            assert batch.y.dtype == torch.zeros(1).dtype == torch.float64
            rates.append(optimizers[0].param_groups[0]["lr"])
            return super().forward(batch)

    optimizers = []

    def followed(model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
        made = adam(model)
        optimizers.append(made[0])
        return made

    test = replace(pair_test(partial(Spy, norm=False), epochs=2, protocol=protocol), optimization=followed)
    run_pair(test, BASIC, graphs_of(BASIC))
    training = [("train", 0.0, graphs, True)] * 4 + [("train", 1.0, graphs, True)] * 4
    assert seen == training + [("test", 1.0, 16, False)] * 8
    assert rates[:8] == pytest.approx([1e-3] * 4 + [5e-4] * 4)
    assert torch.get_default_dtype() == torch.float32


def test_a_result_depends_on_seed_and_pair_alone_not_on_order_processes_or_what_ran_before() -> None:
    test = pair_test(partial(Walks, norm=False), epochs=2)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    results = {result["pair"]: without_time(result) for result in run_pairs(test, PAIRS, graphs_of)}
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert without_time(run_pair(test, CFI, graphs_of(CFI))) == results[CFI]
    parallel = run_pairs(test, PAIRS[::-1], graphs_of, num_workers=2)
    assert {result["pair"]: without_time(result) for result in parallel} == results
    other = run_pair(replace(test, seed=1), CFI, graphs_of(CFI))
    assert other["first_loss"] != results[CFI]["first_loss"]


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    test, path = pair_test(epochs=2), tmp_path / "results.jsonl"

    def deadly(pair: int) -> tuple[list[Data], list[Data]]:
        if pair == PAIRS[2]:
            with open(path, "ab") as file:
                file.write(b'{"pair": 110, "disting')  # half a line, as a full disk or a kill leaves it
            os.kill(os.getpid(), signal.SIGKILL)
        return graphs_of(pair)

    pid = os.fork()
    if pid == 0:
        run_to_file(test, PAIRS, deadly, path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    asked, reported = [], []

    def counted(pair: int) -> tuple[list[Data], list[Data]]:
        asked.append(pair)
        return graphs_of(pair)

    results = run_to_file(test, PAIRS, counted, path, tell=reported.append)
    assert asked == [result["pair"] for result in reported] == list(PAIRS[2:])
    whole = run_to_file(test, PAIRS, graphs_of, tmp_path / "whole.jsonl")
    assert {k: without_time(v) for k, v in results.items()} == {k: without_time(v) for k, v in whole.items()}
    settings, stored = read_results(path)
    assert stored == results
    assert settings == {"protocol": "literal", "epochs": 2, "seed": 0, "loss_threshold": 0.0, "precision": "float64"}
    assert path.read_bytes().count(b"\n") == 1 + len(PAIRS)


def test_results_of_other_settings_are_not_continued_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    run_to_file(pair_test(protocol="untrained"), PAIRS[:1], graphs_of, path)
    with pytest.raises(ResultsError, match="results of other settings"):
        run_to_file(pair_test(protocol="untrained", seed=3), PAIRS[:1], graphs_of, path)
    path.write_bytes(b"{}\n")
    with pytest.raises(ResultsError, match="is no file of results"):
        resume_results(path, {})
    with pytest.raises(ResultsError, match="is missing"):
        read_results(tmp_path / "none.jsonl")


def test_the_table_counts_by_category_and_leaves_untested_pairs_out() -> None:
    base = {"distinguished": True, "reliable": True, "failed": ""}
    results = {
        0: base,
        1: {**base, "distinguished": False},
        2: {**base, "reliable": False},
        10: {"distinguished": False, "reliable": False, "failed": "the outputs are not finite"},
    }
    rows = category_rows(results, {"basic": range(5), "cfi": range(10, 12)})
    counts = [(r.category, r.pairs, r.tested, r.distinguished, r.unreliable, r.failed) for r in rows]
    assert counts == [("basic", 5, 3, 2, 1, 0), ("cfi", 2, 1, 0, 0, 1), ("total", 7, 4, 2, 1, 1)]
    assert "2 of 4 tested pairs are distinguished (50.0 %)" in table_text(rows)
    assert "tested pairs are" not in table_text(category_rows({}, {"basic": range(5)}))
