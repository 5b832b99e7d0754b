"""Whose file a public YAML file is, by its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.compat.dialects import detect
from graphgps_kmip.gym.config_loading import flatten, load_config
from tests.compat.test_key_translation import CODES, HEAD, PUBLIC

Logs = pytest.LogCaptureFixture


def settings(*lines: str) -> list[tuple[str, Any, str]]:
    return [(key, value, "run.yaml") for line in lines for key, value in flatten(yaml.safe_load(line))]


@pytest.mark.parametrize(
    ("lines", "dialect", "why"),
    [
        (("gt: {layer_type: GINE+Transformer}", "posenc_RWSE: {enable: True}"), "graphgps", "nothing"),
        (("gt: {layer_type: GINE+SparseAttention}",), "kmip-thesis", "gt.layer_type GINE+SparseAttention"),
        (("gt: {sparse: {k: 5}}", "model: {auto_satisfy_param_budget: True}"), "kmip", "budget"),
        (("dataset: {format: PyG-S3DISOnDisk}",), "kmip-thesis", "S3DIS"),
        (("train: {eval_smoothing_metrics: True}",), "lrgb", "smoothing"),
        (("model: {type: MultiModel}", "prep: {exp: True}", "model: {param_budget: 5}"), "kmip", "budget"),
        (("gnn: {head: mlp_graph}", "gt: {sparse: {k: 5}}"), "kmip-thesis", "gt.sparse.k 5 (run.yaml)"),
        (("gnn: {head: mlp_graph}",), "lrgb", "mlp_graph"),
        (("gnn: {use_vn: False}",), "lrgb", "use_vn False"),
        (("dataset: {node_encoder_name: COCONode+LapPE}",), "lrgb", "COCONode"),
        (("prep: {exp: True}", "model: {type: Exphormer}"), "spexphormer", "model.type Exphormer"),
        (("prep: {exp: False}", "gt: {layer_type: 'ASE '}"), "spexphormer", "ASE"),
        (("prep: {num_edge_sets: 4}",), "spexphormer", "num_edge_sets"),
        (("train: {edge_sample_num_neighbors: [5, 5]}",), "spexphormer", "[5, 5]"),
        (("prep: {exp: False}",), "exphormer", "prep.exp False"),
        (("model: {type: MultiModel}", "gt: {layer_type: GCN+Exphormer}"), "exphormer", "MultiModel"),
        (("model: {type: MultiModel}", "gt: {layer_type: GCN__exp+Exphormer}"), "exphormer", "MultiModel"),
        (("gt: {layer_type: GatedGCN+Transformer}",), "", "GatedGCN+Transformer"),
        (("gt: {layer_type: GINE+Mine}",), "", "GINE+Mine"),
        (("gt: {layer_type: GINE+Transformer, kmip: {k: 4}}",), "", "gt.kmip.k 4"),
        (("gt: {layer_type: SAN2Layer}",), "graphgps", "nothing"),
        (("dataset: {name: ogbn-arxiv}", "gnn: {head: inductive_node}"), "kmip-thesis", "ogbn-arxiv"),
        (("dataset: {name: ogbn-arxiv}", "gnn: {head: default}"), "graphgps", "nothing"),
    ],
)
def test_a_file_tells_by_its_markers_whose_it_is(lines: tuple[str, ...], dialect: str, why: str) -> None:
    detected, reason = detect(settings(*lines))
    assert detected == dialect
    assert why in reason


@pytest.mark.parametrize("code", CODES)
def test_no_public_value_of_one_code_is_a_marker_of_another(code: str) -> None:
    public = [(key, text, "") for key, values in PUBLIC.items() for text, codes in values.items() if code in codes]
    below = {"G": set(), "E": set(), "S": {"exphormer"}}[code]  # Sp_Exphormer grew out of Exphormer
    assert {detect([setting])[0] for setting in public} - {"graphgps"} <= {CODES[code]} | below
    # which no file of GraphGPS has together with a head for all nodes
    assert detect([setting for setting in public if setting[1] != "ogbn-arxiv"])[0] == CODES[code]


PUBLIC_FILE = HEAD + "model: {type: MultiModel}\ngt: {layer_type: GCN+Exphormer}\n"


def test_a_public_file_is_read_in_its_dialect_and_a_line_says_why(tmp_path: Path, caplog: Logs) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(PUBLIC_FILE)
    with caplog.at_level("INFO"):
        load_config(cfg, file, [])
    assert cfg.dialect == "exphormer"
    assert not cfg.optim.accumulation_mean
    [line] = [message for message in caplog.messages if "dialect" in message]
    assert "exphormer" in line
    assert f"model.type MultiModel ({file})" in line


@pytest.mark.parametrize(("more", "warnings"), [("", 1), ("dialect: kmip-thesis\n", 0), ("dialect: kmip\n", 0)])
def test_a_file_of_either_k_mip_code_warns(more: str, warnings: int, tmp_path: Path, caplog: Logs) -> None:
    (tmp_path / "run.yaml").write_text(f"{more}{HEAD}gt: {{layer_type: CustomGatedGCN+SparseAttention}}\n")
    with caplog.at_level("WARNING"):
        load_config(cfg, tmp_path / "run.yaml", [])
    lines = [line for line in caplog.messages if "`dialect: kmip`" in line and "`dialect: kmip-thesis`" in line]
    assert len(lines) == warnings


@pytest.mark.parametrize("named", ["graphgps", "''"])
def test_a_file_that_names_its_dialect_keeps_it(named: str, tmp_path: Path, caplog: Logs) -> None:
    (tmp_path / "run.yaml").write_text(f"dialect: {named}\n{PUBLIC_FILE}")
    with caplog.at_level("INFO"):
        load_config(cfg, tmp_path / "run.yaml", [])
    assert cfg.dialect == named.strip("'")
    assert not [line for line in caplog.messages if "dialect" in line]


def test_the_command_line_overrides_a_dialect_but_shows_none(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(PUBLIC_FILE)
    load_config(cfg, tmp_path / "run.yaml", ["dialect", "graphgps"])
    assert cfg.dialect == "graphgps"
    load_config(cfg, tmp_path / "run.yaml", ["gt.kmip.k", "4"])
    assert cfg.dialect == "exphormer"
    load_config(cfg, None, ["gt.kmip.k", "4"])
    assert cfg.dialect == ""
