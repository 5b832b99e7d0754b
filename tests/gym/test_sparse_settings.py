"""Low-width method: which runs its keys count for, what reaches the estimator, and the scores that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.attention import AttentionGraph, ScoreEstimatorAttention
from graphgps_kmip.data.score_file import read_scores
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.attention_saving import collect_scores, score_edges, score_selection
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.experiment import assemble, run_experiment
from graphgps_kmip.gym.planned_runs import (
    Run,
    adopt_estimator,
    configured,
    estimator_config,
    set_out_dir,
    shared_arguments,
)
from graphgps_kmip.gym.sparse_loading import is_estimator, is_sparse, layer_degrees
from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.train import loop
from graphgps_kmip.train.checkpoint import load_model_state, read_checkpoint
from tests.two_stages import ESTIMATOR, KMIP, SPARSE, record, sample, write, write_both

ROOT = Path(__file__).parents[2]


def test_sparse_networks_and_estimators_are_recognised(tmp_path: Path) -> None:
    for settings, expected in ((SPARSE, (True, False)), (ESTIMATOR, (False, True)), (KMIP, (False, False))):
        load_config(cfg, write(tmp_path / "one.yaml", settings), [])
        assert (is_sparse(cfg), is_estimator(cfg)) == expected
    load_config(cfg, write(tmp_path / "one.yaml", ESTIMATOR | {"gt.layer_type": "ASE"}), [])
    assert is_estimator(cfg)


def test_one_degree_is_that_of_all_layers(tmp_path: Path) -> None:
    file = write(tmp_path / "one.yaml", SPARSE)
    for argv, expected in (([], [3, 2]), (["spexphormer.degree", "[4]"], [4, 4])):
        load_config(cfg, file, argv)
        assert layer_degrees(cfg) == expected
    load_config(cfg, file, ["gt.layers", "3"])
    with pytest.raises(ConfigError, match=r"\[3, 2\] has 2 entries for gt\.layers 3: give one for all layers"):
        layer_degrees(cfg)


def test_the_estimators_yaml_is_beside_the_file_that_names_it_or_a_base_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = write_both(tmp_path / "both")
    (tmp_path / "elsewhere").mkdir()
    derived = tmp_path / "elsewhere" / "derived.yaml"
    derived.write_text("base: ../both/wide.yaml\ngt:\n  dropout: 0.5\n")
    for file in (wide, derived):
        load_config(cfg, file, [])
        assert Path(cfg.spexphormer.estimator).resolve() == (tmp_path / "both" / "narrow.yaml").resolve()
    monkeypatch.chdir(tmp_path)
    load_config(cfg, wide, ["spexphormer.estimator", "both/narrow.yaml"])  # of the command line: from here
    assert cfg.spexphormer.estimator == "both/narrow.yaml"
    load_config(cfg, wide, ["spexphormer.estimator", "narrow.yaml"])  # or from the folder of the file
    assert Path(cfg.spexphormer.estimator) == wide.with_name("narrow.yaml")


def test_the_estimator_gets_data_place_and_machine_of_the_command_line_and_nothing_else(tmp_path: Path) -> None:
    argv = ["dataset.dir", "/data", "out_dir", "here", "train.precision", "64-true", "num_threads", "3"]
    others = ["gt.dropout", "0.3", "seed", "5", "optim.max_epoch", "7", "name_tag", "x"]
    assert shared_arguments([*argv, *others]) == ["dataset.dir", '"/data"', "out_dir", '"here"', "train.precision",
                                               '"64-true"', "num_threads", "3"]  # fmt: skip
    load_config(cfg, write_both(tmp_path, {"accelerator": "auto"}), [*argv, *others])
    with estimator_config([*argv, *others]):
        assert (cfg.dataset.dir, cfg.out_dir, cfg.train.precision, cfg.num_threads) == ("/data", "here", "64-true", 3)
        assert (cfg.seed, cfg.optim.max_epoch, cfg.name_tag, cfg.gt.layer_type) == (0, 3, "", "ScoreEstimator")
        assert cfg.accelerator == "cpu"  # one process trains both
    assert (cfg.seed, cfg.gt.layer_type, cfg.gt.dropout) == (5, "Spexphormer", 0.3)


def test_the_config_is_as_before_after_an_estimator_that_is_refused(tmp_path: Path) -> None:
    load_config(cfg, write_both(tmp_path, {"gt.layers": 1}), [])
    with pytest.raises(ConfigError, match="gt.layers 1, the sparse network 2"):
        adopt_estimator([])
    assert (cfg.gt.layer_type, cfg.gt.layers, cfg.spexphormer.estimator_hash) == ("Spexphormer", 2, "")


@pytest.mark.parametrize("name", ["minesweeper", "minesweeper-kmip", "tolokers", "cora"])
def test_our_files_name_an_estimator_that_can_serve_them(name: str) -> None:
    load_config(cfg, ROOT / f"configs/LowWidth/{name}.yaml", [])
    adopt_estimator([])
    assert len(cfg.spexphormer.estimator_hash) == 12
    with estimator_config([]) as file:
        assert file.name == f"{name}-estimator.yaml"


def test_on_samples_the_estimator_trains_no_longer_than_the_sparse_network() -> None:
    epochs = ["optim.max_epoch", "2"]
    for is_sample, expected in (("True", epochs), ("False", [])):
        sample_words = ["dataset.sample", is_sample.lower()]
        assert shared_arguments([*epochs, "gt.layers", "3", "dataset.sample", is_sample]) == [*expected, *sample_words]


@pytest.fixture
def loaded() -> None:
    load_config(cfg, None, [])
    cfg.optim.max_epoch = 11


def test_edges_are_sorted_by_target_and_their_weights_averaged_over_the_heads() -> None:
    edges = torch.tensor([[2, 0, 1, 1], [3, 1, 0, 1], [0, 1, 2, 2]])
    weight = torch.tensor([[1.0, 1.0], [0.25, 0.5], [1.0, 1.0], [0.75, 0.5]])
    layer = score_edges(edges, weight, 4)
    assert layer.ptr.tolist() == [0, 1, 3, 3, 4]  # node 2 has none
    assert layer.source.tolist() == [1, 0, 1, 2]
    assert layer.kind.tolist() == [2, 1, 2, 0]
    torch.testing.assert_close(layer.score, torch.tensor([1.0, 0.375, 0.625, 1.0]))
    assert (layer.ptr.dtype, layer.source.dtype, layer.kind.dtype) == (torch.int64, torch.int32, torch.uint8)


def test_layers_of_the_same_edges_share_them_and_others_do_not() -> None:
    edges, weight = torch.tensor([[0, 1], [0, 1], [0, 0]]), torch.ones(2, 1)
    first = score_edges(edges, weight, 2)
    same = score_edges(edges.clone(), weight, 2, first)
    assert same.source is first.source
    assert same.kind is first.kind
    other = score_edges(torch.tensor([[1, 0], [0, 1], [0, 0]]), weight, 2, first)
    assert other.source.tolist() == [1, 0]
    assert score_edges(torch.tensor([[0, 1], [0, 1], [0, 1]]), weight, 2, first).kind.tolist() == [0, 1]


def test_a_key_that_several_heads_select_is_one_edge_with_the_mean_of_its_weights() -> None:
    index = torch.tensor([[[1, 2], [0, -1], [0, 1]], [[2, 0], [0, 1], [-1, -1]]])  # (2, 3, 2)
    weight = torch.tensor([[[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]], [[0.125, 0.875], [0.5, 0.5], [0.0, 0.0]]])
    layer = score_selection(AttentionGraph(index, weight), 3)
    assert (layer.ptr.tolist(), layer.source.tolist()) == ([0, 3, 5, 7], [0, 1, 2, 0, 1, 0, 1])
    assert layer.score.tolist() == [0.4375, 0.25, 0.3125, 0.75, 0.25, 0.125, 0.375]
    assert layer.kind.tolist() == [0] * 7


def test_attention_to_tokens_beside_the_nodes_has_no_scores(loaded: None) -> None:  # noqa: ARG001
    index = torch.tensor([[[0], [3]]])
    with pytest.raises(ConfigError, match="attends to tokens besides the 2 nodes"):
        score_selection(AttentionGraph(index, torch.ones(1, 2, 1)), 2)


class Probe(torch.nn.Module):
    """An estimator's attention, called as the layers of a network call it; keeps the batch that it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = ScoreEstimatorAttention(4, 2)
        self.seen: Batch | None = None

    def forward(self, batch: Batch) -> torch.Tensor:
        self.seen = batch
        context = GraphContext.from_data(batch)
        return self.attention(batch.x, context, self.attention.initial_state(context))[0]


