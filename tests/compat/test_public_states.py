"""Checkpoints of public codes by their tensors: each fills a model built from the settings of its YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.model_builder import create_model

from graphgps_kmip.compat.checkpoint_names import PUBLIC
from graphgps_kmip.compat.parameter_renaming import list_constants, rename_parameters
from graphgps_kmip.errors import CheckpointError
from graphgps_kmip.gym.config_loading import load_config

FILE = Path("there.ckpt")
STATES: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "public_states.yaml").read_text())
# What a file may hold and no parameter of ours is: constants, second names, GINE's epsilon, norms of no branch.
UNUSED = ("_x_mean", "_x_std", ".eps", "trf.proj_updater.instance.", "layers.0.norm1_attn.")


def build(name: str, folder: Path, **changes: Any) -> nn.Module:
    row, file, dims = STATES[name], folder / "public.yaml", STATES[name]["dims"]
    file.write_text(yaml.safe_dump(row["settings"] | changes))
    load_config(cfg, file, [])
    cfg.share.dim_in, cfg.share.dim_out, cfg.dataset.edge_dim = dims["in"], dims["out"], dims["edge"]
    return create_model(to_device=False)


def state_of(name: str) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for key, entry in STATES[name]["state"].items():
        if isinstance(entry, list):
            state[key] = torch.randn(entry) if not key.endswith(".eps") else torch.zeros(entry)
        else:
            state[key] = state[entry["same"]].clone() if "same" in entry else torch.tensor(entry["value"])
    return {f"model.{key}": value for key, value in state.items()}


def load(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return rename_parameters(state, model.state_dict(), PUBLIC, FILE, constants=list_constants(model))


@pytest.mark.parametrize("name", STATES)
def test_every_tensor_of_a_public_checkpoint_finds_its_place(name: str, tmp_path: Path) -> None:
    model, state = build(name, tmp_path), state_of(name)
    full = load(model, state)
    model.load_state_dict(full)
    filled = {id(value) for value in full.values()}
    unused = [key for key, value in state.items() if id(value) not in filled]
    assert [key for key in unused if not any(part in key for part in UNUSED)] == []
    public = {id(value) for value in state.values()}
    new = {key for key, value in full.items() if id(value) not in public and value.numel()}
    assert {key for key in new if not key.endswith(("num_batches_tracked", "redraw_seed"))} == set()


def test_the_features_that_expander_and_virtual_edges_start_with_keep_their_roles(tmp_path: Path) -> None:
    name = "Exphormer, edges of its expander and virtual nodes"
    state = state_of(name)
    full, start = load(build(name, tmp_path), state), "model.layers.0.attention.0.initial_state."
    roles = {"expander": "exp_edge_attr", "virtual": "virt_node_emb", "to_virtual": "virt_edge_in_emb",
             "from_virtual": "virt_edge_out_emb"}  # fmt: skip
    for part, public in roles.items():
        assert full[f"{start}{part}.weight"] is state[f"model.encoder.exp_edge_fixer.{public}.weight"]


def test_parameters_for_standardised_superpixels_are_refused_where_the_model_scales_otherwise(tmp_path: Path) -> None:
    name = "LRGB, PascalVOC-SP"
    state = state_of(name)
    state["model.encoder.edge_encoder.edge_x_std"] *= 2
    with pytest.raises(CheckpointError, match=r"edge_x_std differs from the constant encoder\.edge\.std of the model"):
        load(build(name, tmp_path), state)
    encoders = {"dataset.node_encoder_name": "LinearNode+LapPE", "dataset.edge_encoder_name": "LinearEdge"}
    with pytest.raises(CheckpointError, match=r"encoder1\.node_x_mean \(14,\) is left over"):
        load(build(name, tmp_path, **encoders), state_of(name))
    name = "LRGB, COCO-SP"
    with pytest.raises(CheckpointError, match=r"node_encoder\.node_x_mean \(14,\) is left over"):
        load(build(name, tmp_path, **encoders | {"dataset.node_encoder_name": "LinearNode"}), state_of(name))


def test_a_second_copy_of_performers_layers_must_equal_the_first(tmp_path: Path) -> None:
    name = "GraphGPS, Performer alone"
    state = state_of(name)
    state["model.trf.proj_updater.instance.layers.1.1.fn.fn.w2.bias"] += 1
    with pytest.raises(CheckpointError, match=r"proj_updater\..*\.1\.1\.fn\.fn\.w2\.bias .* is left over"):
        load(build(name, tmp_path), state)


def test_parameters_of_graph_norms_in_a_model_of_other_norms_are_named_with_the_reason(tmp_path: Path) -> None:
    name = "the thesis, GraphNorm"
    with pytest.raises(CheckpointError, match=r"norm1_local\.mean_scale .* is left over.*GraphNorm.* kmip-thesis"):
        load(build(name, tmp_path, dialect="kmip"), state_of(name))


def test_only_a_tensor_without_numbers_may_be_missing(tmp_path: Path) -> None:
    name = "GraphGPS, SAN without other pairs"
    model, state = build(name, tmp_path), state_of(name)
    assert model.state_dict()["model.layers.0.attention.0.initial_state.feature.weight"].shape[0] == 0
    load(model, state | {"model.trf_layers.0.attention.fake_edge_emb.weight": torch.zeros(0, 48)})
    full = build(name, tmp_path, **{"gt.full_graph": True})
    with pytest.raises(CheckpointError, match=r"fake_query\.weight \(48, 48\) is missing in the file"):
        load(full, state)
