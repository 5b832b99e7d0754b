"""Predictions of finished runs: rows, columns and scores of the test split and of new graphs, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.graphgym.config import cfg

import main
from graphgps_kmip import predict
from graphgps_kmip.errors import ConfigError, DataError
from graphgps_kmip.gym.trained import trained
from tests.data.graph_files import write

ROOT = Path(__file__).parents[2]
SHORT = "optim.max_epoch 2 gt.layers 1 num_threads 1 num_workers 0 train.ckpt_best True".split()
pytestmark = pytest.mark.usefixtures("graphgym_registries")


def train(out_dir: Path, config: Path | str, *argv: str) -> Path:
    """Train a config for two epochs, and return the folder of its run."""
    assert main.run(["--cfg", str(config), *SHORT, "out_dir", str(out_dir), *argv]) == 0
    return next(path.parent for path in out_dir.parent.glob(f"{out_dir.name}*/*/0/record.json"))


# Config -> settings, columns that name a row; what the labels are is seen from the config.
KINDS = {
    "quickstart/digits-kmip": ("train.batch_size 7", "graph"),
    "LRGB/peptides-func-kmip": ("", "graph"),
    "LRGB/peptides-struct-kmip": ("", "graph"),
    "LRGB/pascalvoc-kmip": ("", "graph node"),
    "LRGB/pcqm-contact-kmip": ("", "graph source target"),
    "Heterophilous/minesweeper-kmip": ("", "graph node"),
    "Heterophilous/minesweeper-gcn": ("val.sampler neighbor prep.node_order random", "graph node"),
}


@pytest.mark.parametrize("config", KINDS)
def test_predictions_of_the_test_split_have_the_recorded_score(
    config: str, tmp_path: Path, small_samples: None  # noqa: ARG001
) -> None:  # fmt: skip
    argv, names = KINDS[config]
    run_dir = train(tmp_path / "out", ROOT / f"configs/{config}.yaml", "dataset.sample", "True", *argv.split())
    before, table = cfg.dump(), predict(run_dir)
    assert cfg.dump() == before
    assert table.columns[: len(names.split())].tolist() == names.split()
    assert "source" in table or not table.duplicated(names.split()).any()
    check_score(table)
    probabilities = table.filter(regex=r"^p\d+$").to_numpy()
    if probabilities.shape[1] > 1 and "label" in table:
        np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
        assert (probabilities.argmax(1) == table["prediction"]).all()
    with trained(run_dir) as run:
        check_labels(table, run.dataset)


def check_score(table: pd.DataFrame) -> None:
    """Check that the score of a table is the recorded one."""
    score, recorded = table.attrs["score"], table.attrs["recorded"]
    assert score == pytest.approx({key: recorded[key] for key in score}, rel=0, abs=0, nan_ok=True)
    assert "loss" in score


def check_labels(table: pd.DataFrame, dataset) -> None:
    """Check that each row has the label of its graph, node or pair."""
    labels = table.filter(regex="^label").to_numpy()
    for graph, rows in table.groupby("graph"):
        data = dataset.graphs[graph]
        y = data.edge_label if "source" in table else data.y
        y = y.reshape(len(y), -1).numpy()
        if "node" in table:
            places = {int(node): place for place, node in enumerate(data.get("node_id", torch.arange(len(y))))}
            y = y[[places[node] for node in rows["node"]]]
        if "source" in table:
            np.testing.assert_array_equal(rows[["source", "target"]], data.edge_label_index.T)
        np.testing.assert_array_equal(labels[rows.index], y)


def graph(number: int, **changes: object) -> dict[str, np.ndarray]:
    """Return the arrays of a small random graph whose edges are given both ways."""
    rng = np.random.default_rng(number)
    size = 8 + number % 4
    pairs = np.argwhere(np.triu(rng.random((size, size)) < 0.7, 1)).T
    values = {"x": rng.random((size, 2)), "edge_index": np.concatenate([pairs, pairs[::-1]], axis=1), **changes}
    return {key: value(values, rng) if callable(value) else value for key, value in values.items()}


# Level -> number of graphs, labels, settings.
LEVELS = {
    "graph": (24, {"y": lambda g, rng: rng.integers(3)}, "gnn.head graph"),
    "regression": (24, {"y": lambda g, rng: rng.random((1, 2))}, "gnn.head graph dataset.task_type regression "
                   "model.loss_fun l1 metric_best mae metric_agg argmin"),
    "inductive_node": (24, {"y": lambda g, rng: rng.integers(2, size=len(g["x"]))}, "gnn.head default dataset.task "
                       "node gnn.head inductive_node metric_best auto"),
    "node": (1, {"y": lambda g, rng: rng.integers(3, size=len(g["x"]))}, "gnn.head node prep.add_reverse_edges True "
             "prep.node_order random metric_best auto"),
    "edge": (24, {"edge_label": lambda g, rng: rng.integers(3, size=g["edge_index"].shape[1])}, "dataset.task edge "
             "gnn.head default model.edge_decoding concat"),
    "edge of one graph": (1, {"edge_label": lambda g, rng: rng.integers(2, size=g["edge_index"].shape[1])},
                          "dataset.task edge gnn.head default metric_best auto"),
    "link": (24, {}, "dataset.task link_pred gnn.head default metric_best mrr"),
}  # fmt: skip
YAML = """
base: {base}
dataset: {{dir: {dir}, format: Folder, name: mine, node_encoder_name: LinearNode+RWSE, edge_encoder_name: DummyEdge}}
posenc_RWSE: {{enable: True, model: Linear, dim_pe: 4, kernel: {{times_func: "range(1,5)"}}}}
gt: {{layer_type: GINE+kMIP}}
"""


@pytest.mark.parametrize("level", LEVELS)
def test_new_graphs_are_prepared_as_the_training_data_and_need_no_labels(level: str, tmp_path: Path) -> None:
    count, labels, settings = LEVELS[level]
    write(tmp_path / "mine", {f"{number}.npz": graph(number, **labels) for number in range(count)})
    file = tmp_path / "mine.yaml"
    file.write_text(YAML.format(base=ROOT / "configs/quickstart/digits-kmip.yaml", dir=tmp_path))
    run_dir = train(tmp_path / "out", file, *settings.split())
    table = predict(run_dir)
    check_score(table)
    with trained(run_dir) as run:
        part = run.dataset.part("test")
        tests = [part[number] for number in range(len(part))]
    names = [number for number in table["graph"].unique()]
    new = {}
    for number, test in zip(names, tests, strict=True):
        new[f"{number}.npz"] = graph(number)
        if "label_index" in str(test.keys()):  # as the test has it: some edges are hidden
            new[f"{number}.npz"] |= {key: test[key].numpy() for key in ("edge_index", "edge_label_index")}
    new_table = predict(run_dir, write(tmp_path / "new", new))
    assert "label" not in new_table and "label0" not in new_table
    assert new_table.attrs["score"] == {}
    new_table["graph"] = [names[number] for number in new_table["graph"]]
    keys = [key for key in ("graph", "node", "source", "target") if key in table]
    both = table.merge(new_table.drop_duplicates(keys), on=keys, suffixes=("", "_new"), how="left")
    for name in table.filter(regex=r"^(p\d|prediction)"):
        np.testing.assert_allclose(both[f"{name}_new"], both[name], rtol=1e-4, atol=1e-5)
