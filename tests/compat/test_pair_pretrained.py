"""Fine-tuning from a run of GRIT's or PPGT's code: its settings make the network, its parameters fill it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.model_builder import create_model

from graphgps_kmip.gym.config.pretrained import adopt_settings, load_parameters
from tests.compat.pair_files import as_tree, load, settings_of, shapes_of
from tests.networks.ppgt_names import renaming
from tests.networks.test_grit_network import rename
from tests.recorded import load as load_record
from tests.recorded import part

PPGT, GRIT = "zinc-PPGT", "zinc-GRIT-RRWP"
NARROW = {"gt.layers": 1, "gt.dim_hidden": 16, "gnn.dim_inner": 16, "gt.n_heads": 2}


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    cfg.defrost()


def write_run(name: str, folder: Path, state: dict[str, Tensor], **changes: Any) -> Path:
    """Write a run folder as the public codes do: config.yaml above the seeds, a checkpoint of GraphGym."""
    (folder / "run" / "0" / "ckpt").mkdir(parents=True)
    torch.save({"model_state": state, "optimizer_state": {}}, folder / "run" / "0" / "ckpt" / "59.ckpt")
    (folder / "run" / "config.yaml").write_text(yaml.safe_dump(as_tree(settings_of(name) | changes)))
    return folder / "run"


def model_of(name: str, folder: Path, *words: str) -> nn.Module:
    load(name, folder, "seed", "0", *words)
    adopt_settings()
    cfg.share.dim_in, cfg.share.dim_out, cfg.dataset.edge_dim = 1, 1, 1
    return create_model(to_device=False)


def state_of_ppgt() -> dict[str, Tensor]:
    whole = shapes_of(PPGT).items()
    kept = {key: shape for key, shape in whole if not key.startswith("layers.") or key.startswith("layers.0.")}
    return {f"model.{key}": torch.randn(shape) for key, shape in kept.items()}


@pytest.mark.parametrize("reset", [True, False])
def test_a_run_of_ppgt_decides_the_network_and_fills_all_but_a_new_head(reset: bool, tmp_path: Path) -> None:
    state = state_of_ppgt()
    changes = {"gt.layers": 1, "gt.drop_path": 0.4}
    run = write_run(PPGT, tmp_path, state, **changes)
    words = ("pretrained.dir", str(run), "pretrained.reset_prediction_head", str(reset))
    model = model_of(PPGT, tmp_path, *words, "pretrained.freeze_main", "True")
    assert (cfg.gt.layers, cfg.ppgt.drop_path, cfg.ppgt.stem_hidden) == (1, 0.4, [128])
    load_parameters(model)
    found, rename_ppgt = model.state_dict(), renaming("rrwp+log_degree+log_order")
    for key, value in state.items():
        ours = "model." + rename_ppgt(key.removeprefix("model."))
        is_new = reset and ours.startswith("model.head.head.")
        assert torch.equal(found[ours], value) != is_new, ours
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name in found if name.startswith("model.head.head.")}


def test_a_run_of_grit_decides_the_network_and_fills_it(tmp_path: Path) -> None:
    own = model_of(GRIT, tmp_path, *(word for key, value in NARROW.items() for word in (key, str(value)))).state_dict()
    names = part(load_record("G_grit/model_graph_zinclike"), "state")  # of two layers
    state = {
        key: torch.rand_like(own[f"model.{rename(key)}"].float()) for key in names if f"model.{rename(key)}" in own
    }
    state = {f"model.{key}": value for key, value in state.items()} | {
        "model.rrwp_rel_encoder.padding": torch.zeros(1, 16)
    }
    assert len(state) == len(own) + 1
    run = write_run(GRIT, tmp_path, state, **NARROW, **{"gt.attn.clamp": 3.0, "gt.rezero": False})
    model = model_of(GRIT, tmp_path, "pretrained.dir", str(run), "pretrained.reset_prediction_head", "False")
    assert (cfg.gt.layers, cfg.gt.dim_hidden, cfg.gt.grit.clamp) == (1, 16, 3.0)
    load_parameters(model)
    found = model.state_dict()
    for key, value in state.items():
        ours = "model." + rename(key.removeprefix("model."))
        assert "padding" in key or torch.equal(found[ours].float(), value.to(found[ours].dtype).float()), ours
