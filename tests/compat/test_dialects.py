"""Dialects and quirks: named values below what a file says, and keys as they were meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from run.check_configs import check
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.compat.dialects import DIALECTS, QUIRKS
from graphgps_kmip.gym.config_loading import flatten, load_config
from graphgps_kmip.gym.network_building import build_model, make_plan
from graphgps_kmip.networks.gps_networks import read_dropout
from graphgps_kmip.registry import entries

HEAD = "dataset: {format: sklearn, name: digits}\n"


def load(tmp_path: Path, text: str, *argv: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(HEAD + text)
    load_config(cfg, file, list(argv))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_sets_its_values(dialect: str, tmp_path: Path) -> None:
    load(tmp_path, f"dialect: {dialect}\n")
    values = dict(flatten(cfg))
    assert {key: values[key] for key in DIALECTS[dialect]} == DIALECTS[dialect]


@pytest.mark.parametrize("quirk", QUIRKS)
def test_a_quirk_sets_its_values(quirk: str, tmp_path: Path) -> None:
    load(tmp_path, f"quirks: [{quirk}]\n")
    values = dict(flatten(cfg))
    assert {key: values[key] for key in QUIRKS[quirk]} == QUIRKS[quirk]


def test_what_a_file_and_the_command_line_say_wins(tmp_path: Path) -> None:
    text = "dialect: kmip\nquirks: [kmip_no_mask]\ngt: {gatedgcn: {residual: true}, kmip: {pad_keys: false}}\n"
    load(tmp_path, text)
    assert cfg.gt.gatedgcn.residual
    assert not cfg.gt.kmip.pad_keys
    assert cfg.gt.kmip.head_agg == "Linear"
    load(tmp_path, text, "gt.kmip.head_agg", "none", "dialect", "graphgps")
    assert cfg.gt.kmip.head_agg == "none"
    assert not cfg.optim.accumulation_mean


def test_layer_norm_means_what_the_code_of_the_dialect_made_of_it(tmp_path: Path) -> None:
    norms = "gt: {batch_norm: false, layer_norm: true}\n"
    for dialect, graph in (("graphgps", False), ("kmip", False), ("kmip-thesis", True), ("exphormer", True)):
        load(tmp_path, f"dialect: {dialect}\n{norms}")
        assert (cfg.gt.graph_norm, cfg.gt.layer_norm) == (graph, not graph)


@pytest.mark.parametrize(
    ("dialect", "name", "meant"),
    [
        ("graphgps", "VOCNode+LapPE", "LinearNode+LapPE"),
        ("exphormer", "COCONode", "LinearNode"),
        ("kmip-thesis", "VOCNode+RWSE", "LinearNode+RWSE"),
        ("kmip", "VOCNode+RWSE", "VOCNode+RWSE"),
        ("lrgb", "COCONode", "COCONode"),
    ],
)
def test_superpixels_are_standardised_as_by_their_code(dialect: str, name: str, meant: str, tmp_path: Path) -> None:
    load(tmp_path, f"dialect: {dialect}\n", "dataset.node_encoder_name", name)
    assert cfg.dataset.node_encoder_name == meant


ARXIV = """
dataset: {format: OGB, name: ogbn-arxiv, task: node, task_type: classification, node_encoder: False,
  edge_encoder: True, edge_encoder_name: DummyEdge, edge_encoder_bn: False, sample: True}
