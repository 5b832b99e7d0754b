"""Layers of any number of branches by name, and what they need of the data."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.experiment import Parts, assemble
from graphgps_kmip.gym.planned_runs import configured, planned_runs
from tests.gym.posenc_config import ROOT

pytestmark = pytest.mark.usefixtures("few_digits", "small_samples")

DIGITS = ROOT / "configs/quickstart/digits-kmip.yaml"
SMALL = ["gt.dim_hidden", "16", "gnn.dim_inner", "16", "gt.layers", "2", "num_threads", "1", "dataset.sample", "True"]
EXPHORMER = ["prep.exp", "True", "prep.exp_deg", "3", "prep.num_virt_node", "2"]


def built(*argv: str) -> Parts:
    load_config(cfg, DIGITS, [*SMALL, *argv])
    with configured(planned_runs(1)[0]):
        return assemble()


def trained(parts: Parts) -> dict[str, torch.Tensor | None]:
    batch = Batch.from_data_list([parts.dataset.graphs[i] for i in range(3)])
    batch.split = "train"
    pred, _ = parts.model(batch)
    pred.square().sum().backward()
    return {name: parameter.grad for name, parameter in parts.model.model.named_parameters()}


def test_branches_of_both_kinds_are_side_by_side_in_any_number() -> None:
    parts = built("gt.layer_type", "GatedGCN+GINE+kMIP+Exphormer", *EXPHORMER)
    layer = parts.model.model.layers[1]
    assert [type(branch).__name__ for branch in layer.local] == ["GatedGCN", "GINE"]
    assert [type(branch).__name__ for branch in layer.attention] == ["KMIPAttention", "ExphormerAttention"]
    gradients = trained(parts)
    # The last layer's edge features lead nowhere.
    missing = {name for name, gradient in gradients.items() if gradient is None}
    assert missing == {f"layers.1.local.0.edge_norm.module.{name}" for name in ("weight", "bias")}


def test_one_branch_is_enough_and_none_is_refused() -> None:
    assert len(built("gt.layer_type", "GatedGCN").model.model.layers[0].attention) == 0
    assert len(built("gt.layer_type", "None+Performer").model.model.layers[0].local) == 0
    with pytest.raises(ValueError, match=r"gt\.layer_type None\+None"):
        built("gt.layer_type", "None+None")
    with pytest.raises(ConfigError, match=r"gt\.layer_type.*Exphormer"):
        built("gt.layer_type", "GatedGCN+Exformer")


def test_edge_features_are_encoded_as_wide_as_pna_reads_them() -> None:
    parts = built("gt.layer_type", "PNA+kMIP", "gt.pna.edge_dim", "5")
    gradients = trained(parts)
    assert gradients["layers.0.local.0.conv.edge_encoder.weight"].shape == (16, 5)
    [embedded] = [gradient for name, gradient in gradients.items() if name.startswith("encoder.edge.")]
    assert embedded.shape[-1] == 5
    with pytest.raises(ConfigError, match="edges of different widths"):
        built("gt.layer_type", "PNA+GatedGCN+kMIP", "gt.pna.edge_dim", "5")
    built("gt.layer_type", "PNA+GatedGCN+kMIP")


def test_the_vectors_of_exphormer_are_learned_once_for_all_layers() -> None:
    parts = built("gt.layer_type", "GatedGCN+Exphormer", *EXPHORMER)
    shared = [name for name, _ in parts.model.model.named_parameters() if "initial_state" in name]
    assert sorted(shared) == [
        f"layers.0.attention.0.initial_state.{name}.weight"
        for name in ("expander", "from_virtual", "to_virtual", "virtual")
    ]
    assert all(gradient is not None for name, gradient in trained(parts).items() if "initial_state" in name)


def test_what_no_branch_reads_is_said(caplog: pytest.LogCaptureFixture) -> None:
    built("gt.layer_type", "GatedGCN+Exphormer")
    assert caplog.text.count("Exphormer has no expander edges, prep.exp is False") == 1
    built("gt.layer_type", "GCN+kMIP", "posenc_EquivStableLapPE.enable", "True")
    assert caplog.text.count("posenc_EquivStableLapPE has no effect: no branch of gt.layer_type GCN+kMIP") == 1
