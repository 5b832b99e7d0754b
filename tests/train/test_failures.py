from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Batch

from graphgps_kmip.errors import InputError, OutOfMemory, TrainingDiverged
from graphgps_kmip.results.run_record import read_record
from graphgps_kmip.train.loop import MetricAccumulator
from graphgps_kmip.train.settings import TrainSettings
from tests.train.toy import TASK, ToyLoader, make_graphs, make_loaders, read_stats, run


def test_a_loss_that_is_not_finite_stops_the_run_and_names_epoch_batch_and_checkpoint(tmp_path: Path) -> None:
    poisoned = []

    def poison(batch: Batch) -> None:
        if batch.split == "train" and batch.progress > 0.5:
            poisoned.append(batch)
            batch.x = batch.x * math.inf

    with pytest.raises(TrainingDiverged, match=rf"nan in train epoch 2, batch 0\. .*{tmp_path}/ckpt/1\.ckpt") as error:
        run(tmp_path, hook=poison, max_epoch=4)
    assert "\n" not in str(error.value)
    assert len(poisoned) == 1  # on the CPU it stops at once
    assert [line["epoch"] for line in read_stats(tmp_path, "train")] == [0, 1]
    assert not read_record(tmp_path)["finished"]


def test_losses_looked_at_late_still_name_the_first_bad_batch() -> None:
    accumulator = MetricAccumulator()  # as on CUDA, where they are looked at every so many batches
    for total in (1.0, 2.0):
        accumulator.add(torch.tensor([total, 1.0]), torch.zeros(1), torch.zeros(1))
    accumulator.check("train epoch 0")
    for total in (3.0, math.inf, math.nan):
        accumulator.add(torch.tensor([total, 1.0]), torch.zeros(1), torch.zeros(1))
    with pytest.raises(TrainingDiverged, match="The loss is inf in train epoch 0, batch 3"):
        accumulator.check("train epoch 0")


def test_parameters_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    class Blow(torch.optim.SGD):
        def step(self) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data.fill_(math.inf)

    loaders = [ToyLoader(make_graphs(4, 0))]  # one batch: no later loss shows it in this epoch
    with pytest.raises(TrainingDiverged, match="inner.weight is not finite .* train epoch 0. no checkpoint"):
        run(tmp_path, loaders=loaders, optimizer=Blow)
    assert not (tmp_path / "ckpt").exists()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")])
def test_running_out_of_memory_names_the_batch_and_the_keys_to_turn(error: Exception, tmp_path: Path) -> None:
    def hook(_batch: Batch) -> None:
        raise error

    loaders = [ToyLoader(make_graphs(4, 0))]
    largest = max(graph.num_nodes for graph in loaders[0].graphs)
    with pytest.raises(OutOfMemory, match=f"a batch of 4 graphs, the largest of {largest} nodes") as caught:
        run(tmp_path, hook, loaders=loaders)
    for key in ("train.batch_size", "optim.batch_accumulation", "share.gradient_checkpointing", "gt.dim_hidden"):
        assert key in str(caught.value)
    assert "\n" not in str(caught.value)


def test_any_other_error_of_the_model_passes_through(tmp_path: Path) -> None:
    def hook(_batch: Batch) -> None:
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="^shapes do not match$"):
        run(tmp_path, hook)


@pytest.mark.parametrize(
    ("name", "value"),
    [("eval_test", "never"), ("clip_grad_norm", 0.0), ("ckpt_period", True), ("epoch_resume", -2), ("round", 0.5)],
)
def test_a_setting_that_is_not_allowed_is_named(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{name}: expected "):
        TrainSettings(max_epoch=1, **{name: value})


def test_loaders_and_metrics_that_do_not_fit_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="metric_best is 'f1'; this task has accuracy, rows and loss"):
        run(tmp_path, task=replace(TASK, metric_best="f1"))
    with pytest.raises(ValueError, match=r"train\.early_stop_patience needs a validation split"):
        run(tmp_path, loaders=make_loaders()[:1], early_stop_patience=3)
    assert not list(tmp_path.iterdir())


def test_a_split_without_batches_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="The val split has no batches"):
        run(tmp_path, loaders=[make_loaders()[0], []])
