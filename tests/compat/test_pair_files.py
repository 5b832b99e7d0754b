"""Public files of PPGT and GRIT run unchanged: their dialects, models of the public sizes, settings, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run.check_configs import check
from torch import nn
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_loading import flatten, load_config
from tests.compat.pair_files import DATA, FILES, GRIT, PPGT, build, load, settings_of

Logs = pytest.LogCaptureFixture
ZINC, GRIT_ZINC, ARXIV = "zinc-PPGT", "zinc-GRIT-RRWP", "ogbn-arxiv-PPGT-2x128+CA-SG10"


def size(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def test_the_lists_of_public_settings_are_whole() -> None:
    assert (len(PPGT), len(GRIT)) == (11, 9)
    assert len(DATA["values"]) == 190
    assert sum(len(settings_of(name)) for name in FILES) == 1949


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_in_the_dialect_of_its_code(name: str, tmp_path: Path) -> None:
    load(name, tmp_path)
    assert cfg.dialect == FILES[name]["dialect"]


@pytest.mark.parametrize("name", GRIT)
def test_every_part_of_a_model_of_grit_has_the_public_number_of_parameters(name: str, tmp_path: Path) -> None:
    # a file with the group's old name was counted with the default of the new one
    argv = ("posenc_RRWP.ksteps", "21") if name.startswith("pcqm4mv2") else ()
    model = build(name, tmp_path, *argv).model
    features, rrwp = model.encoder.node, model.encoder.rrwp
    parts = (features, model.encoder.edge, rrwp.node, rrwp.pair, model.layers, model.layers[0], model.head)
    assert [size(part) for part in parts] == list(FILES[name]["parts"].values())
    assert size(model) == FILES[name]["parameters"]


def test_the_old_name_of_rrwp_keeps_its_settings(tmp_path: Path) -> None:
    load("pcqm4mv2-GRIT-RRWP", tmp_path)
    assert (cfg.posenc_RRWP.enable, cfg.posenc_RRWP.ksteps) == (True, 16)
    assert cfg.dataset.node_encoder_name == "Atom+RRWP"


CHOSEN: dict[str, dict[str, Any]] = {
    ZINC: {
        "model.type": "PPGT",
        "gt.layer_type": "sL2",
        "posenc_RRWP.channels": "K+1",
        "ppgt.node_features": "rrwp+log_degree+log_order",
        "ppgt.pair_features": "inverse_order+inverse_degree",
        "ppgt.stem_hidden": [128],
        "ppgt.layer_scale": 0.0,
        "ppgt.drop_path": 0.1,
        "ppgt.first_norm": "none",
        "ppgt.last_norm": "ada_rms_norm",
        "head.linear_graph.halve_widths": False,
        "gnn.l2norm": True,
        "train.ckpt_best": True,
        "accelerator": "auto",
        "optim.accumulation_mean": False,
    },
    "sp-mnist-PPGT": {
        "ppgt.node_features": "rrwp+location+log_degree",
        "ppgt.pair_features": "location+inverse_order+inverse_degree",
        "ppgt.stem_blocks": 1,
    },
    "func-PPGT": {"head.linear_graph.post_pooling_norm": "batch_norm", "ppgt.ffn_ratio": 2.0},
    "pcqm4mv2-PPGT-ViT-B-BS256x2GPU": {
        "ppgt.dim_pair": 128,
        "ppgt.layer_scale": 1e-4,
        "ppgt.stem_layer_scale": 0.0,
        "ppgt.stem_first_norm": "ada_rms_norm",
        "ppgt.stem_ffn_ratio": 4.0,
        "posenc_RRWP.sym_norm": True,
        "ppgt.pair_features": "inverse_order",
        "wandb.entity": "",
    },
    "brec-I2GIN+PPGT": {
        "head.linear_graph.out_dim": 16,
        "head.linear_graph.out_bn": True,
        "brec.loss_threshold": 0.0,
        "ppgt.subgraph_encoder": "I2GIN",
        "ppgt.subgraph_layers": 6,
        "ppgt.subgraph_hops": 4,
        "ppgt.num_bases": 15,
    },
    ARXIV: {
        "ppgt.node_features": "rrwp+target+class_token",
        "ppgt.class_token": "order",
        "ppgt.class_layers": 2,
        "ppgt.class_drop_path": 0.5,
        "ppgt.stem_drop_path": 0.5,
        "ppgt.stem_layer_scale": 1e-5,
        "ppgt.mask_rate": 0.5,
        "posenc_RRWP.dual_direction": True,
        "train.sampler": "node2subgraph",
        "train.subgraph_hops": 10,
        "train.subgraph_nodes": 100,
        "train.max_nodes": 0,
    },
    GRIT_ZINC: {
        "dataset.node_encoder_name": "TypeDictNode+RRWP",
        "gt.layer_type": "GRIT",
        "posenc_RRWP.channels": "K",
        "gt.grit.clamp": 5.0,
        "gt.grit.update_e": True,
        "accelerator": "auto",
    },
}


@pytest.mark.parametrize("name", CHOSEN)
def test_keys_of_a_file_mean_ours(name: str, tmp_path: Path) -> None:
    load(name, tmp_path)
    values = dict(flatten(cfg))
    assert {key: values[key] for key in CHOSEN[name]} == CHOSEN[name]


def test_the_command_line_wins_by_their_keys_and_by_ours(tmp_path: Path) -> None:
    load(ZINC, tmp_path, "gt.drop_path", "0.3", "ppgt.node_features", "rrwp", "gt.layer_scale", "True")
    assert (cfg.ppgt.drop_path, cfg.ppgt.node_features, cfg.ppgt.layer_scale) == (0.3, "rrwp", 1e-4)
    load(ZINC, tmp_path, "gt.pos_enc.edge_encoder.MLPSinEdgeEncoder.hid_dim", "8,9", "accelerator", "cuda:0")
    assert cfg.ppgt.stem_hidden == [8, 9]
    assert cfg.accelerator == "cuda:0", "asked for on this machine, it is not changed"


@pytest.mark.parametrize("name", [ZINC, ARXIV, GRIT_ZINC])
def test_the_written_config_of_a_file_loads_as_itself(name: str, tmp_path: Path) -> None:
    load(name, tmp_path)
    before, written = dict(flatten(cfg)), tmp_path / "written.yaml"
    written.write_text(cfg.dump().replace(f"run_dir: {cfg.run_dir}\n", ""))
    load_config(cfg, written, [])
    assert dict(flatten(cfg)) == before


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("sp-cifar-PPGT", "names log_order, for which there is no encoder"),
        ("struct-PPGT", "MLPSinEdgeEncoder.dropout 0.1"),
        ("pcqm4mv2-PPGT-ViT-B-BS256x2GPU", "made for 2 GPUs"),
        (ARXIV, "model.label_smoothing 0.15"),
        (ZINC, ""),
        (GRIT_ZINC, ""),
    ],
)
def test_what_a_file_says_without_effect_is_a_warning(name: str, word: str, tmp_path: Path, caplog: Logs) -> None:
    with caplog.at_level("WARNING"):
        load(name, tmp_path)
    assert len(caplog.messages) == bool(word)
    assert word in "".join(caplog.messages)


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize(
    "name", [name if name == ARXIV else pytest.param(name, marks=pytest.mark.slow) for name in FILES]
)
def test_a_file_trains_two_steps_on_a_sample(name: str, tmp_path: Path) -> None:
    load(name, tmp_path)
    outcome = check(tmp_path / "public.yaml")
    assert not outcome.why, str(outcome)
    assert outcome.dialect == FILES[name]["dialect"]


def test_options_of_the_head_go_to_the_head_that_the_file_names(tmp_path: Path) -> None:
    options = {"gnn.post_pooling_norm": "batch_norm", "gnn.out_bn": True, "gnn.out_dim": 7}
    for name, group in ((ZINC, "linear_graph"), ("pattern-PPGT", "linear_node")):
        load(name, tmp_path, **options)
        head = cfg.head[group]
        assert (head.post_pooling_norm, head.out_bn, head.out_dim) == ("batch_norm", True, 7)
    none = {"gnn.post_pooling_norm": "none", "gnn.out_bn": False, "gnn.out_dim": None}
    load(ZINC, tmp_path, **none, **{"gnn.head": "san_graph"})
    for key, value in options.items():
        with pytest.raises(ConfigError, match=f"{key} {value}: here the heads linear_graph and linear_node alone"):
            load(ZINC, tmp_path, **none | {"gnn.head": "san_graph", key: value})


def test_the_head_san_graph_is_a_linear_graph_whose_hidden_layers_halve_the_width(tmp_path: Path) -> None:
    load(ZINC, tmp_path, **{"gnn.head": "san_graph", "gnn.dropout": 0.3})  # which that head does not read
    assert (cfg.gnn.head, cfg.head.linear_graph.halve_widths) == ("linear_graph", True)
    assert (cfg.gnn.layers_post_mp, cfg.gnn.dropout) == (4, 0.0)


def test_a_value_that_must_be_empty_is_refused_with_what_it_may_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hid_dim 16: this package has only '': change it, or leave it out"):
        load(ZINC, tmp_path, **{"gt.pos_enc.node_encoder.MLPNodeEncoder.hid_dim": 16})


MASK = "gt.pos_enc.node_encoder.NodeMask.mask_rate"


def test_a_mask_of_nodes_counts_where_it_is_listed_and_its_place_is_the_first(tmp_path: Path) -> None:
    load(ZINC, tmp_path, **{MASK: 0.5})
    assert cfg.ppgt.mask_rate == 0.0
    load(ARXIV, tmp_path, **{MASK: 0.0})
    assert cfg.ppgt.mask_rate == 0.0
    for key, value in (
        ("gt.pos_enc.node_encoder.pe_name", "rrwp+rrwp+x+cls_token"),
        ("gt.pos_enc.node_encoder.name", "MLPNodeEncoder+NodeMask+TargetNodeEmb+CLSTokenEmb"),
    ):
        with pytest.raises(ConfigError, match="this package has NodeMask once, first, with pe_name x"):
            load(ARXIV, tmp_path, **{key: value})


BLOCKS, STEM = "gt.pos_enc.edge_encoder.EdgeFFN", "gt.pos_enc.edge_encoder.MLPSinEdgeEncoder"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("gt.macro_norm_type", "post_norm", "gt.macro_norm_type post_norm: this package has only pre_norm"),
        ("gnn.trunc_init", False, "gnn.trunc_init False"),
        (f"{STEM}.kaiming_uniform_init", False, "MLPSinEdgeEncoder.kaiming_uniform_init: .* set it True"),
        (f"{STEM}.to_complete_graph", False, "public.yaml: .*to_complete_graph False: this package has only True"),
        (f"{BLOCKS}.dropout", 0.1, "EdgeFFN.dropout 0.1: this package has only 0"),
        (f"{BLOCKS}.drop_rate", 0.1, "public.yaml: unknown key .*FFN.drop_rate"),
        ("gt.pos_enc.node_encoder.name", "MLPNodeEncoder+NodeNorm", "this package has only MLPNodeEncoder, NodeMask"),
        ("gt.pos_enc.node_encoder.pe_name", "rrwp+deg+x", "pe_name deg: this package has only rrwp, log_deg"),
        ("gt.pos_enc.edge_encoder.name", "EdgeFFN", "only MLPSinEdgeEncoder, then EdgeFFN or not"),
        ("gt.pos_enc.coord_encoder.enable", True, "coord_encoder.enable True: this package has only False"),
        ("gt.attn.gated_attn", True, "gt.attn.gated_attn True: this package has only False"),
        ("gt.attn.qk_norm", "rms_norm", "gt.attn.qk_norm rms_norm: this package has only none"),
        ("optim.EMA", True, "optim.EMA True"),
    ],
)
def test_unsupported_values_are_refused_in_one_line(key: str, value: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(ZINC, tmp_path, **{key: value})
    assert "\n" not in str(caught.value)
