"""The benchmark of GECO's growth: graphs, layers, predicted memory, fits, and the cells of its experiments."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run.bench import bench_records, geco_scaling
from run.bench.geco_memory import predicted_bytes
from run.bench.geco_scaling import FLASH, FULL, GECO, KMIP, FullLayer, doubling, growth, power_law
from run.bench.harness import MIB, Bounds, MethodProcess, Row, _repeats_for
from run.bench.synthetic_graphs import erdos_renyi
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from graphgps_kmip.attention import GECOAttention, GraphContext


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run, with its cells."""
    folder = tmp_path_factory.mktemp("geco")
    words = ["--n", "32:256", "--dims", "8", "--threads", "1", "--repeats", "2", "--name", "record"]
    words += ["--out", str(folder), "--cells", str(folder / "cells"), "--fit-from", "32"]
    assert geco_scaling.main(words) == 0
    return folder


def test_every_size_has_a_row_for_each_method_that_runs_here(run: Path) -> None:
    rows = bench_records.read(run / "record.json")["rows"]
    assert [(row["n"], row["method"]) for row in rows] == [
        (n, method) for n in (32, 64, 128, 256) for method in (FULL, GECO, KMIP)
    ]
    for row in rows:
        assert row["status"] == "ok"
        assert row["total_ms"] > 0
        assert row["inference_ms"] > 0
        assert row["cpu_vs_full"] > 0
        assert (row["method"] == GECO) == ("predicted_mib" in row)


def test_cells_have_what_was_measured_and_say_what_was_not(run: Path) -> None:
    rows = {(row["n"], row["method"]): row for row in bench_records.read(run / "record.json")["rows"]}
    scaling, table10, found = (
        json.loads((run / "cells" / f"{name}.json").read_text()) for name in ("scaling", "table10", "growth")
    )
    assert list(scaling["cells"]) == [f"N={n}" for n in (32, 64, 128, 256)]
    cell = scaling["cells"]["N=64"]
    assert cell["GECO, training"] == rows[64, GECO]["total_passes_ms"]
    ratio = rows[64, FULL]["total_ms"] / rows[64, GECO]["total_ms"]
    assert cell["speed-up, training"] == [pytest.approx(ratio)]
    assert scaling["empty"] == [f"{FLASH} was not measured (it runs on cuda only)"]
    assert {column for cells in table10["cells"].values() for column in cells} == {"GECO_ms"}
    assert set(found["cells"]) == {FULL, GECO, KMIP}


def test_one_method_is_measured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[Row]] = []
    monkeypatch.setattr(geco_scaling, "measure", lambda cells, *_: seen.extend(cells) or [])
    monkeypatch.setattr(bench_records, "save", lambda *_: 0)
    assert geco_scaling.main(["--n", "16,32", "--methods", "GECO", "--threads", "1"]) == 0
    assert [(cell["n"], cell["method"]) for cells in seen for cell in cells] == [(16, GECO), (32, GECO)]


def test_an_earlier_record_is_fitted_again(run: Path, tmp_path: Path) -> None:
    words = ["--fit", str(run / "record.json"), "--cells", str(tmp_path), "--fit-from", "32", "--threads", "1"]
    assert geco_scaling.main(words) == 0
    assert (tmp_path / "growth.json").read_text() == (run / "cells" / "growth.json").read_text()


def test_cells_that_took_too_long_or_too_much_memory_are_words() -> None:
    row: Row = {"n": 64, "method": FULL}
    status = {"skipped (estimated 9000 s)": "time limit", "time limit": "time limit", "out of memory": "OOM"}
    for text, word in status.items():
        cells = geco_scaling._scaling([row | {"status": text}])
        assert set(cells["N=64"].values()) == {word}
    assert geco_scaling._scaling([row | {"status": "error: ValueError: x"}]) == {"N=64": {}}


def test_exponents_are_those_of_the_measurements_and_small_sizes_are_left_out() -> None:
    sizes = [512, 8192, 16384, 32768, 65536]
    rows = [
        {"n": n, "method": GECO, "status": "ok", "device": "cpu", "memory_mib": 3.0 * n}
        | {"cpu_ms": n * np.log2(n) if n > 512 else 1e9, "total_ms": n**3}
        for n in sizes
    ]
    found = growth(rows, 8192)[GECO]
    assert found["time in N log N"] == [pytest.approx(1)]
    assert found["memory in N"] == [pytest.approx(1)]
    assert 1.05 < found["time in N"][0] < 1.15
    assert found["sizes"] == [4.0]
    assert growth(rows[:4], 8192) == {}
    on_card = [row | {"device": "cuda"} for row in rows]
    assert growth(on_card, 8192)[GECO]["time in N"] == [pytest.approx(3)]


