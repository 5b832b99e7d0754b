"""Schedules equal GraphGPS's recorded learning rates, their state survives a safe load, optimisers take their keys."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import graphgps_kmip.train.optimizers  # noqa: F401 (registers them)
import graphgps_kmip.train.schedulers  # noqa: F401 (registers them)
from graphgps_kmip.registry import entries, named
from tests.record_files import kind_of_records, record

WARMUP = [f"{shape}_with_warmup_w{w}" for shape in ("linear", "cosine", "polynomial") for w in (0, 1, 5)]
RECORDS = {
    "cos": ("cos", {"max_epoch": 20}),
    "step": ("step", {"steps": [5, 12], "lr_decay": 0.1}),
    "plateau": ("plateau", {"reduce_factor": 0.5, "schedule_patience": 2, "min_lr": 0.0}),
    "reduce_on_plateau": ("reduce_on_plateau", {"reduce_factor": 0.5, "schedule_patience": 2, "min_lr": 1e-4}),
    "reduce_on_plateau_p0": ("reduce_on_plateau", {"reduce_factor": 0.1, "schedule_patience": 0, "min_lr": 1e-5}),
    "linear_with_warmup_w5_overrun": ("linear_with_warmup", {"num_warmup_epochs": 5, "max_epoch": 20}),
    **{f: (f.rsplit("_w", 1)[0], {"num_warmup_epochs": int(f[-1]), "max_epoch": 20}) for f in WARMUP},
}


TIMM = {
    "zinc": (2e-3, {"num_warmup_epochs": 50, "max_epoch": 2500, "min_lr": 7e-5}),
    "brec": (1e-3, {"num_warmup_epochs": 10, "max_epoch": 200, "min_lr": 7e-5}),
    "short": (1e-3, {"num_warmup_epochs": 5, "max_epoch": 20, "min_lr": 1e-5}),
    "w1": (1e-3, {"num_warmup_epochs": 1, "max_epoch": 12, "min_lr": 0.0}),
}


def sgd(base_lr: float = 1e-3) -> Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=base_lr)


def build(name: str, keys: dict, base_lr: float = 1e-3) -> tuple[Optimizer, LRScheduler]:
    optimizer = sgd(base_lr)
    return optimizer, named("scheduler")[name].component(optimizer, **keys)


def rates(name: str, optimizer: Optimizer, scheduler: LRScheduler, losses: list[float]) -> Iterator[float]:
    for loss in losses:
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step(loss) if named("scheduler")[name].traits.needs_metric else scheduler.step()


def test_every_recorded_schedule_is_tested_and_every_row_but_none_is_recorded() -> None:
    assert set(kind_of_records("E_schedules")) == set(RECORDS)
    assert set(kind_of_records("H_schedules")) == {f"timm_cosine_{file}" for file in TIMM}
    assert {name for name, _ in RECORDS.values()} | {"timm_cosine_with_warmup"} == set(named("scheduler")) - {"none"}


@pytest.mark.parametrize("file", RECORDS)
def test_learning_rates_match_the_recorded_ones(file: str) -> None:
    data = record(f"E_schedules/{file}")
    name, keys = RECORDS[file]
    losses = data["in/val_loss"] if "in/val_loss" in data else np.zeros(len(data["out/lr"]))
    got = list(rates(name, *build(name, keys), losses.tolist()))
    np.testing.assert_allclose(got, data["out/lr"], rtol=1e-12, atol=1e-18)  # float64 rounding of 20 products


@pytest.mark.parametrize("file", TIMM)
def test_learning_rates_match_those_recorded_from_timm(file: str) -> None:
    expected, (base_lr, keys) = record(f"H_schedules/timm_cosine_{file}")["eval/out/lr"], TIMM[file]
    name = "timm_cosine_with_warmup"
    got = list(rates(name, *build(name, keys, base_lr), [0.0] * len(expected)))
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-18)


def test_timms_cosine_without_warm_up_starts_at_the_base_rate_and_stays_at_the_last() -> None:
    keys = {"num_warmup_epochs": 0, "max_epoch": 4, "min_lr": 1e-4}
    optimizer, scheduler = build("timm_cosine_with_warmup", keys)
    got = list(rates("timm_cosine_with_warmup", optimizer, scheduler, [0.0] * 7))
    np.testing.assert_allclose([got[0], *got[4:]], [1e-3, 1e-4, 1e-4, 1e-4], rtol=1e-12)


def test_none_keeps_the_learning_rate() -> None:
    assert set(rates("none", *build("none", {}), [0.0] * 9)) == {1e-3}


@pytest.mark.parametrize("file", RECORDS)
def test_a_schedule_resumes_from_a_safely_loaded_state(file: str) -> None:
    name, keys = RECORDS[file]
    losses = [3.0, 2.0, 2.5, 2.5, 2.5, 2.5, 2.5, 2.5, 2.5, 2.5, 2.5, 2.5]
    want = list(rates(name, *build(name, keys), losses))
    optimizer, scheduler = build(name, keys)
    first = list(rates(name, optimizer, scheduler, losses[:5]))
    stream = io.BytesIO()
    torch.save((optimizer.state_dict(), scheduler.state_dict()), stream)
    stream.seek(0)
    states = torch.load(stream, weights_only=True)
    optimizer, scheduler = build(name, keys)
    scheduler.load_state_dict(states[1])
    optimizer.load_state_dict(states[0])
    assert first + list(rates(name, optimizer, scheduler, losses[5:])) == want


def test_a_warm_up_longer_than_the_run_stays_finite() -> None:
    for shape in ("linear", "cosine", "polynomial"):
        name = f"{shape}_with_warmup"
        got = list(rates(name, *build(name, {"num_warmup_epochs": 50, "max_epoch": 10}), [0.0] * 10))
        np.testing.assert_allclose(got[1:], [1e-3 * epoch / 50 for epoch in range(1, 10)], rtol=1e-12)


def test_a_polynomial_schedule_refuses_to_rise() -> None:
    with pytest.raises(ValueError, match=r"optim.base_lr is 1e-08.*set it higher"):
        build("polynomial_with_warmup", {"num_warmup_epochs": 0, "max_epoch": 5}, base_lr=1e-8)


@pytest.mark.parametrize("name", entries("optimizer"))
def test_an_optimizer_takes_the_keys_of_graphgym(name: str) -> None:
    keys = {"base_lr": 0.05, "weight_decay": 0.01} | ({"momentum": 0.8} if name == "sgd" else {})
    param = torch.ones(3, requires_grad=True)
    optimizer = entries("optimizer")[name].component(iter([param]), **keys)
    group = optimizer.param_groups[0]
    assert type(optimizer).__name__.lower() == name.lower()
    assert (group["lr"], group["weight_decay"], group.get("momentum", 0.8)) == (0.05, 0.01, 0.8)
    param.sum().backward()
    optimizer.step()
    assert (param < 1).all()


def test_timms_adamw_is_adamw_with_its_betas_in_the_optimizers_group() -> None:
    spec = named("optimizer")["timm_adamW"]
    assert spec.name == "adamW"
    optimizer = spec.component(iter([torch.ones(3, requires_grad=True)]), 0.05, 0.01, beta1=0.8, beta2=0.95)
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.95)
    assert optimizer.param_groups[0]["eps"] == 1e-8
