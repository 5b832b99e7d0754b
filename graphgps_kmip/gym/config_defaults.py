"""Config keys: the defaults of those that we add to GraphGym's, and the allowed values of all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from typing import Any

from yacs.config import CfgNode

from graphgps_kmip.common.yaml_files import flatten
from graphgps_kmip.compat.key_translation import UNREAD
from graphgps_kmip.compat.public_faults import FAULTS
from graphgps_kmip.data.graph_changes import AS_GIVEN, ORDERS
from graphgps_kmip.data.layer_loader import LAYER_SAMPLERS
from graphgps_kmip.encoding.expander_graph import ALGORITHMS
from graphgps_kmip.encoding.positional_encoding import option_defaults, option_keys
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.expressivity.brec_protocol import PROTOCOLS
from graphgps_kmip.networks.network_settings import GRAPHGYM_DEFAULTS, NETWORK_DEFAULTS
from graphgps_kmip.ranges import (
    COUNT,
    FLAG,
    FRACTION,
    HEADS,
    NATURAL,
    NOT_NEGATIVE,
    PATH,
    POSITIVE,
    SEED,
    TEXT,
    WIDTH,
    Choice,
    Default,
    Each,
    Pattern,
    Range,
    Registered,
    Rule,
    Text,
    read_default,
    refusal,
    whole,
)
from graphgps_kmip.registry import Spec, entries, with_groups
from graphgps_kmip.signatures import read_rules
from graphgps_kmip.train.settings import TrainSettings

NAME = "graphgps_kmip"  # our key in GraphGym's registries without names of their own: config, loader, loss
LISTED = Registered("--list")
PLAIN = "a plain name of at most 200 characters, without separators"
OTHER_SEED = whole(-1, 2**32 - 1)  # -1: that of the run
# Keys of `TrainSettings`, whose annotations are their rules.
TRAINING_KEYS = {
    "optim": ("max_epoch", "max_seconds", "batch_accumulation", "accumulation_mean"),
    "train": """eval_period early_stop_patience eval_test enable_ckpt ckpt_period ckpt_best ckpt_clean auto_resume
    epoch_resume precision""".split(),
}
# Key -> default, with the rule for other values; a bool alone takes True and False. Names as in GraphGPS where it has
# them; a comment marks what is ours or differs.
DEFAULTS: dict[str, Any] = {
    **NETWORK_DEFAULTS,
    "name_tag": Default("", Pattern(r"[^/\\\x00-\x1f]{0,200}", PLAIN)),  # appended to the results folder
    "run_multiple_splits": Default([], Each(NATURAL)),  # run ids = these split indices, the seed stays
    "custom_modules": Default([], Each(TEXT)),  # ours: Python files or modules imported before the config is checked
    "dialect": Default("", Registered("a dialect")),  # ours: which public code's meaning of keys and defaults it has
    "quirks": Default([], Each(Registered("a quirk"))),  # ours: faults of public codes to switch back on
    "dataset.name": Default("none", LISTED),  # what a format with a single data set calls it; GraphGym says Cora
    "dataset.split_mode": Default("standard", Registered("of the data set")),
    "dataset.split_index": Default(0, NATURAL),
    "dataset.split_seed": Default(-1, OTHER_SEED),  # ours, of split_mode random; -1: that of the run
    "dataset.split_dir": Default("", PATH),  # where drawn splits are kept; "" is dataset.dir/splits
    "dataset.cache_edges": False,  # ours: keep the k-NN graphs of point clouds on disk, instead of building them anew
    "dataset.sample": False,  # ours: a small synthetic stand-in instead of the data
    "dataset.sample_graphs": Default(0, NATURAL),  # ours: at most so many graphs in it; 0: all, some 300
    "dataset.normalize_features": False,  # ours: where the nodes of one graph are classified: their features sum to 1
    "dataset.slic_compactness": Default(30, POSITIVE),  # 10 in GraphGPS; 30 is what was published as LRGB
    "train.mode": Default("custom", LISTED),
    "train.train_parts": Default(192, COUNT),  # parts of a graph, for train.sampler cluster and random_node
    "train.subgraph_hops": Default(2, whole(1, 1000)),  # ours: of train.sampler node2subgraph, around each node
    "train.subgraph_nodes": Default(250, COUNT),  # ours: nodes of one of its subgraphs at most
    "train.shuffle": True,  # a new order of the training graphs each epoch
    "train.max_nodes": Default(0, NATURAL),  # ours: nodes of a training batch, not train.batch_size graphs; 0: off
    "train.eval_test": "every",  # ours: every evaluation, or "best": only at a new best
    "train.early_stop_patience": 0,  # ours: epochs without a better score that end it; 0: none do
    "train.ckpt_best": False,
    "train.precision": "32-true",  # ours: or bf16-mixed, 64-true
    # ours, of gt.layer_type Spexphormer: which edges of the graph its layers read, by whose scores
    "spexphormer.scores": Default("", PATH),  # a scores.pt, or the results folder of the estimator; "": train it
    "spexphormer.estimator": Default("", PATH),  # YAML of the estimator, from the folder of the file that names it
    "spexphormer.estimator_seed": Default(0, SEED),  # one estimator serves all seeds; each split has its own
    "spexphormer.estimator_hash": Default("", TEXT),  # of its settings: entered when the config is loaded
    # edges into a node: of all layers, or of each, first to last
    "spexphormer.degree": Default([5], Each(whole(1, 1000), 1)),
    "spexphormer.sampler": Default("graph_reservoir", Choice(LAYER_SAMPLERS)),
    "spexphormer.resampling_epochs": Default(1, COUNT),  # epochs from one sample to the next
    "spexphormer.repeat_missing": False,  # nodes with fewer edges repeat some of them, as in the public code
    "spexphormer.eval_draws": Default(1, whole(1, 10_000)),  # samples whose predictions are averaged in evaluation
    "brec.protocol": Default("literal", Choice(tuple(PROTOCOLS))),  # ours, of train.mode brec: how pairs are trained on
    "brec.pairs": Default("", TEXT),  # which: names of categories, 0-9, 110, joined by a plus; "": all
    "brec.loss_threshold": Default(0.0, NOT_NEGATIVE),  # a lower loss of an epoch ends the training on a pair
    "optim.max_seconds": 0.0,  # ours: of processor time (GPU: wall time), which end the training; 0: none do
    "optim.batch_accumulation": 1,
    "optim.accumulation_mean": True,  # ours: a step's gradient is the mean over its batches, not the sum
    "optim.clip_grad_norm": False,
    "optim.clip_grad_norm_value": Default(1.0, POSITIVE),
    "optim.weight_decay_layers": Default("all", Choice(("all", "first"))),  # ours: or "first", as in the recipe of GCN
    "optim.reduce_factor": Default(0.1, Range(0, 1, below=True)),
    "optim.schedule_patience": Default(10, NATURAL),
    "optim.min_lr": Default(0.0, NOT_NEGATIVE),
    "optim.num_warmup_epochs": Default(50, NATURAL),
    "share.rrwp_in_batch": Default(0, NATURAL),  # 1: posenc_RRWP.where auto means batch: of the loaded data
    "share.dim_er": Default(0, NATURAL),  # width of posenc_ERN where er_dim says none: of the loaded data
    "model.auto_satisfy_param_budget": False,
    "model.param_budget": Default(500_000, whole(1)),
    "prep.exp": False,
    "prep.exp_algorithm": Default("Random-d", Choice(ALGORITHMS)),
    "prep.exp_deg": Default(5, whole(1, 1000)),  # permutations or cycles: each node has twice as many neighbours
    "prep.exp_max_num_iters": Default(100, COUNT),
    "prep.exp_seed": Default(-1, OTHER_SEED),  # ours: one expander for runs of all seeds; -1: each its own
    "prep.add_reverse_edges": False,  # where the nodes of one graph are classified; True in Exphormer's code
    "prep.add_self_loops": False,  # likewise of one graph
    "prep.node_order": Default(AS_GIVEN, Choice(tuple(ORDERS))),  # ours: of networks that mix nodes along their order
    "pretrained.dir": Default("", PATH),  # the results folder of an earlier run, above its seeds
    "pretrained.reset_prediction_head": True,
    "pretrained.freeze_main": False,  # train the head alone
    "pretrained.seed": Default(-1, OTHER_SEED),  # of the earlier run; -1: as in GraphGPS that of this one
    "wandb.use": False,
    "wandb.entity": Default("", TEXT),
    "wandb.project": Default("graphgps_kmip", TEXT),
    "wandb.name": Default("", TEXT),
}


def set_defaults(cfg: CfgNode) -> None:
    """Add our keys to GraphGym's config; groups that other packages made keep their keys."""
    _enter(cfg, DEFAULTS)
    for spec in (*entries("encoding").values(), *with_groups()):
        enter_group(cfg, spec)
    _enter(cfg, UNREAD | FAULTS)  # last, for some are in groups of components


