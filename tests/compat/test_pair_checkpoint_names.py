"""Checkpoints of GRIT's and PPGT's codes: every tensor fills its place, and nothing else does."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.model_builder import create_model

from graphgps_kmip.compat.checkpoint_names import GRIT, PPGT, PUBLIC, choose_names
from graphgps_kmip.compat.parameter_renaming import finder, rename_parameters
from graphgps_kmip.errors import CheckpointError
from tests.compat.pair_files import PPGT as PPGT_FILES
from tests.compat.pair_files import build, load, shapes_of
from tests.networks.test_network_settings import grit

FILE = Path("there.ckpt")
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
State = dict[str, Tensor]


def learned(model: nn.Module) -> State:
    return {key: value for key, value in model.state_dict().items() if not key.endswith(STATISTICS)}


@pytest.mark.parametrize("name", PPGT_FILES)
def test_every_parameter_of_a_public_model_of_ppgt_has_one_place(name: str, tmp_path: Path) -> None:
    target = learned(build(name, tmp_path))
    state = {f"model.{key}": torch.empty(shape, device="meta") for key, shape in shapes_of(name).items()}
    assert choose_names(state) is PPGT
    full = rename_parameters(state, target, PPGT, FILE)
    assert {id(value) for value in full.values()} == {id(value) for value in state.values()}
    assert len(full) == len(state)
    assert sum(value.numel() for value in full.values()) == sum(value.numel() for value in target.values())


def test_norms_of_grit_over_channels_and_batches_keep_their_order() -> None:
    settings = {"gt.layer_norm": True, "gt.batch_norm": True}
    options = {"num_layers": 1, "dim": 8, "num_heads": 2, "head": "inductive_node"}
    target = grit(3, 4, "LinearNode", settings, **options).state_dict()
    norms = ("layer_norm1_h.weight", "layer_norm1_h.bias", "batch_norm1_h.weight", "batch_norm1_h.running_mean")
    public_names = [f"layers.0.{norm}" for norm in norms]
    find = finder({name: torch.zeros(8) for name in public_names}, target, GRIT)
    places = [next(place for place in find(name) if place in target) for name in public_names]
    assert [place.split(".")[3] for place in places] == ["0", "0", "1", "1"]


def small(tmp_path: Path, **changes: Any) -> nn.Module:
    load("zinc-PPGT", tmp_path, **{"gt.layers": 1} | changes)
    cfg.share.dim_in, cfg.share.dim_out, cfg.dataset.edge_dim = 1, 1, 1
    return create_model(to_device=False)


def state_of_one_layer() -> State:
    shapes = {key: shape for key, shape in shapes_of("zinc-PPGT").items() if not key.startswith("layers.")}
    shapes |= {key: shape for key, shape in shapes_of("zinc-PPGT").items() if key.startswith("layers.0.")}
    return {key: torch.randn(shape) for key, shape in shapes.items()}


def test_what_a_file_of_ppgt_has_too_much_or_too_little_is_an_error(tmp_path: Path) -> None:
    target, state = small(tmp_path).state_dict(), state_of_one_layer()
    constants = {
        "pos_enc.edge_encoders.0.eps": math.pi * 2.0 ** torch.arange(3.0),
        "layers.0.res_layer1.alpha": torch.ones(1),
        "pos_enc.edge_encoders.1.mlp.module_1.res_layer.alpha": torch.ones(1),
    }
    assert rename_parameters(state | constants, target, PPGT, FILE).keys() == target.keys()
    for key, value in {**constants, "pos_enc.node_encoders.3.out_fc.weight": torch.zeros(64, 1)}.items():
        with pytest.raises(CheckpointError, match=f"{key}.* is left over"):
            rename_parameters(state | {key: value * 1.5}, target, PPGT, FILE)
    for key in state:
        with pytest.raises(CheckpointError, match=r"is missing in the file|is left over|here"):
            rename_parameters({name: value for name, value in state.items() if name != key}, target, PPGT, FILE)


def test_each_map_of_the_head_san_graph_of_ppgt_has_a_place(tmp_path: Path) -> None:
    target = small(tmp_path, **{"gnn.head": "san_graph"}).state_dict()
    state = {name: value for name, value in state_of_one_layer().items() if not name.startswith("post_mp.")}
    for number, (width, rows) in enumerate([(64, 32), (32, 16), (16, 8), (8, 1)]):  # gnn.layers_post_mp 3
        state[f"post_mp.FC_layers.{number}.weight"] = torch.randn(rows, width)
        state[f"post_mp.FC_layers.{number}.bias"] = torch.randn(rows)
    full = rename_parameters(state, target, PPGT, FILE)
    maps = [value for name, value in full.items() if name.startswith("model.head.head.")]
    assert [id(value) for value in maps] == [id(state[name]) for name in state if name.startswith("post_mp.")]


def test_a_file_of_ours_and_one_of_graphgps_keep_their_table(tmp_path: Path) -> None:
    target = small(tmp_path).state_dict()
    assert choose_names(target) is PUBLIC
    full = rename_parameters(target, target, PUBLIC, FILE)
    assert all(full[key] is target[key] for key in target)
    assert choose_names(["model.encoder.node_encoder.encoder.weight", "model.layers.0.local_model.A.weight"]) is PUBLIC