model: {type: MultiModel, loss_fun: cross_entropy}
gt: {layers: 1, n_heads: 2, dim_hidden: 8, layer_type: GCN+None}
gnn: {head: inductive_node, layers_pre_mp: 1, layers_post_mp: 1, dim_inner: 8, dropout: 0.0}
"""


@pytest.mark.parametrize("dialect", ["exphormer", "kmip-thesis"])
def test_ogbn_arxiv_is_predicted_at_the_nodes_of_the_split(dialect: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"dialect: {dialect}\n{ARXIV}")
    outcome = check(file)
    assert not outcome.why, str(outcome)
    assert cfg.prep.add_reverse_edges
    model = build_model(cfg).eval()
    x, edge_index, train_mask = torch.randn(6, cfg.share.dim_in), torch.randint(6, (2, 9)), torch.arange(6) % 2 == 1
    graph = {"x": x, "edge_index": edge_index, "y": torch.arange(6), "batch": torch.zeros(6, dtype=torch.long)}
    prediction, label = model(Data(**graph, train_mask=train_mask, split="train"))
    of_all, _ = model(Data(**graph, train_mask=torch.ones(6, dtype=torch.bool), split="train"))
    torch.testing.assert_close(prediction, of_all[train_mask])
    assert torch.equal(label, graph["y"][train_mask])


def test_all_nodes_of_one_graph_stay_refused_where_the_loop_of_the_code_learns_their_labels(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"dialect: graphgps\n{ARXIV}")
    assert "gnn.head: inductive_node does not fit OGB ogbn-arxiv" in check(file).why


@pytest.mark.parametrize(
    ("dialect", "network", "layer", "act"),
    [
        ("graphgps", "custom_gnn", "gatedgcnconv", "relu"),
        ("graphgps", "GPSModel", "gatedgcnconv", ""),
        ("lrgb", "custom_gnn", "gatedgcnconv", "relu"),
        ("lrgb", "custom_gnn", "gineconv", ""),
        ("lrgb", "GPSModel", "gatedgcnconv", ""),
    ],
)
def test_layers_have_their_codes_activation(dialect: str, network: str, layer: str, act: str, tmp_path: Path) -> None:
    load(tmp_path, f"dialect: {dialect}\n", "model.type", network, "gnn.layer_type", layer)
    assert cfg.gnn.layer_act == act


@pytest.mark.parametrize("dialect", ["kmip", "kmip-thesis"])
def test_heads_without_a_width_are_as_wide_as_the_network_in_the_k_mip_codes(dialect: str, tmp_path: Path) -> None:
    text = f"dialect: {dialect}\ngt: {{dim_hidden: 48, layer_type: GINE+%s, sparse: {{kq_dim: none%s}}}}\n"
    load(tmp_path, text % ("SparseAttention", ""))
    assert (cfg.gt.kmip.dim_kq, cfg.gt.kmip.dim_val) == (48, 48)
    load(tmp_path, text % ("SparseAttention", ", val_dim: 12"))
    assert (cfg.gt.kmip.dim_kq, cfg.gt.kmip.dim_val) == (48, 12)
    load(tmp_path, text % ("kMIP", ""))  # by our name: C / H
    assert (cfg.gt.kmip.dim_kq, cfg.gt.kmip.dim_val) == (None, None)


@pytest.mark.parametrize("dialect", ["exphormer", "spexphormer", "kmip", "kmip-thesis"])
def test_attention_dropout_reaches_only_full_attention_and_performer(dialect: str, tmp_path: Path) -> None:
    load(tmp_path, f"dialect: {dialect}\n", "gt.attn_dropout", "0.5")
    rates = {name: read_dropout(make_plan(), row) for name, row in entries("attention").items()}
    assert rates["kMIP"] == rates["Exphormer"] == 0.0
    assert rates["Transformer"] == rates["Performer"] == 0.5
    load(tmp_path, "", "gt.attn_dropout", "0.5")
    assert {read_dropout(make_plan(), entries("attention")[name]) for name in ("kMIP", "Exphormer")} == {0.5}


@pytest.mark.parametrize(
    ("setting", "quirks"),
    [
        ("gt: {layer_type: CustomGatedGCN+Performer}", ["performer_unmasked_keys", "performer_detached_stabiliser"]),
        ("gt: {layer_type: CustomGatedGCN+BigBird}", ["bigbird_padded_blocks"]),
        ("gt: {layer_type: CustomGatedGCN+SparseAttention}", ["kmip_no_mask", "kmip_duplicate_key_0"]),
        ("gt: {layer_type: CustomGatedGCN+Transformer}", []),
        ("gt: {layer_type: GatedGCN+Performer}", []),  # ours
    ],
)
def test_a_line_names_the_quirks_of_a_file(
    setting: str, quirks: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = f"model: {{type: GPSModel}}\n{setting}\n"
    with caplog.at_level("INFO"):
        load(tmp_path, text, "dataset.edge_encoder_bn", "False")
    lines = [line for line in caplog.messages if "`quirks:" in line]
    assert len(lines) == bool(quirks)
    assert all(f"`quirks: [{', '.join(quirks)}]`" in line for line in lines)
    caplog.clear()
    with caplog.at_level("INFO"):
        load(tmp_path, f"quirks: [{', '.join(quirks)}]\n{text}", "dataset.edge_encoder_bn", "False")
    assert not [line for line in caplog.messages if "`quirks:" in line]


def test_the_multimodel_of_the_kmip_code_is_that_of_exphormer(tmp_path: Path) -> None:
    text = "dialect: kmip\nmodel: {type: MultiModel}\ngt: {batch_norm: false, layer_norm: true}\n"
    load(tmp_path, text)
    assert cfg.gt.gatedgcn.residual
    assert (cfg.gt.graph_norm, cfg.gt.layer_norm) == (True, False)
    load(tmp_path, text, "model.type", "GPSModel")
    assert not cfg.gt.gatedgcn.residual
    assert cfg.gt.layer_norm


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_config_that_was_written_loads_as_itself(dialect: str, tmp_path: Path) -> None:
    load(tmp_path, f"dialect: {dialect}\ngt: {{batch_norm: false, layer_norm: true}}\nquirks: [kmip_no_mask]\n")
    before, written = dict(flatten(cfg)), tmp_path / "written.yaml"
    written.write_text(cfg.dump().replace(f"run_dir: {cfg.run_dir}\n", ""))
    load_config(cfg, written, [])
    assert dict(flatten(cfg)) == before


def test_every_dialect_and_quirk_stands_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "differences.md").read_text()
    assert all(f"`{name}`" in text for name in (*DIALECTS, *QUIRKS))
