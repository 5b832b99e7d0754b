from __future__ import annotations

import json
import math
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Batch

from graphgps_kmip.results.run_record import read_finished
from graphgps_kmip.train.distributed import make_fabric
from graphgps_kmip.train.evaluation import predict_batches
from graphgps_kmip.train.settings import TrainSettings
from tests.train.toy import TASK, VAL, ToyModel, last_checkpoint, make_graphs, make_loaders, read_stats, run


def test_a_line_of_stats_has_the_keys_of_graphgym(tmp_path: Path) -> None:
    run(tmp_path, max_epoch=1)
    common = {"epoch", "time_epoch", "loss", "lr", "params", "time_iter", "accuracy", "rows"}
    for split, extra in (("train", {"eta", "eta_hours"}), ("val", set()), ("test", set())):
        (line,) = (tmp_path / split / "stats.json").read_text().splitlines()
        assert json.loads(line).keys() == common | extra


def test_the_metrics_see_every_row_once_and_the_loss_is_the_mean_over_rows(tmp_path: Path) -> None:
    graphs = make_graphs(VAL, 1)  # batches of 4 and 2: a mean over batches would differ
    torch.manual_seed(0)
    model = ToyModel()
    run(tmp_path, model=model, max_epoch=1)
    (line,) = read_stats(tmp_path, "val")
    with torch.no_grad():
        pred, true = model.eval()(Batch.from_data_list(graphs))
    assert line["rows"] == VAL
    assert line["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(pred, true)), rel=1e-5)
    assert line["accuracy"] == pytest.approx(float((pred.argmax(-1) == true).float().mean()), rel=1e-5)


def test_epochs_are_evaluated_at_the_period_the_first_and_the_last(tmp_path: Path) -> None:
    run(tmp_path, max_epoch=8, eval_period=3, eval_test="every")
    assert [line["epoch"] for line in read_stats(tmp_path, "train")] == list(range(8))
    assert [line["epoch"] for line in read_stats(tmp_path, "val")] == [0, 2, 5, 7]
    assert [line["epoch"] for line in read_stats(tmp_path, "test")] == [0, 2, 5, 7]


def metric_of_epochs(*values: float) -> object:
    """A metric that takes these values at successive calls on the validation split."""
    left = list(values)
    return lambda _, true: left.pop(0) if len(true) == VAL else 0.0


@pytest.mark.parametrize(("maximize", "best", "tested"), [(True, 2, [0, 2]), (False, 1, [0, 1])])
def test_the_first_extremum_is_the_best_and_test_is_evaluated_only_there(
    maximize: bool, best: int, tested: list[int], tmp_path: Path
) -> None:
    values = (0.5, 0.3, 0.8, 0.8, 0.3)
    task = replace(TASK, metrics={"m": metric_of_epochs(*values)}, metric_best="m", maximize=maximize)
    record = run(tmp_path, task=task, max_epoch=5, eval_test="best", ckpt_best=True)
    assert record["best"]["epoch"] == best
    assert [line["epoch"] for line in read_stats(tmp_path, "test")] == tested
    assert record["best"]["val"]["m"] == values[best]
    assert record["best"]["test"]["epoch"] == best
    assert torch.load(tmp_path / "ckpt" / "best.ckpt", weights_only=True)["epoch"] == best


def test_a_metric_that_is_not_defined_never_beats_one_that_is(tmp_path: Path) -> None:
    task = replace(TASK, metrics={"m": metric_of_epochs(math.nan, 0.2, math.nan)}, metric_best="m")
    assert run(tmp_path, task=task, loaders=make_loaders()[:2], max_epoch=3)["best"]["epoch"] == 1


SCORES = (0.5, 0.3, 0.8, 0.8, 0.3, 0.7, 0.9, 0.1)  # the best one that comes in time is that of epoch 2


def scored(maximize: bool = True) -> dict:
    task = replace(TASK, metrics={"m": metric_of_epochs(*SCORES)}, metric_best="m", maximize=maximize)
    return {"task": task, "max_epoch": len(SCORES)}


@pytest.mark.parametrize(
    ("maximize", "options", "best", "trained", "validated"),
    [
        (True, {"early_stop_patience": 1}, 0, 2, [0, 1]),
        (True, {"early_stop_patience": 3, "ckpt_period": 100}, 2, 6, [0, 1, 2, 3, 4, 5]),
        (True, {"early_stop_patience": 4}, 6, 8, list(range(8))),
        (False, {"early_stop_patience": 2}, 1, 4, [0, 1, 2, 3]),
        (True, {"early_stop_patience": 1, "eval_period": 3}, 0, 3, [0, 2]),  # it ends at an evaluation
    ],
)
def test_a_training_ends_when_its_score_has_not_become_better_for_a_while(
    maximize: bool, options: dict, best: int, trained: int, validated: list[int], tmp_path: Path
) -> None:
    record = run(tmp_path, **scored(maximize), **options)
    assert record["best"]["epoch"] == best
    assert (record["finished"], record["epochs"], record["max_epoch"]) == (True, trained, len(SCORES))
    assert list(read_finished(tmp_path, record)["train"]) == list(range(trained))
    assert [line["epoch"] for line in read_stats(tmp_path, "val")] == validated
    assert last_checkpoint(tmp_path)["epoch"] == trained - 1
    again = run(tmp_path, **scored(maximize), **options, auto_resume=True)  # trains no further
    assert (again["best"], again["epochs"]) == (record["best"], trained)


def test_a_training_ends_at_the_evaluation_after_its_seconds_of_computation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter(range(1000))
    monkeypatch.setattr("time.process_time", lambda: float(next(readings)))  # a second of computation per epoch
    settings = {"max_epoch": 8, "max_seconds": 3.0, "eval_period": 2, "fabric": make_fabric("cpu")}
    assert run(tmp_path, **settings)["epochs"] == 4  # the epoch of the third second is not evaluated
    assert last_checkpoint(tmp_path)["compute_seconds"] == 4
    assert run(tmp_path, **settings, auto_resume=True)["epochs"] == 4


def test_metric_best_loss_chooses_the_smallest_validation_loss(tmp_path: Path) -> None:
    record = run(tmp_path, task=replace(TASK, metric_best="loss", maximize=False))
    losses = [line["loss"] for line in read_stats(tmp_path, "val")]
    assert record["best"]["epoch"] == losses.index(min(losses))


@pytest.mark.parametrize("loaders", [make_loaders()[:1], [*make_loaders()[:1], None, None]])
def test_without_validation_the_last_epoch_counts(loaders: list, tmp_path: Path) -> None:
    record = run(tmp_path, loaders=loaders, max_epoch=3)
    assert record["best"]["epoch"] == 2
    assert record["best"].keys() == {"epoch", "value", "train"}
    assert not (tmp_path / "val").exists()


def test_batches_know_their_split_the_progress_of_the_run_and_its_epoch(tmp_path: Path) -> None:
    seen = []
    hook = lambda batch: seen.append((batch.split, batch.progress, batch.epoch, torch.is_grad_enabled()))  # noqa: E731
    run(tmp_path, hook, max_epoch=3)
    want = [(split, epoch / 2, epoch, split == "train") for epoch in range(3) for split in ("train", "val", "test")]
    assert list(dict.fromkeys(seen)) == want


def test_plateau_steps_on_the_last_evaluated_validation_loss(tmp_path: Path) -> None:
    seen = []

    class Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
        def step(self, metrics: float, epoch: int | None = None) -> None:
            seen.append(metrics)
            super().step(metrics, epoch)

    run(tmp_path, max_epoch=5, eval_period=2, scheduler=Plateau)
    losses = {line["epoch"]: line["loss"] for line in read_stats(tmp_path, "val")}
    assert seen == [losses[0], losses[1], losses[1], losses[3], losses[4]]
    with pytest.raises(ValueError, match="reduce_on_plateau needs a validation split"):
        run(tmp_path / "b", loaders=make_loaders()[:1], scheduler=Plateau)


def test_bf16_autocast_reaches_the_model_and_not_the_metrics(tmp_path: Path) -> None:
    seen = []
    hook = lambda _: seen.append(torch.is_autocast_enabled("cpu"))  # noqa: E731
    record = run(tmp_path, hook, max_epoch=1, fabric=make_fabric("cpu", precision="bf16-mixed"))
    assert all(seen)
    assert math.isfinite(record["best"]["val"]["loss"])  # `accuracy` asserts its scores


def test_two_frames_are_between_the_caller_of_train_and_the_model(tmp_path: Path) -> None:
    stacks: list[list[str]] = []
    hook = lambda _: stacks.append([f.name for f in traceback.extract_stack() if "/graphgps_kmip/" in f.filename])  # noqa: E731
    run(tmp_path, hook, max_epoch=1)
    assert stacks == [["train", "run_epoch"]] * 7


def test_batches_of_a_trained_model_are_at_the_end_of_schedules_and_have_no_epoch() -> None:
    seen = []
    model = ToyModel(hook=lambda batch: seen.append((batch.split, batch.progress, "epoch" in batch)))
    settings = TrainSettings(max_epoch=5, config_hash="toy")
    list(predict_batches(model, make_loaders()[1], settings, make_fabric("cpu"), "val"))
    assert seen == [("val", 1.0, False)] * 2


def test_a_loader_that_yields_the_same_batch_again_finds_it_as_it_was(tmp_path: Path) -> None:
    batch = Batch.from_data_list(make_graphs(4, 0))
    before = batch.x.clone()

    def hook(batch: Batch) -> None:
        batch.x = batch.x * 2  # as a GPS layer does

    run(tmp_path, hook, loaders=[[batch], [batch]], max_epoch=2)
    assert "split" not in batch
    torch.testing.assert_close(batch.x, before, rtol=0, atol=0)


def test_the_record_says_what_ran_on_what(tmp_path: Path) -> None:
    record = run(tmp_path, max_epoch=2, seed=7, name="toy", notes={"sample": True})
    assert record == json.loads((tmp_path / "record.json").read_text())
    assert [record[key] for key in ("finished", "seed", "sample", "params", "resumes")] == [True, 7, True, 69, 0]
    assert record["packages"]["torch"] == torch.__version__
    assert record["hardware"]["cores"] >= 1
    assert record["peak_memory"]["ram"] > 50e6  # bytes: torch alone takes more
    assert 0 < record["seconds_per_epoch"] * 2 < record["wall_time"]
    assert record["code_version"]
