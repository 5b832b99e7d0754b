"""The benchmark of networks over pairs: the dense form computes what our PPGT does; sizes, rows, table of P-T10."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from run.bench import bench_records, pair_models
from run.bench.dense_ppgt import DensePPGT
from run.bench.pair_models import GPS, GRIT, PPGT, SHAPES, ZINC, batch_of, model_of, sizes_of

from graphgps_kmip.encoding.pair_stem import PairStem

SMALL = {name: shape._replace(graphs=4, sizes=ZINC, layers=2) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("name", ["peptides", "peptides-func", "zinc"])
def test_the_dense_form_gives_our_outputs_and_gradients(name: str) -> None:
    shape = SMALL[name]
    torch.manual_seed(0)
    ours = model_of(shape, PPGT, precision="float64").double()
    for parameter in ours.parameters():  # biases, too, and alpha of the norms
        parameter.data += 0.1 * torch.randn_like(parameter)
    batch, found = batch_of(shape), []
    for model in (ours, DensePPGT(ours)):
        pred, true = model(copy.copy(batch))
        found.append((pred, *torch.autograd.grad((pred - true).square().sum(), list(ours.parameters()))))
    assert found[0][0].abs().max() > 0.1
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


def test_sizes_have_the_mean_and_the_spread_of_the_data_sets() -> None:
    for name, shape in SHAPES.items():
        sizes = sizes_of(shape)
        mean, std, least, largest = shape.sizes
        assert len(sizes) == shape.graphs
        assert abs(np.mean(sizes) / mean - 1) < 0.03
        assert abs(np.std(sizes) / std - 1) < (0.1 if shape.graphs > 8 else 0.25), name
        assert least <= min(sizes) <= max(sizes) <= largest


def test_the_operations_of_pairs_are_counted_as_three_products_of_each_map_two_of_the_first() -> None:
    model = model_of(SMALL["zinc"], PPGT)
    assert isinstance(model.encoder.pair_stems[0], PairStem)
    widths = [(196, 128), (128, 64), *[(64, 128), (128, 64)] * 2, *[(64, 16)] * 2]
    expected = sum(6 * a * b for a, b in widths) - 2 * 196 * 128
    assert pair_models.pair_gflop(model, 10**9) == expected


def test_a_run_writes_a_row_for_each_network_and_the_cells_of_the_experiment(
    tmp_path: Path,
) -> None:
    words = ["--data", "tiny", "--repeats", "3", "--threads", "1", "--out", str(tmp_path / "out")]
    assert pair_models.main([*words, "--table", str(tmp_path / "table.json")]) == 0
    (path,) = (tmp_path / "out").glob("*.json")
    rows = {row["method"]: row for row in bench_records.read(path)["rows"]}
    assert list(rows) == pair_models.NAMES
    assert {row["status"] for row in rows.values()} == {"ok"}
    assert rows[PPGT]["time_of_grit"] == pytest.approx(rows[PPGT]["total_ms"] / rows[GRIT]["total_ms"])
    content = json.loads((tmp_path / "table.json").read_text())
    assert set(content["cells"]) == {PPGT, GRIT, GPS}
    assert len(content["cells"][PPGT]["step_time"]) == 3
    assert content["sample"] is True


def test_a_table_without_its_data_is_refused() -> None:
    with pytest.raises(ValueError, match="--table needs --data peptides"):
        pair_models.parse(["--data", "zinc", "--table", "x.json"])