def test_the_interval_of_an_exponent_holds_it_as_often_as_it_says() -> None:
    rng, sizes = np.random.default_rng(0), 2.0 ** np.arange(8)
    fits = [power_law(sizes, 5 * sizes**1.3 * np.exp(0.1 * rng.standard_normal(8))) for _ in range(400)]
    assert np.mean([low < 1.3 < high for _, low, high in fits]) == pytest.approx(0.95, abs=0.04)


def test_random_graphs_have_edges_of_all_pairs_alike_each_once_in_both_directions() -> None:
    graphs = [erdos_renyi(np.random.default_rng(seed), 12, 4).edge_index for seed in range(600)]
    counts = np.zeros((12, 12))
    for source, target in graphs:
        pairs = set(zip(source.tolist(), target.tolist(), strict=True))
        assert len(pairs) == len(source)
        assert all((j, i) in pairs and i != j for i, j in pairs)
        counts[source, target] += 1
    share = counts[~np.eye(12, dtype=bool)] / 600
    assert share.mean() == pytest.approx(4 / 12, abs=0.01)
    assert np.abs(share - 4 / 12).max() < 0.09  # four and a half standard deviations
    complete = erdos_renyi(np.random.default_rng(0), 6, 10)
    assert complete.num_edges == 30


class TensorMemory(TorchDispatchMode):
    """Counts the bytes of all storages that operations hold, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.bytes = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ARG002
        """Run an operation, and count the storages of its new tensors until they are freed."""
        out = func(*args, **(kwargs or {}))
        for storage in (value.untyped_storage() for value in tree_iter(out) if isinstance(value, torch.Tensor)):
            if storage._cdata not in self.sizes and storage.nbytes():
                self.sizes[storage._cdata] = storage.nbytes()
                self.bytes += storage.nbytes()
                self.peak = max(self.peak, self.bytes)
                weakref.finalize(storage, self._free, storage._cdata)
        return out

    def _free(self, key: int) -> None:
        self.bytes -= self.sizes.pop(key, 0)


def tensor_peak(num_nodes: int, dim: int) -> tuple[float, float]:
    """Return the bytes of tensors at the peak of a training pass above its inputs, and what is predicted."""
    graph = erdos_renyi(np.random.default_rng(0), num_nodes, 10)
    layer, x = GECOAttention(dim, 1), torch.randn(num_nodes, dim, requires_grad=True)
    batch, ptr, grad = torch.zeros(num_nodes, dtype=torch.long), torch.tensor([0, num_nodes]), torch.randn_like(x)
    with TensorMemory() as log:
        layer(x, GraphContext(batch, ptr, graph.edge_index)).backward(grad)
        peak = log.peak
    return peak, predicted_bytes(num_nodes, graph.num_edges, dim)


@pytest.mark.parametrize(("num_nodes", "dim"), [(2**14, 32), (2**15, 16), (50_000, 24)])
def test_the_memory_of_a_training_pass_is_as_predicted(num_nodes: int, dim: int) -> None:
    peak, predicted = tensor_peak(num_nodes, dim)
    assert 0.8 < peak / predicted < 1.25


def test_full_attention_is_the_softmax_of_all_pairs() -> None:
    torch.manual_seed(0)
    layer, x = FullLayer(8, 2).double(), torch.randn(7, 8, dtype=torch.float64)
    q, k, v = layer.qkv(x).unflatten(1, (3, 2, 4)).unbind(1)
    weight = (torch.einsum("nhd,mhd->hnm", q, k) / 2).softmax(-1)
    expected = layer.out(torch.einsum("hnm,mhd->nhd", weight, v).flatten(1))
    context = GraphContext(torch.zeros(7, dtype=torch.long), torch.tensor([0, 7]))
    torch.testing.assert_close(layer(x, context), expected)


def test_a_pass_of_over_five_minutes_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [_repeats_for(seconds, Bounds(5, 10_000)) for seconds in (1, 30, 400)] == [5, 3, 0]
    monkeypatch.setattr("run.bench.harness.ONCE", 0.0)
    cell = {"bench": "geco_scaling", "method": GECO, "n": 32, "dim": 8, "k": 10, "heads": 4, "device": "cpu"}
    process = MethodProcess(cell | {"data": "erdos_renyi", "threads": 1}, Bounds(5, 600), None, {})
    assert not process.goes_on
    row = process.row()
    assert (row["status"], row["repeats"], row["total_ms"]) == ("ok", 1, pytest.approx(row["first_ms"]))
    assert row["predicted_mib"] == predicted_bytes(32, row["edges"], 8) / MIB


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dims", "10"], "--dims must be divisible by --heads, got 10 and 4"),
        (["--fit", "x.json"], "--fit needs --cells FOLDER"),
    ],
)
def test_options_that_do_not_fit_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        geco_scaling.parse(words)


def test_sizes_double_up_to_the_last() -> None:
    assert doubling("512:4096") == [512, 1024, 2048, 4096]
    assert doubling("512:5000") == [512, 1024, 2048, 4096]
    assert doubling("1e5,100") == [100, 100_000]
