"""Polynormer and SGFormer beside their recorded code: local and global epochs, what the branches read, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data

from graphgps_kmip import create_model
from tests.train.toy import CLASSES, DIM, ToyLoader, make_graphs, run

LOCAL, GLOBAL = {"head.local_head"}, {"head.norm", "head.attention", "head.global_head"}


def polynormer(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    options = {"dim": 8, "num_heads": 2, "num_layers": 2} | options
    return create_model("", DIM, CLASSES, network="Polynormer", **options)


def with_edges(count: int, seed: int) -> list[Data]:
    found = make_graphs(count, seed)
    for graph in found:
        nodes = torch.arange(len(graph.x))
        graph.edge_index = torch.stack([nodes, nodes.roll(1)])
    return found


def changed(model: nn.Module, start: nn.Module) -> set[str]:
    """Return which parts of the head have other parameters."""
    before = start.state_dict()
    names = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    return {name for name in LOCAL | GLOBAL if any(one.startswith(f"{name}.") for one in names)}


@pytest.mark.parametrize(("max_epoch", "expected"), [(2, LOCAL), (3, LOCAL | GLOBAL)])
def test_the_global_layers_learn_from_local_epochs_on_and_the_checkpoint_says_so(
    max_epoch: int, expected: set[str], tmp_path: Path
) -> None:
    loaders = [ToyLoader(with_edges(6, seed)) for seed in range(3)]
    model = polynormer(local_epochs=2)
    run(tmp_path, model=model, loaders=loaders, max_epoch=max_epoch)
    assert changed(model, polynormer()) == expected
    assert model.head.is_global == (max_epoch > 2)


def test_an_evaluation_is_in_the_form_of_the_last_training_epoch_and_a_new_network_is_global() -> None:
    model, batch = polynormer(local_epochs=5), Batch.from_data_list(with_edges(3, 0))
    seen: list[str] = []
    for name in ("local_head", "global_head"):
        getattr(model.head, name).register_forward_hook(lambda *_, name=name: seen.append(name))
    for training, epoch in ((True, None), (False, None), (True, 4), (False, None), (False, 7), (True, 5)):
        given = batch.clone()
        given.epoch = epoch
        model.train(training)(given)
    assert seen == ["global_head"] * 2 + ["local_head"] * 3 + ["global_head"]


def test_all_global_layers_share_their_last_map_alone() -> None:
    first, second = polynormer(global_layers=2).head.attention
    own, others, shared = ({id(one) for one in part.parameters()} for part in (first, second, first.out))
    assert own & others == shared


@pytest.mark.parametrize(
    ("settings", "width"),
    [({"dataset.node_encoder": False}, DIM), ({}, 8), ({"dataset.node_encoder": False, "gnn.layers_pre_mp": 1}, 8)],
)
def test_the_branches_of_sgformer_read_the_data_or_what_is_made_of_them(settings: dict[str, Any], width: int) -> None:
    model = create_model("", DIM, CLASSES, network="SGFormer", dim=8, num_heads=1, settings=settings)
    (layer,) = model.layers
    assert [branch.input.in_features for branch in layer.children()] == [width, width]
    assert model(Batch.from_data_list(with_edges(3, 0)))[0].shape == (3, CLASSES)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="dim must be divisible by num_heads, got dim 8 and 3 heads"):
        polynormer(num_heads=3)
    with pytest.raises(ValueError, match=r"network\.polynormer\.in_dropout: expected a finite number"):
        polynormer(in_dropout=1.0)
    with pytest.raises(ValueError, match=r"network\.sgformer\.aggregate: expected one of add, cat, got 'sum'"):
        create_model("", 5, 3, network="SGFormer", aggregate="sum")
    batch = Batch.from_data_list([Data(x=torch.ones(2, DIM, dtype=torch.long), edge_index=torch.zeros(2, 0).long())])
    with pytest.raises(ValueError, match=r"network\.polynormer\.in_dropout"):
        polynormer()(batch)
