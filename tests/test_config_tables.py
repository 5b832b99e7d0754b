"""Rows of one table share all settings but those of their models: a slip in one of the whole files shows."""

from __future__ import annotations

import functools
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch_geometric.graphgym.config import set_cfg
from yacs.config import CfgNode

import graphgps_kmip.gym  # noqa: F401
from graphgps_kmip.common.yaml_files import flatten

CONFIGS = Path(__file__).parents[1] / "configs"
GPS, MPNN = "{bigbird,exphormer,kmip,performer,transformer}", "{gat,gatedgcn,gcn,gine}"
# What makes a row, in every table: which model, and how large.
MODEL = """model.type gt.layer_type gt.layers gt.n_heads gt.dim_hidden gt.dropout gt.attn_dropout
gnn.layer_type gnn.layers_mp gnn.dim_inner spexphormer.estimator"""
EXPANDER = "prep.exp prep.exp_deg prep.num_virt_node"
KMIP = "gt.kmip.*"
NORM = "gt.batch_norm gt.layer_norm"
ENCODING = "dataset.node_encoder_name posenc_*"
EDGES = "dataset.edge_encoder dataset.edge_encoder_bn dataset.edge_encoder_name"
DATASET = "dataset.* metric_* model.loss_fun gnn.head"
TRAINING = "optim.* train.*"
STAGES = f"{EDGES} gt.batch_norm gt.graph_norm gt.score_estimator.* prep.exp gnn.dropout"  # estimator and its readers
# Of the codes that made the rows of LRGB: their meanings of the same keys.
DIALECT = """dialect gnn.edge_residual gnn.gine_inner gnn.layer_act gt.gatedgcn.residual gt.gine.inner
gt.sparse_attn_dropout optim.accumulation_mean posenc_GraphormerBias.unread_tables prep.add_reverse_edges"""
BUDGET = "gnn.layers_post_mp model.auto_satisfy_param_budget optim.base_lr"
LRGB = f"{DIALECT} {KMIP} {NORM} {ENCODING} {BUDGET} optim.max_epoch train.batch_size"
PAIRS = f"{LRGB} gnn.act gnn.dropout gnn.head gnn.l2norm ppgt.* prep.num_virt_node prep.use_exp_edges optim.*"
CITY = f"{EXPANDER} {KMIP} {BUDGET} gt.gatedgcn.residual gt.graph_norm gt.layer_norm"
# Files of one table -> the keys in which they differ besides those of `MODEL`.
ROWS = {
    "LRGB/coco-*": f"{LRGB} dataset.edge_encoder_name prep.exp prep.exp_deg optim.clip_grad_norm",
    "LRGB/pascalvoc-*": f"{LRGB} dataset.edge_encoder_name gnn.dropout prep.exp optim.clip_grad_norm",
    "LRGB/peptides-func-*": f"{PAIRS} head.*",
    "LRGB/peptides-struct-*": PAIRS,
    "LRGB/coco-{gatedgcn,gcn,gine,transformer}": f"gnn.layer_act {NORM} optim.clip_grad_norm",
    "LRGB/pascalvoc-{gatedgcn,gcn,gine,transformer}": f"{ENCODING} gnn.dropout gnn.lay* optim.clip_grad_norm",
    "LRGB/peptides-func-{gatedgcn,gcn,gine,transformer}": f"{ENCODING} gnn.layer_act gnn.layers_post_mp",
    "LRGB/peptides-struct-{gatedgcn,gcn,gine,transformer}": "gnn.layer_act gnn.layers_post_mp",
    "LRGB/coco-{bigbird,gat,kmip,performer}": f"{ENCODING} {KMIP} {NORM} optim.base_lr optim.clip_grad_norm",
    "LRGB/pascalvoc-{bigbird,gat,kmip,performer}": (
        f"{ENCODING} {KMIP} {NORM} gnn.dropout gnn.layers_post_mp optim.base_lr optim.clip_grad_norm"
    ),
    "LRGB/peptides-func-{bigbird,gat,kmip,performer}": f"{ENCODING} {KMIP} {NORM} gnn.dropout gnn.layers_post_mp",
    "LRGB/peptides-struct-{bigbird,gat,kmip,performer}": f"{ENCODING} {KMIP} {NORM}",
    **{f"City-Networks/{city}-{GPS}": CITY for city in ("la", "london", "paris", "shanghai")},
    **{f"City-Networks/{city}-{MPNN}": "gnn.dropout optim.base_lr" for city in ("la", "london", "paris", "shanghai")},
    f"PointClouds/s3dis-{GPS}": f"{EXPANDER} {KMIP} gt.gatedgcn.residual",
    f"PointClouds/shapenet-{GPS}": f"{EXPANDER} {KMIP} gt.gatedgcn.residual",
    f"PointClouds/modelnet10-{GPS}": f"{EXPANDER} {KMIP} optim.weight_decay",
    **{f"PointClouds/{data}-{MPNN}": "" for data in ("s3dis", "shapenet", "modelnet10")},
    f"Node/computers-{GPS}": f"{KMIP} prep.exp prep.exp_deg",
    f"Node/computers-{MPNN}": "",
    f"SmallGraphs/cifar10-{GPS}": "prep.exp prep.num_virt_node",
    f"SmallGraphs/malnet-{GPS}": "prep.num_virt_node prep.use_exp_edges train.batch_size",
    f"SmallGraphs/pascalvoc-{GPS}": f"{ENCODING} prep.exp",
    f"SmallGraphs/peptides-func-{GPS}": "prep.num_virt_node prep.use_exp_edges",
    **{f"SmallGraphs/{data}-{MPNN}": "" for data in ("cifar10", "malnet", "pascalvoc", "peptides-func")},
    "SmallGraphs/{zinc,mnist,cifar10,pattern,cluster}-ppgt": (
        f"{DATASET} {TRAINING} gnn.layers_post_mp head.* model.graph_pooling posenc_RRWP.ksteps ppgt.*"
    ),
    "SmallGraphs/{zinc,mnist,cifar10,pattern,cluster}-grit": (
        f"{DATASET} {TRAINING} gnn.layers_post_mp model.graph_pooling posenc_RRWP.ksteps"
    ),
    "SmallGraphs/{zinc,mnist,pattern,cluster}-kmip": f"{DATASET} {TRAINING} {KMIP} model.graph_pooling",
    "BREC/*": f"{ENCODING} optim.* dataset.node_encoder_bn gnn.* graphormer.* head.* ppgt.*",
    "BREC/*ppgt*": "optim.max_epoch optim.num_warmup_epochs ppgt.num_bases ppgt.subgraph_encoder",
    "Citation/cora-*": (
        f"{ENCODING} gt.batch_norm {EDGES} {KMIP} {TRAINING} dataset.node_encoder dataset.node_encoder_bn gnn.* "
        "dataset.normalize_features gt.sl2.window network.* ppgt.* recipe.*"
    ),
    "Citation/cora-{appnp,linear,sgc}": (
        "network.appnp.* gnn.dropout optim.base_lr optim.max_epoch optim.weight_decay optim.weight_decay_layers "
        "train.early_stop_patience train.eval_period"
    ),
    "Heterophilous/minesweeper-{exphormer,gat,gatedgcn,gcn,geco,kmip,transformer}": EXPANDER,
    "Heterophilous/minesweeper-*": (
        f"{ENCODING} {EXPANDER} {TRAINING} gt.layer_norm dataset.edge_encoder dataset.node_encoder gnn.* gt.sl2.window "
        "network.polynormer.* ppgt.*"
    ),
    **{
        f"LowWidth/{{{data},{data}-estimator,{data}-exphormer,{data}-exphormer-gcn}}": f"{STAGES} {further}"
        for data, further in {
            **dict.fromkeys(("actor", "computers", "cs", "photo", "physics"), "optim.max_epoch"),
            "arxiv": "spexphormer.degree",
        }.items()
    },
    "LowWidth/{actor,arxiv,computers,cs,photo,physics}": "dataset.* prep.add_* gnn.dropout optim.* spexphormer.degree",
    "LowWidth/{actor,arxiv,computers,cs,photo,physics}-estimator": (
        "dataset.* prep.add_* optim.* gt.score_estimator.temp_ratio gt.score_estimator.temp_wait"
    ),
    "LowWidth/{actor,arxiv,computers,cs,photo,physics}-exphormer": "dataset.* prep.add_* gnn.dropout optim.*",
    "LowWidth/{actor,computers,cs,photo,physics}-gat": "dataset.* prep.add_*",
    "LowWidth/{actor,computers,cs,photo,physics}-gcn": "dataset.* prep.add_*",
    "LowWidth/{cora,cora-draws,cora-estimator,cora-exphormer,cora-exphormer-gcn}": (
        f"{EDGES} gt.batch_norm gt.graph_norm gt.score_estimator.* optim.base_lr prep.exp* spexphormer.* "
        "train.batch_size"
    ),
    "LowWidth/minesweeper{,-draws,-free-values,-kmip,-no-temperature,-top-k,-uniform,-unit-values}": (
        "spexphormer.eval_draws spexphormer.sampler"
    ),
    "LowWidth/minesweeper-estimator*": "gt.score_estimator.*",
    "LowWidth/minesweeper*": (
        f"{EDGES} {KMIP} gnn.layers_pre_mp gt.batch_norm gt.graph_norm gt.score_estimator.* optim.max_epoch prep.exp* "
        "spexphormer.* train.batch_size"
    ),
    "GECO/{arxiv,flickr,reddit,yelp}": (
        "dataset.format dataset.name dataset.task_type metric_best prep.add_reverse_edges"
    ),
    "GECO/{coco,pascalvoc,pascalvoc-lappe}": f"dataset.format {ENCODING}",
    "GECO/{peptides-func,peptides-struct,pcqm-contact}": f"{DATASET} train.batch_size",
    "GECO/{code2,molpcba,ppa,pcqm4mv2}": f"{DATASET} {TRAINING} gnn.layers_post_mp posenc_RWSE.enable",
    "Molecules/molhiv-*": NORM,
    "Molecules/pcqm4mv2-*": f"{ENCODING} gnn.head gnn.layers_post_mp head.* optim.* ppgt.*",
    "LongRange/recall-*": f"{EXPANDER} {KMIP} gt.performer.dim_head gt.nodeformer.dim_head optim.base_lr",
    "LongRange/roads-*": f"{EXPANDER} gt.performer.dim_head",
    "LongRange/shapes-*": f"{EXPANDER} gt.performer.dim_head",
    "quickstart/digits-{full,gatedgcn,gcn,kmip}": "",
    "quickstart/*": (
        f"{ENCODING} {EDGES} {KMIP} gnn.act gnn.head gnn.layers_pre_mp head.* optim.base_lr ppgt.* train.batch_size"
    ),
}
# Pattern of files -> their copies for other data, in which nothing but these keys differs.
COPIES = {
    ("City-Networks/paris-(.*)", r"City-Networks/la-\1"): "dataset.name",
    ("City-Networks/paris-(.*)", r"City-Networks/london-\1"): "dataset.name gt.layers",
    ("City-Networks/paris-(.*)", r"City-Networks/shanghai-\1"): "dataset.name",
    ("PointClouds/(.*)", r"LargeGraphs/\1"): (
        "dialect name_tag gnn.edge_residual gt.gatedgcn.residual gt.gine.inner optim.weight_decay"
    ),
    ("PointClouds/s3dis-(.*)", r"PointClouds/shapenet-\1"): "dataset.format metric_best gnn.dim_inner gnn.layers_mp",
    ("Citation/cora-(.*)", r"Citation/citeseer-\1"): "dataset.name spexphormer.estimator",
    ("Node/cora-kmip", "Node/citeseer-kmip"): "dataset.name",
    ("Fair/minesweeper", "Fair/tolokers"): (
        f"dataset.name {NORM} gt.dim_hidden gt.layers gnn.act gnn.dim_inner optim.base_lr recipe.*"
    ),
    ("Heterophilous/minesweeper-(?!public)(.*)", r"Heterophilous/tolokers-\1"): "dataset.name",
    ("LowWidth/cora(.*)", r"LowWidth/citeseer\1"): "dataset.name spexphormer.estimator",
    ("LowWidth/minesweeper(.*)", r"LowWidth/tolokers\1"): (
        "dataset.name gnn.layers_pre_mp gt.dropout gt.score_estimator.temp_ratio optim.max_epoch spexphormer.degree "
        "spexphormer.estimator"
    ),
    ("Molecules/molhiv-geco", "GECO/molhiv"): "",
}
ALONE = ["GECO/cora", "Heterophilous/tolokers-public-polynormer", "LRGB/pcqm-contact-kmip"]  # rows of no table