def enter_group(node: CfgNode, spec: Spec) -> None:
    """Add the config group of a component, with the defaults of its options; refuse a name that another key has."""
    *parents, leaf = spec.group.split(".")
    node = _enter_groups(node, parents)
    if leaf in node and not isinstance(node[leaf], CfgNode) and spec.group not in UNREAD:
        raise ConfigError(
            f"register {spec.kind}: {spec.name!r} would need the key {spec.group}, which is taken: rename it"
        )
    is_encoding = spec.kind == "encoding"
    options = option_defaults(spec.component) if is_encoding else {name: p.default for name, p in spec.options.items()}
    node[leaf] = CfgNode(({"enable": False} if is_encoding else {}) | options)


def _enter_groups(node: CfgNode, names: list[str]) -> CfgNode:
    """Return the last of nested groups, which are made where they are missing."""
    for name in names:
        if name not in node:
            node[name] = CfgNode()
        node = node[name]
    return node


def _enter(cfg: CfgNode, defaults: dict[str, Any]) -> None:
    for key, value in defaults.items():
        *parents, leaf = key.split(".")
        node = _enter_groups(cfg, parents)
        if not isinstance(node.get(leaf), CfgNode):  # a user's component may have the name of an unread key
            node[leaf] = copy(read_default(value))


