from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Batch, Data

from graphgps_kmip.train import make_fabric
from tests.train.toy import ToyLoader, ToyModel, last_checkpoint, make_graphs, make_loaders, read_stats, run


def state_after(run_dir: Path) -> dict:
    return last_checkpoint(run_dir)["model_state"]


def sgd(parameters: object, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr)


def constant(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)


def hand_made_gradient(graphs: list[Data], model: ToyModel) -> list[torch.Tensor]:
    """The gradient of the mean cross entropy over all graphs, by plain autograd."""
    pred, true = model(Batch.from_data_list(graphs))
    loss = torch.nn.functional.cross_entropy(pred, true)
    return list(torch.autograd.grad(loss, [*model.inner.parameters(), *model.outer.parameters()]))


def one_sgd_step(run_dir: Path, batch_size: int, graphs: list[Data], **options: object) -> list[torch.Tensor]:
    """What one epoch of SGD with rate 1 takes off the parameters of `inner` and `outer`."""
    torch.manual_seed(0)
    model = ToyModel()
    before = copy.deepcopy(model)
    loaders = [ToyLoader(graphs, batch_size)]
    run(run_dir, model=model, loaders=loaders, max_epoch=1, optimizer=sgd, lr=1.0, scheduler=constant, **options)
    pairs = zip(before.parameters(), model.parameters(), strict=True)
    return [(old - new).detach() for old, new in pairs][:4]


def test_accumulating_over_the_batches_sums_their_gradients(tmp_path: Path) -> None:
    graphs = make_graphs(8, 0)
    torch.manual_seed(0)
    mean = hand_made_gradient(graphs, ToyModel())
    got = one_sgd_step(tmp_path / "sum", 4, graphs, batch_accumulation=2)
    torch.testing.assert_close(got, [2 * g for g in mean], rtol=1e-4, atol=1e-6)  # differences of float32 parameters
    got = one_sgd_step(tmp_path / "mean", 4, graphs, batch_accumulation=2, accumulation_mean=True)
    torch.testing.assert_close(got, mean, rtol=1e-4, atol=1e-6)
    got = one_sgd_step(tmp_path / "big", 8, graphs)
    torch.testing.assert_close(got, mean, rtol=1e-4, atol=1e-6)


def test_the_last_batches_are_stepped_on_even_if_they_are_fewer(tmp_path: Path) -> None:
    graphs = make_graphs(4, 0)
    torch.manual_seed(0)
    mean = hand_made_gradient(graphs, ToyModel())
    got = one_sgd_step(tmp_path, 4, graphs, batch_accumulation=5)
    torch.testing.assert_close(got, mean, rtol=1e-4, atol=1e-6)


def test_clipping_bounds_the_total_norm_and_keeps_the_direction(tmp_path: Path) -> None:
    graphs = make_graphs(8, 0)
    torch.manual_seed(0)
    mean = hand_made_gradient(graphs, ToyModel())
    norm = torch.cat([g.flatten() for g in mean]).norm()
    got = one_sgd_step(tmp_path, 8, graphs, clip_grad_norm=0.01)
    assert norm > 0.02
    torch.testing.assert_close(got, [g * 0.01 / norm for g in mean], rtol=1e-3, atol=1e-6)  # float32 differences


def test_the_scheduler_steps_once_an_epoch_and_the_rate_shown_is_the_one_used(tmp_path: Path) -> None:
    run(tmp_path, max_epoch=4, lr=1e-9, batch_accumulation=2, scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1))
    assert [line["lr"] for line in read_stats(tmp_path, "train")] == [1e-9, 1e-10, 1e-11, 1e-12]


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


def test_64_true_trains_in_float64(tmp_path: Path) -> None:
    seen = []
    hook = lambda batch: seen.append(batch.x.dtype)  # noqa: E731
    fabric = make_fabric("cpu", precision="64-true")
    run(tmp_path, hook, max_epoch=1, precision="64-true", fabric=fabric)
    assert set(seen) == {torch.float64}
    assert state_after(tmp_path)["inner.weight"].dtype == torch.float64