@functools.cache
def settings() -> dict[str, dict[str, Any]]:
    """Return, by file, all settings as they are written: a file says all that is not a default."""
    node = CfgNode()
    set_cfg(node)
    defaults = dict(flatten(node))
    files = sorted(CONFIGS.rglob("*.yaml"))
    return {str(f.relative_to(CONFIGS).with_suffix("")): defaults | dict(flatten(_read(f))) for f in files}


def _read(file: Path) -> dict[str, Any]:
    return yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)


def expand(pattern: str) -> list[str]:
    """Return the files of a pattern with stars and one brace of alternatives."""
    head, _, rest = pattern.partition("{")
    inside, _, tail = rest.partition("}")
    return [file for name in inside.split(",") for file in settings() if fnmatchcase(file, head + name + tail)]


def differing(files: list[str]) -> list[str]:
    rows = [settings()[file] for file in files]
    return [key for key, value in rows[0].items() if any(row[key] != value for row in rows)]


def copies(source: str, copy: str) -> list[tuple[str, str]]:
    pairs = [(file, re.sub(source, copy, file)) for file in settings() if re.fullmatch(source, file)]
    return [(file, other) for file, other in pairs if other in settings()]


def unexpected(files: list[str], allowed: str) -> list[str]:
    return [key for key in differing(files) if not any(fnmatchcase(key, name) for name in allowed.split())]


@pytest.mark.parametrize("table", ROWS)
def test_rows_of_a_table_share_all_but_their_models(table: str) -> None:
    files = expand(table)
    assert len(files) > 1
    assert unexpected(files, f"{MODEL} {ROWS[table]}") == []
    keys = differing(files)  # a list says no more than it must
    assert [name for name in ROWS[table].split() if not any(fnmatchcase(key, name) for key in keys)] == []


@pytest.mark.parametrize(("source", "copy"), COPIES)
def test_a_copy_for_other_data_differs_in_few_keys(source: str, copy: str) -> None:
    pairs = copies(source, copy)
    assert pairs
    assert {pair: keys for pair in pairs if (keys := unexpected(list(pair), COPIES[source, copy]))} == {}


def test_every_file_is_a_row_or_a_copy() -> None:
    named = {file for table in ROWS for file in expand(table)}
    named |= {file for row in COPIES for pair in copies(*row) for file in pair}
    assert sorted(settings().keys() - named) == ALONE