# GraphGym's own keys, whose defaults are in its code. True and False need no rule, `GRAPHGYM_DEFAULTS` has the others.
BY_RULE: list[tuple[Rule, str]] = [
    (LISTED, "dataset.format dataset.encoder_name dataset.node_encoder_name dataset.edge_encoder_name model.type"),
    (LISTED, "model.loss_fun gnn.head gnn.layer_type gnn.stage_type gnn.act optim.optimizer optim.scheduler"),
    (Registered("a sampler"), "train.sampler val.sampler"),
    (Registered("a metric of the task"), "metric_best"),
    (Registered("a task"), "dataset.task_type"),
    (Registered("of the loss"), "model.size_average"),
    (Registered("of the head"), "model.edge_decoding model.graph_pooling"),
    (Registered("of the layers"), "gnn.agg"),
    (TEXT, "dataset.edge_train_mode dataset.transform dataset.location dataset.label_table dataset.label_column"),
    (TEXT, "train.radius val.radius"),
    (Each(TEXT), "custom_metrics"),
    (Text(2000, empty=False, part=200), "out_dir dataset.dir"),
    (Pattern(r"[^/\\\x00-\x1f]{1,200}", PLAIN), "cfg_dest"),
    (NATURAL, "share.dim_in share.dim_out share.num_splits"),
    (COUNT, "train.batch_size train.node_per_graph train.iter_per_epoch train.walk_length val.node_per_graph"),
    (FRACTION, "dataset.edge_message_ratio model.thresh gnn.keep_edge optim.momentum bn.mom"),
    (NOT_NEGATIVE, "dataset.edge_negative_sampling_ratio optim.base_lr optim.weight_decay"),
    (POSITIVE, "optim.lr_decay bn.eps"),
    (WIDTH, "dataset.encoder_dim"),
    (HEADS, "gnn.att_heads"),
    (SEED, "seed"),
    (Each(FRACTION, 2, 3), "dataset.split"),
    (Each(NATURAL), "optim.steps"),
    (Each(whole(-1, 10**9), 1), "train.neighbor_sizes"),
    (whole(0, 65_536), "dataset.edge_dim"),  # 0: entered when a data set without edge features is loaded
    (whole(1, 1024), "devices num_threads"),
    (whole(0, 256), "num_workers"),
    (whole(1, 1000), "gnn.skip_every"),
    (whole(1, 17), "round"),
    (Choice(("both", "file", "stdout")), "print"),
    (Choice(("argmax", "argmin")), "metric_agg"),
    (Choice(("node", "edge", "graph", "link_pred")), "dataset.task"),
    (Choice(("single", "both")), "gnn.msg_direction"),
    (Choice(("none", "add", "concat")), "gnn.self_msg"),
    (
        Pattern(r"auto|cpu|gpu|mps|cuda(:\d{1,3})?", "auto, cpu, cuda, gpu, mps, or one device as in cuda:0"),
        "accelerator",
    ),
]


class Unruled:
    """Rule of an option that its component gives no range: of its type, and no NaN."""

    def allows(self, value: Any) -> bool:
        """Return whether the value is not NaN."""
        return not (isinstance(value, float) and math.isnan(value))

    def __str__(self) -> str:
        return "a value of the default's type that is not NaN"


def rules(cfg: CfgNode) -> dict[str, Rule]:
    """Return the rule of every key of ``cfg``, those of components that a user has registered included."""
    declared = {key: rule for rule, keys in BY_RULE for key in keys.split()}
    training = read_rules(TrainSettings)
    declared |= {f"{group}.{name}": training.get(name) for group, names in TRAINING_KEYS.items() for name in names}
    defaults = GRAPHGYM_DEFAULTS | DEFAULTS | FAULTS
    for spec in entries("encoding").values():
        defaults |= {f"{spec.group}.{key}": entry for key, entry in option_keys(spec.component).items()}
    declared |= {key: entry.rule for key, entry in defaults.items() if isinstance(entry, Default)}
    for spec in with_groups():
        declared |= {f"{spec.group}.{name}": rule for name, rule in read_rules(spec.component).items()}
    return {key: declared.get(key) or (FLAG if isinstance(value, bool) else Unruled()) for key, value in flatten(cfg)}


def check_ranges(cfg: CfgNode, origins: Mapping[str, str]) -> None:
    """Check every key against its rule; the error names key, value, origin and what is allowed."""
    allowed = rules(cfg)
    for key, value in flatten(cfg):
        if why := refusal(allowed[key], value):
            origin = f"{origins[key]}: " if key in origins else ""
            raise ConfigError(f"{origin}{key}: {why} Change it, or leave it out for the default.")
