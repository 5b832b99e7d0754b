"""Predictions of finished runs: rows, columns and scores of the test split and of new graphs, and what is refused."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.graphgym.config import cfg

import main
from graphgps_kmip import predict
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


# Level -> number of graphs, labels by a function of the other arrays and a generator, settings.
LEVELS = {
    "graph": (24, {"y": lambda _, rng: rng.integers(3)}, "gnn.head graph"),
    "regression": (24, {"y": lambda _, rng: rng.random((1, 2))}, "gnn.head graph dataset.task_type regression "
                   "model.loss_fun l1 metric_best mae metric_agg argmin"),
    "inductive_node": (24, {"y": lambda g, rng: rng.integers(2, size=len(g["x"]))}, "gnn.head inductive_node "
                       "metric_best auto"),
    "node": (1, {"y": lambda g, rng: rng.integers(3, size=len(g["x"]))}, "gnn.head node metric_best auto "
             "dataset.normalize_features True prep.node_order random"),
    "edge": (24, {"edge_label": lambda g, rng: rng.integers(3, size=g["edge_index"].shape[1])}, "dataset.task edge "
             "gnn.head default model.edge_decoding concat"),
    "edge of one graph": (1, {"edge_label": lambda g, rng: rng.integers(2, size=g["edge_index"].shape[1])},
                          "dataset.task edge gnn.head default metric_best auto"),
    "link": (24, {}, "dataset.task link_pred gnn.head default metric_best mrr"),
    "link by GraphGym's other name": (24, {}, "dataset.task link_pred gnn.head edge metric_best mrr"),
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
    names = table["graph"].unique().tolist()
    new = {}
    for number, test in zip(names, tests, strict=True):
        new[f"{number}.npz"] = graph(number)
        if "label_index" in str(test.keys()):  # as the test has it: some edges are hidden
            new[f"{number}.npz"] |= {key: test[key].numpy() for key in ("edge_index", "edge_label_index")}
    new_table = predict(run_dir, write(tmp_path / "new", new))
    assert not {"label", "label0"} & set(new_table)
    assert new_table.attrs["score"] == {}
    new_table["graph"] = [names[number] for number in new_table["graph"]]
    keys = [key for key in ("graph", "node", "source", "target") if key in table]
    both = table.merge(new_table.drop_duplicates(keys), on=keys, suffixes=("", "_new"), how="left")
    for name in table.filter(regex=r"^(p\d|prediction)"):
        np.testing.assert_allclose(both[f"{name}_new"], both[name], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run on graphs of two features."""
    folder = tmp_path_factory.mktemp("finished")
    write(folder / "mine", {f"{number}.npz": graph(number, y=number % 2) for number in range(12)})
    (folder / "mine.yaml").write_text(YAML.format(base=ROOT / "configs/quickstart/digits-kmip.yaml", dir=folder))
    return train(folder / "out", folder / "mine.yaml")


def test_the_command_writes_and_replaces_the_table_and_prints_the_recorded_score(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["--predict", str(finished)]) == 0
    assert main.run(["--predict", str(finished), "--out", str(tmp_path / "a.npz")]) == 0
    assert main.run(["--predict", str(finished)]) == 0
    score = predict(finished).attrs["score"]["accuracy"]
    assert f"accuracy     {score:.6g} (record.json: {score:.6g})" in capsys.readouterr().out
    table, arrays = pd.read_csv(finished / "predictions.csv"), np.load(tmp_path / "a.npz")
    assert table.columns.tolist() == list(arrays) == ["graph", "label", "prediction", "p1"]
    for name in table:
        np.testing.assert_allclose(table[name], arrays[name], rtol=1e-6)
    assert (table["prediction"] == (table["p1"] > 0.5)).all()
    labelled = write(tmp_path / "new", {f"{number}.npz": graph(number, y=number % 2) for number in table["graph"]})
    assert predict(finished, labelled).attrs["score"]["accuracy"] == score


MISTAKES = {
    "the experiment": (["{run.parent}"], r"no finished run is there, .* Did you mean .*/out/mine/0\?"),
    "a misspelt run": (["{run.parent}2/0"], r"no finished run is there, .* Did you mean .*/out/mine/0\?"),
    "an ending": (["{run}", "--out", "a.xlsx"], r"--out: a.xlsx ends in .xlsx: give a name that ends in .csv or .npz"),
    "no folder": (
        ["{run}", "--data-folder", "{new}/../nwe"],
        r"--data-folder: there is no folder .*nwe. Did you mean new",
    ),
    "columns": (["{run}", "--data-folder", "{new}"], r"new/0.npz: x has 3 columns, and the model was trained with 2"),
    "settings": (["{run}", "seed", "3"], r"--predict takes all settings from the run"),
}


@pytest.mark.parametrize(("argv", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line(
    argv: list[str], message: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = write(tmp_path / "new", {"0.npz": graph(0, x=np.ones((8, 3)))})
    assert main.run(["--predict", *(word.format(run=finished, new=new) for word in argv)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error)


def test_runs_without_a_table_are_refused(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphgps_kmip.gym.trained.is_sparse", lambda _: True)
    with pytest.raises(ValueError, match="is a run of gt.layer_type Spexphormer, whose predictions are not supported"):
        predict(finished)


def test_the_example_of_the_docs_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    section = (ROOT / "docs/data.md").read_text().split("## Your own data")[1]
    code, yaml, commands = (re.search(rf"```{kind}\n(.*?)```", section, re.S)[1] for kind in ("python", "yaml", "sh"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    exec(compile(code, "docs/data.md", "exec"), {})
    Path("own.yaml").write_text(yaml)
    shutil.copytree("datasets/rings-and-paths", "datasets/new")
    Path("datasets/new/graph-label.csv").unlink()
    for command in commands.splitlines():
        argv = command.replace("kfold-10", "kfold-3").split()[2:]
        assert main.run([*argv, *(SHORT if "--cfg" in argv else ())]) == 0
    table = capsys.readouterr().out.rpartition("\nfold ")[2].splitlines()
    assert [line.split()[0] for line in table[1:5]] == ["0", "1", "2", "mean"]
    assert "\N{PLUS-MINUS SIGN}" in table[4]
    assert len(pd.read_csv("new.csv")) == 60
    assert len(pd.read_csv("results/own/0/predictions.csv")) == 12
