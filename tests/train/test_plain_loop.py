"""The training loop computes what a few plain lines of torch do, in float64: losses, learning rates, weights."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data

from graphgps_kmip.networks.create_model import create_model
from graphgps_kmip.task import make_task
from graphgps_kmip.train.distributed import make_fabric
from graphgps_kmip.train.optimizers import adamw
from graphgps_kmip.train.schedulers import cosine_with_warmup
from tests.train.toy import ToyLoader, read_stats, run

EPOCHS, WARMUP, LR, DECAY, ACCUMULATION, CLIP = 8, 2, 0.01, 0.1, 2, 0.5
LOSSES = {"l1": ("regression", 1, F.l1_loss), "cross_entropy": ("classification", 3, F.cross_entropy)}


def loaders(kind: str) -> list[ToyLoader]:
    """Return shuffled training batches, five of which make three steps, and those of validation."""
    generator = torch.Generator().manual_seed(1)
    graphs = []
    for size in torch.randint(3, 8, (24,), generator=generator).tolist():
        x, edge_index = torch.randn(size, 4, generator=generator), torch.randint(size, (2, 9), generator=generator)
        y = x.sum(0)[:1] if kind == "l1" else x.sum(0)[:3].argmax()[None]
        graphs.append(Data(x=x, edge_index=edge_index, edge_attr=torch.randn(9, 2, generator=generator), y=y))
    return [ToyLoader(graphs[:18], shuffle=True), ToyLoader(graphs[18:])]


def train_plainly(model: nn.Module, kind: str, mean: bool) -> tuple[list[float], list[float], list[float]]:
    training, validation = loaders(kind)
    loss_of = LOSSES[kind][2]
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=DECAY, fused=True)  # else 7e-12 off by rounding
    losses, checks, rates = [], [], []
    for epoch in range(EPOCHS):
        cosine = (1 + math.cos(math.pi * (epoch - WARMUP) / (EPOCHS - WARMUP))) / 2
        rates.append(LR * (max(1e-6, epoch / WARMUP) if epoch < WARMUP else cosine))
        optimizer.param_groups[0]["lr"] = rates[-1]
        for split, batches, into in (("train", training, losses), ("val", validation, checks)):
            model.train(split == "train")
            batches.set_epoch(epoch)
            batches, total, rows = list(batches), 0.0, 0
            for number, loaded in enumerate(batches, start=1):
                batch = loaded.apply(lambda value: value.double() if value.is_floating_point() else value)
                prediction, label = model(batch)
                loss = loss_of(prediction.squeeze(-1) if kind == "l1" else prediction, label)
                total, rows = total + loss.item() * len(label), rows + len(label)
                if split == "val":
                    continue
                (loss / ACCUMULATION if mean else loss).backward()
                if number % ACCUMULATION == 0 or number == len(batches):
                    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                    optimizer.step()
                    optimizer.zero_grad()
            into.append(total / rows)
    return losses, checks, rates


@pytest.mark.parametrize(("kind", "mean"), [("l1", False), ("cross_entropy", True)])
def test_a_run_in_float64_equals_a_plain_loop(kind: str, mean: bool, tmp_path: Path) -> None:
    torch.manual_seed(3)
    task_type, dim_out, _ = LOSSES[kind]
    options = {"num_layers": 2, "dim": 8, "num_heads": 2, "edge_dim": 2, "edge_encoder": "LinearEdge", "head": "graph"}
    model = create_model("GatedGCN+Transformer", 4, dim_out, node_encoder="LinearNode", **options)
    plain = copy.deepcopy(model).double()
    run(
        tmp_path,
        model=model,
        loaders=loaders(kind),
        task=make_task(task_type, dim_out, kind),
        optimizer=lambda parameters, lr: adamw(parameters, lr, DECAY),
        lr=LR,
        scheduler=lambda optimizer: cosine_with_warmup(optimizer, WARMUP, EPOCHS),
        fabric=make_fabric("cpu", precision="64-true"),
        precision="64-true",
        max_epoch=EPOCHS,
        batch_accumulation=ACCUMULATION,
        accumulation_mean=mean,
        clip_grad_norm=CLIP,
        round=17,
    )
    losses, checks, rates = train_plainly(plain, kind, mean)
    lines = read_stats(tmp_path, "train")
    assert [line["lr"] for line in lines] == pytest.approx(rates, rel=1e-14)
    assert [line["loss"] for line in lines] == pytest.approx(losses, rel=1e-12)
    assert [line["loss"] for line in read_stats(tmp_path, "val")] == pytest.approx(checks, rel=1e-12)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-12, atol=1e-12, msg=name)
