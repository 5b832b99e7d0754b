"""The benchmark of whole epochs: the reference computes what our model does, on the same batches; all rows come out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from run.bench import bench_records, epochs
from run.bench.epochs import SHAPES, draw
from torch import Tensor, nn
from torch_geometric.data import Batch

from tests.reference import gps_model

SMALL = {name: shape._replace(dim=8, heads=2, layers=2, attn_dropout=0.0) for name, shape in SHAPES.items()}
EXACT = {"rtol": 1e-9, "atol": 1e-9}  # float64, through two layers with batch norms of few rows


def loss_of(model: nn.Module, name: str, batch: Batch, ours: bool) -> Tensor:
    shape = SMALL[name]
    pred, true = model(batch)
    if ours:
        total, weight = epochs.task_of(shape).loss(pred, true)
        return total / weight
    return epochs.REFERENCE_LOSSES[shape.loss](pred, true)


@pytest.mark.parametrize("name", SHAPES)
def test_both_models_with_the_same_weights_give_the_same_loss_and_gradients(name: str) -> None:
    torch.manual_seed(1)
    shape = SMALL[name]
    ours, theirs = epochs.our_model(shape, shape.layer).double(), epochs.reference_model(shape).double()
    assert len([*ours.parameters()]) == len([*theirs.parameters()])
    for parameter in ours.parameters():  # biases too
        parameter.data += 0.1 * torch.randn_like(parameter)
    gps_model.load_ours(theirs, ours)
    losses, grads = [], []
    for model in (ours, theirs):
        batch = Batch.from_data_list(draw(SMALL[name], 3)).apply(lambda t: t.double() if t.is_floating_point() else t)
        losses.append(loss_of(model, name, batch, model is ours))
        losses[-1].backward()
        grads.append([torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()])
    torch.testing.assert_close(*losses, **EXACT)
    assert losses[0] > 0.1
    norms = [sorted(grad.norm().item() for grad in group) for group in grads]  # in other orders
    torch.testing.assert_close(*norms, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["malnet", "zinc"])
def test_both_loops_see_the_same_batches_and_report_the_same_loss_and_metrics(name: str) -> None:
    shape = SMALL[name]._replace(batch_size=2)
    graphs, stats = draw(shape, 6), {}
    for method, make in ((epochs.REFERENCE, epochs.reference_epoch), (epochs.OURS + shape.layer, epochs.our_epoch)):
        torch.manual_seed(0)
        run = make(shape, graphs, *([] if method == epochs.REFERENCE else [method, 3]), "cpu")
        stats[method] = [run(number) for number in range(2)]
    for theirs, ours in zip(*stats.values(), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        theirs.pop("auc", None)  # of classes without examples
        assert {metric: ours[metric] for metric in theirs} == pytest.approx(theirs, rel=1e-3, abs=1e-5)


def test_graphs_are_like_those_of_the_data_sets() -> None:
    images, calls = draw(SHAPES["pascalvoc"], 40), draw(SHAPES["malnet"], 200)
    assert 470 < sum(graph.num_nodes for graph in images) / 40 < 490
    assert 5.2 < sum(graph.num_edges for graph in images) / sum(graph.num_nodes for graph in images) < 6.2
    assert all(graph.x.shape == (graph.num_nodes, 14) and graph.edge_attr.size(1) == 2 for graph in images)
    assert 1200 < sum(graph.num_nodes for graph in calls) / 200 < 1600
    assert max(graph.num_nodes for graph in calls) == 4400
    assert all(graph.x.shape == (graph.num_nodes, 5) and graph.y.shape == (1,) for graph in calls)


def test_a_small_run_writes_a_row_for_each_method_and_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", "pascalvoc", "--graphs", "2", "--repeats", "3", "--threads", "1", "--attn-dropout", "0"]
    assert epochs.main([*words, "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("epochs-*.json")
    rows = bench_records.read(path)["rows"]
    assert [row["method"] for row in rows] == epochs.SHAPES["pascalvoc"].methods
    assert {row["status"] for row in rows} == {"ok"}
    for row in rows:
        assert row["nodes_per_s"] == pytest.approx(1000 * row["n"] / row["total_ms"])
        assert (row["attn_dropout"], row["repeats"]) == (0.0, 3)
    printed = capsys.readouterr().out
    assert "| pascalvoc | 2      |" in printed
    assert len([line for line in printed.splitlines() if line.startswith("|")]) == 2 + len(rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--data", "cora"], "--data cora: there are pascalvoc, malnet"), (["--attn-dropout", "1"], "must be in")],
)
def test_options_that_do_not_fit_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        epochs.main(words)
