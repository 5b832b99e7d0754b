"""Where the host waits for the device in a training step and an evaluation step of models, on a simulated device.

Copies and the optimizer's step are not counted.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.common.signals import StopSignals
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.data_loading import current_loaders
from graphgps_kmip.gym.experiment import assemble
from graphgps_kmip.gym.planned_runs import configured, planned_runs
from graphgps_kmip.gym.train_modes import current_settings, current_task
from graphgps_kmip.train.distributed import make_fabric
from graphgps_kmip.train.loop import Session, run_epoch
from tests.simulated_device import Waits, counting, register

OWN_DATA = ("quickstart", "examples")  # their data needs no files
# What waits once a pass, not once a step: losses are checked and metrics computed at its end.
OF_A_PASS = ("torch.stack(sums).cpu()", "torch.tensor([len(true) ", "session.optimizer.step()")


class Steps(NamedTuple):
    """What the host would wait for, by split, and the loss of the evaluation step."""

    waits: dict[str, Waits]
    loss: float
    loss_on_cpu: float


def steps_of(config: Path) -> Steps:
    sample = "False" if config.parent.name in OWN_DATA else "True"
    load_config(cfg, config, ["num_threads", "1", "train.batch_size", "4", "dataset.sample", sample])
    with configured(planned_runs(1)[0]):
        parts = assemble()
        loaders = current_loaders(parts.dataset, parts.info.level, make_fabric("cpu"))
        train, val = (next(iter(loader)) for loader in loaders[:2])
        task, settings = current_task(parts.info.dim_out), current_settings()
        _, on_cpu = _step(_session(parts.model, task, settings, torch.device("cpu")), val, "val")
        device = register()
        session = _session(parts.model.to(device), task, settings, device)
        waits_val, loss = _step(session, val, "val")
        waits_train, _ = _step(session, train, "train")
    return Steps({"train": waits_train, "val": waits_val}, loss, on_cpu)


def _session(model: nn.Module, task: Any, settings: Any, device: torch.device) -> Session:
    fabric = SimpleNamespace(
        device=device,
        world_size=1,
        is_global_zero=True,
        to_device=lambda batch: batch.to(device, non_blocking=True),
        backward=lambda total: total.backward(),
        clip_gradients=lambda *_, **__: None,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # parameters stay as they are
    return Session(fabric, model, optimizer, task, settings, StopSignals(), 0)


def _step(session: Session, loaded: Any, split: str) -> tuple[Waits, float]:
    with counting() as waits:
        stats = run_epoch(session, [loaded], split, 0)
    return {key: times for key, times in waits.items() if not any(code in key[1] for code in OF_A_PASS)}, stats["loss"]
