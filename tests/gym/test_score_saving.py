"""Scores of an estimator: what a run writes is the attention of its best epoch, edge by edge."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.attention import AttentionGraph, ScoreEstimatorAttention
from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.data.score_file import read_scores
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.score_saving import collect_scores, of_edges, of_selection
from graphgps_kmip.train import loop
from tests.two_stages import ESTIMATOR, KMIP, sample, train, write


@pytest.fixture
def loaded() -> None:
    load_config(cfg, None, [])
    cfg.optim.max_epoch = 11


def test_edges_are_sorted_by_target_and_their_weights_averaged_over_the_heads() -> None:
    edges = torch.tensor([[2, 0, 1, 1], [3, 1, 0, 1], [0, 1, 2, 2]])
    weight = torch.tensor([[1.0, 1.0], [0.25, 0.5], [1.0, 1.0], [0.75, 0.5]])
    layer = of_edges(edges, weight, 4)
    assert layer.ptr.tolist() == [0, 1, 3, 3, 4]  # node 2 has none
    assert layer.source.tolist() == [1, 0, 1, 2]
    assert layer.kind.tolist() == [2, 1, 2, 0]
    torch.testing.assert_close(layer.score, torch.tensor([1.0, 0.375, 0.625, 1.0]))
    assert (layer.ptr.dtype, layer.source.dtype, layer.kind.dtype) == (torch.int64, torch.int32, torch.uint8)


def test_layers_of_the_same_edges_share_them_and_others_do_not() -> None:
    edges, weight = torch.tensor([[0, 1], [0, 1], [0, 0]]), torch.ones(2, 1)
    first = of_edges(edges, weight, 2)
    same = of_edges(edges.clone(), weight, 2, first)
    assert same.source is first.source
    assert same.kind is first.kind
    other = of_edges(torch.tensor([[1, 0], [0, 1], [0, 0]]), weight, 2, first)
    assert other.source.tolist() == [1, 0]
    assert of_edges(torch.tensor([[0, 1], [0, 1], [0, 1]]), weight, 2, first).kind.tolist() == [0, 1]


def test_a_key_that_several_heads_select_is_one_edge_with_the_mean_of_its_weights() -> None:
    index = torch.tensor([[[1, 2], [0, -1], [0, 1]], [[2, 0], [0, 1], [-1, -1]]])  # (2, 3, 2)
    weight = torch.tensor([[[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]], [[0.125, 0.875], [0.5, 0.5], [0.0, 0.0]]])
    layer = of_selection(AttentionGraph(index, weight), 3)
    found = {}
    for node in range(3):
        for edge in range(layer.ptr[node], layer.ptr[node + 1]):
            found[int(layer.source[edge]), node] = float(layer.score[edge])
    expected: dict[tuple[int, int], float] = {}
    for head in range(2):
        for node in range(3):
            for slot in range(2):
                if (key := int(index[head, node, slot])) >= 0:
                    expected[key, node] = expected.get((key, node), 0.0) + float(weight[head, node, slot]) / 2
    assert found == pytest.approx(expected)
    assert layer.kind.tolist() == [0] * len(expected)


def test_attention_to_tokens_beside_the_nodes_has_no_scores(loaded: None) -> None:  # noqa: ARG001
    index = torch.tensor([[[0], [3]]])
    with pytest.raises(ConfigError, match="attends to tokens beside the 2 nodes"):
        of_selection(AttentionGraph(index, torch.ones(1, 2, 1)), 2)


class Probe(torch.nn.Module):
    """An estimator's attention, called as the layers of a network call it; keeps the batch that it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = ScoreEstimatorAttention(4, 2)
        self.seen: Batch | None = None

    def forward(self, batch: Batch) -> torch.Tensor:
        """Attend."""
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
    q, k, _ = probe.attention.qkv(graph.x).unflatten(1, (2, -1)).chunk(3, dim=-1)
    types = probe.attention.initial_state.types.weight
    factor = probe.attention.edge(types).unflatten(1, (2, -1)).sum(-1)
    bias = probe.attention.edge_bias(types)
    for node in range(3):
        each = []
        for edge in range(layer.ptr[node], layer.ptr[node + 1]):
            source, kind = int(layer.source[edge]), int(layer.kind[edge])
            logit = (q[node] * k[source]).sum(-1) / 2**0.5 * factor[kind] + bias[kind]
            each.append((logit / 0.5).clamp(-8, 8))
        expected = torch.stack(each).softmax(0).mean(1)
        torch.testing.assert_close(layer.score[layer.ptr[node] : layer.ptr[node + 1]], expected.float())


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("settings", [ESTIMATOR, KMIP], ids=["ScoreEstimator", "kMIP"])
def test_a_run_writes_the_scores_of_its_best_epoch_and_not_of_its_last(
    settings: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphgps_kmip.gym.experiment import assemble, execute, launch
    from graphgps_kmip.gym.planned_runs import Run, configured, set_out_dir
    from graphgps_kmip.train.checkpoint import load_model_state, read_checkpoint

    verdicts = iter([False, True, False])
    monkeypatch.setattr(loop, "is_better", lambda *_: next(verdicts))
    file = write(tmp_path / "narrow.yaml", settings)
    load_config(cfg, file, ["out_dir", str(tmp_path / "out")])
    set_out_dir(file)
    run = Run("0", 0, 0)
    execute(run, launch(), keep_scores=True)
    folder = sample(tmp_path / "out") / "narrow" / "0"
    scores = read_scores(folder / "scores.pt")
    best = read_checkpoint(folder / "ckpt" / "best.ckpt", _hash_of(folder))
    last = read_checkpoint(folder / "ckpt" / "2.ckpt", _hash_of(folder))
    load_config(cfg, file, ["out_dir", str(tmp_path / "out")])
    set_out_dir(file)
    with configured(run):
        parts = assemble()
        load_model_state(parts.model, best["model_state"], folder)
        expected, _ = collect_scores(parts.model, parts.dataset.graphs[0], best["epoch"])
        load_model_state(parts.model, last["model_state"], folder)
        other, _ = collect_scores(parts.model, parts.dataset.graphs[0], last["epoch"])
    assert (best["epoch"], last["epoch"]) == (1, 2)
    assert all(torch.equal(one.score, two.score) for one, two in zip(scores.layers, expected, strict=True))
    assert not all(
        one.score.shape == two.score.shape and torch.equal(one.score, two.score)
        for one, two in zip(scores.layers, other, strict=True)
    )


def _hash_of(folder: Path) -> str:
    import json

    return json.loads((folder / "record.json").read_text())["config_hash"]


def test_a_network_of_another_kind_writes_no_scores_by_itself(
    tmp_path: Path,
    small_samples: None,  # noqa: ARG001
) -> None:
    assert train(write(tmp_path / "narrow.yaml", KMIP | {"optim.max_epoch": 1}), tmp_path / "out") == 0
    assert not (sample(tmp_path / "out") / "narrow" / "0" / "scores.pt").exists()
