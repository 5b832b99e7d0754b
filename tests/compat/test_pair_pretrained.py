"""Fine-tuning from a run of GRIT's or PPGT's code: its settings make the network, its parameters fill it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.model_builder import create_model

from graphgps_kmip.compat.checkpoint_names import choose_names
from graphgps_kmip.compat.parameter_renaming import finder, rename_parameters
from graphgps_kmip.gym.config_loading import flatten
from graphgps_kmip.gym.pretrained import adopt_settings, load_parameters
from tests.compat.pair_files import as_tree, load, settings_of, shapes_of
from tests.recorded import load as load_record
from tests.recorded import part

PPGT, GRIT = "zinc-PPGT", "zinc-GRIT-RRWP"
NARROW = {"gt.layers": 1, "gt.dim_hidden": 16, "gnn.dim_inner": 16, "gt.n_heads": 2}


def write_run(name: str, folder: Path, state: dict[str, Tensor], **changes: Any) -> Path:
    """Write a run folder as the public codes do: config.yaml above the seeds, a checkpoint of GraphGym."""
    (folder / "run" / "0" / "ckpt").mkdir(parents=True)
    torch.save({"model_state": state, "optimizer_state": {}}, folder / "run" / "0" / "ckpt" / "59.ckpt")
    (folder / "run" / "config.yaml").write_text(yaml.safe_dump(as_tree(settings_of(name) | changes)))
    return folder / "run"


def model_of(name: str, folder: Path, *argv: str) -> nn.Module:
    load(name, folder, "seed", "0", *argv)
    adopt_settings()
    cfg.share.dim_in, cfg.share.dim_out, cfg.dataset.edge_dim = 1, 1, 1
    return create_model(to_device=False)


# In the config.yaml that a public code writes are all its defaults, too; most of these say nothing about its networks.
DUMPED = {
    **{"accelerator": "cuda:0", "cfg_file": "zinc.yaml", "best_by_loss": False, "train.loss_threshold": 0.0},
    **{"gt.full_graph": True, "gt.pna_degrees": [], "gt.bigbird.hidden_act": "relu", "gt.jk.mode": "cat"},
    **{"gt.attn.full_attn": True, "gt.attn.edge_enhance": True, "gt.attn.use": True, "gt.update_e": True},
    **{"gt.main_ranch_norm_idx": [], "gt.stem.node_stem": None, "gt.bn_momentum": 0.1, "gnn.edge_dim": None},
    **{"posenc_RRWP.spd": False, "posenc_RRWP.topk": None, "posenc_LapPE.eigen.max_freqs": 10},
}
TOKEN = "gt.pos_enc.node_encoder."
STEM, FFN = (f"gt.pos_enc.edge_encoder.{name}." for name in ("MLPSinEdgeEncoder", "EdgeFFN"))
# File, and settings that the earlier run has and the file at hand has not; whether the earlier run decides.
DECIDED: list[tuple[str, dict[str, Any], bool]] = [
    (PPGT, {"gt.norm_fn": "rms_norm", "gt.post_backbone_norm": "rms_norm"}, True),
    (PPGT, {"gt.drop_path": 0.4, "gt.proj_drop": 0.1, "gt.layer_scale": True, "gt.alpha": 0.5}, True),
    (PPGT, {"gt.dim_edge": 16, f"{STEM}hid_dim": "8,9", f"{STEM}sin_L": 7, f"{FFN}num_blocks": 1}, True),
    (PPGT, {"gt.attn.urpe": False, "gt.attn.window_attn_hop": 2, "gt.attn.l2dist": False}, True),
    (PPGT, {f"{TOKEN}name": "MLPNodeEncoder", f"{TOKEN}pe_name": "rrwp", f"{TOKEN}in_dim": "25"}, True),
    (PPGT, {"posenc_RRWP.ksteps": 5, "posenc_RRWP.sym_norm": True, "posenc_RRWP.dual_direction": True}, True),
    (PPGT, {"gnn.post_pooling_norm": "batch_norm", "gnn.out_bn": True, "gnn.out_dim": 5}, True),
    (PPGT, {"gnn.dim_inner": 32, "gt.dim_hidden": 32, "gt.n_heads": 4}, True),
    (PPGT, {"gnn.layers_post_mp": 1, "gnn.dropout": 0.3, "model.graph_pooling": "mean"}, False),
    (PPGT, {"train.cfi_only": True, "train.loss_threshold": 0.5}, False),
    (PPGT, {"optim.beta1": 0.8, "optim.base_lr": 0.5, "dataset.name": "full", "train.batch_size": 3}, False),
    (GRIT, {"gt.attn.clamp": 3.0, "gt.update_e": False}, True),
    (GRIT, {"gt.bn_momentum": 0.3, "gt.bn_no_runner": True, "gt.rezero": True}, True),
    (GRIT, {"posenc_RRWP.ksteps": 5, "posenc_RRWP.add_identity": False}, True),
    (GRIT, {"gnn.head": "graph", "optim.max_epoch": 3}, False),
]


def values_of(name: str, folder: Path, *argv: str, **changes: Any) -> dict[str, Any]:
    load(name, folder, "seed", "0", *argv, **changes)
    adopt_settings()
    left_out = ("pretrained", "custom_modules")
    return {key: value for key, value in flatten(cfg) if not key.startswith(left_out)}


@pytest.mark.parametrize(("name", "changes", "adopted"), DECIDED)
def test_an_earlier_run_decides_its_settings(name: str, changes: dict[str, Any], adopted: bool, tmp_path: Path) -> None:
    plain, changed = values_of(name, tmp_path), values_of(name, tmp_path, **changes)
    differing = {key for key in plain if plain[key] != changed[key]}
    assert len(differing) >= len({key.split(".")[0] for key in changes})
    run = write_run(name, tmp_path, {}, **{**DUMPED, **changes})
    assert values_of(name, tmp_path, "pretrained.dir", str(run)) == (changed if adopted else plain)


def test_norms_of_the_head_go_from_graphs_to_nodes_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = write_run(PPGT, tmp_path, {}, **{"gnn.post_pooling_norm": "batch_norm"})
    values_of(PPGT, tmp_path, "gnn.head", "linear_node", "pretrained.dir", str(run))
    assert cfg.head.linear_node.post_pooling_norm == "batch_norm"
    assert "head.linear_node.post_pooling_norm is batch_norm, as it was, not none" in caplog.text


def test_a_file_of_grit_need_not_enable_what_the_earlier_run_does(tmp_path: Path) -> None:
    run = write_run(GRIT, tmp_path, {})
    values = values_of(GRIT, tmp_path, "pretrained.dir", str(run), **{"posenc_RRWP.enable": False})
    assert values["dataset.node_encoder_name"] == "TypeDictNode+RRWP"
    assert values["posenc_RRWP.enable"]
    run = write_run(GRIT, tmp_path / "without", {}, **{"posenc_RRWP.enable": False})
    assert values_of(GRIT, tmp_path, "pretrained.dir", str(run))["dataset.node_encoder_name"] == "TypeDictNode"


def state_of_ppgt() -> dict[str, Tensor]:
    whole = shapes_of(PPGT).items()
    shapes = {key: shape for key, shape in whole if not key.startswith("layers.") or key.startswith("layers.0.")}
    return {f"model.{key}": torch.randn(shape) for key, shape in shapes.items()}


@pytest.mark.parametrize("reset", [True, False])
def test_a_run_of_ppgt_decides_the_network_and_fills_all_but_a_new_head(reset: bool, tmp_path: Path) -> None:
    state = state_of_ppgt()
    changes = {"gt.layers": 1, "gt.drop_path": 0.4}
    run = write_run(PPGT, tmp_path, state, **changes)
    argv = ("pretrained.dir", str(run), "pretrained.reset_prediction_head", str(reset))
    model = model_of(PPGT, tmp_path, *argv, "pretrained.freeze_main", "True")
    assert (cfg.gt.layers, cfg.ppgt.drop_path, cfg.ppgt.stem_hidden) == (1, 0.4, [128])
    load_parameters(model)
    target = model.state_dict()
    full = rename_parameters(state, target, choose_names(state), run)
    assert len(full) == len(state)
    for ours, value in full.items():
        assert torch.equal(target[ours], value) != (reset and ours.startswith("model.head.head.")), ours
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name in target if name.startswith("model.head.head.")}


def test_a_run_of_grit_decides_the_network_and_fills_it(tmp_path: Path) -> None:
    narrow = (word for key, value in NARROW.items() for word in (key, str(value)))
    target = model_of(GRIT, tmp_path, *narrow).state_dict()
    target = {key.removeprefix("model."): value for key, value in target.items()}
    public_state = part(load_record("G_grit/model_graph_zinclike"), "state")  # of two layers
    find = finder(public_state, target, choose_names(public_state))
    places = {key: next((place for place in find(key) if place in target), "") for key in public_state}
    state = {f"model.{key}": torch.rand_like(target[place].float()) for key, place in places.items() if place}
    state |= {"model.rrwp_rel_encoder.padding": torch.zeros(1, 16)}
    assert len(state) == len(target) + 1
    run = write_run(GRIT, tmp_path, state, **NARROW, **{"gt.attn.clamp": 3.0, "gt.rezero": False})
    model = model_of(GRIT, tmp_path, "pretrained.dir", str(run), "pretrained.reset_prediction_head", "False")
    assert (cfg.gt.layers, cfg.gt.dim_hidden, cfg.gt.grit.clamp) == (1, 16, 3.0)
    load_parameters(model)
    target = model.state_dict()
    for key, value in state.items():
        ours = target.get(f"model.{places[key.removeprefix('model.')]}")
        assert ours is None or torch.equal(ours.float(), value.to(ours.dtype).float()), key