def test_scores_are_the_weights_in_eval_mode_of_the_given_epoch(loaded: None) -> None:  # noqa: ARG001
    torch.manual_seed(0)
    probe = Probe().double().train()
    graph = Data(x=torch.randn(3, 4, dtype=torch.float64), edge_index=torch.tensor([[0, 1, 0], [1, 2, 1]]))
    probe.attention.temperature.fill_(0.5)
    (layer,), kinds = collect_scores(probe, graph, 5)
    assert not probe.training
    assert (probe.seen.epoch, probe.seen.progress, probe.seen.split) == (5, 0.5, "val")
    assert float(probe.attention.temperature) == 0.5
    assert kinds == ("graph", "expander", "self loop")
    edges, weight = probe.attention.edge_scores(graph.x)
    del edges  # without a graph only the self loops: every weight is 1
    assert weight.tolist() == [[1.0, 1.0]] * 3
    assert layer.ptr.tolist() == [0, 1, 4, 6]  # the edge 0 -> 1 is there twice


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("settings", [ESTIMATOR, KMIP], ids=["ScoreEstimator", "kMIP"])
def test_a_run_writes_the_scores_of_its_best_epoch_and_not_of_its_last(
    settings: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = iter([False, True, False])
    monkeypatch.setattr(loop, "is_better", lambda *_: next(verdicts))
    file = write(tmp_path / "narrow.yaml", settings)
    run, argv = Run("0", 0, 0), ["out_dir", str(tmp_path / "out")]
    run_experiment(file, argv, keep_scores=True)
    folder = sample(tmp_path / "out") / "narrow" / "0"
    scores = read_scores(folder / "scores.pt")
    key = record(tmp_path / "out", "narrow")["config_hash"]
    best, last = (read_checkpoint(folder / "ckpt" / name, key) for name in ("best.ckpt", "2.ckpt"))
    load_config(cfg, file, argv)
    set_out_dir(file)
    with configured(run):
        parts = assemble()
        load_model_state(parts.model, best["model_state"], folder)
        expected, _ = collect_scores(parts.model, parts.dataset.graphs[0], best["epoch"])
        load_model_state(parts.model, last["model_state"], folder)
        other, _ = collect_scores(parts.model, parts.dataset.graphs[0], last["epoch"])
    assert (best["epoch"], last["epoch"]) == (1, 2)
    assert all(torch.equal(new.score, two.score) for new, two in zip(scores.layers, expected, strict=True))
    assert not all(
        new.score.shape == two.score.shape and torch.equal(new.score, two.score)
        for new, two in zip(scores.layers, other, strict=True)
    )
