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
    "Heterophilous/minesweeper-gcn": ("train.sampler neighbor val.sampler neighbor prep.node_order random", "graph node"),
}  # fmt: skip


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
    recorded = table.attrs["recorded"]
    assert table.attrs["score"] == {key: recorded[key] for key in table.attrs["score"]}
    probabilities = table.filter(regex=r"^p\d+$").to_numpy()
    if probabilities.shape[1] > 1 and "label" in table:
        np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
        assert (probabilities.argmax(1) == table["prediction"]).all()
    with trained(run_dir) as run:
        check_labels(table, run.dataset)


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
