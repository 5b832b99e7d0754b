"""Allowed values of every config key: one mapping from our tables, component signatures and GraphGym's own keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from yacs.config import CfgNode

from graphgps_kmip.compat.key_translation import UNREAD
from graphgps_kmip.compat.public_faults import FAULTS
from graphgps_kmip.encoding.positional_encoding import option_keys
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_defaults import DEFAULTS
from graphgps_kmip.gym.config_loading import flatten
from graphgps_kmip.ranges import (
    COUNT,
    FLAG,
    FRACTION,
    HEADS,
    NATURAL,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    SOME_LAYERS,
    TEXT,
    WIDTH,
    Choice,
    Default,
    Each,
    Pattern,
    Registered,
    Rule,
    Text,
    refusal,
    whole,
)
from graphgps_kmip.registry import KINDS, entries, with_groups
from graphgps_kmip.signatures import rules_of

NAME = Registered("--list")
SAMPLER = Registered("a sampler")
# GraphGym's own keys, whose defaults stand in its code. Its True and False need no rule.
GRAPHGYM: dict[str, Rule] = {
    "print": Choice(("both", "file", "stdout")),
    "accelerator": Pattern(
        r"(auto|cpu|cuda|gpu|mps|tpu)(:\d{1,3})?", "auto, cpu, cuda, gpu, mps or tpu, or one device as in cuda:0"
    ),
    "devices": whole(1, 1024),
    "out_dir": Text(2000, empty=False, part=200),
    "cfg_dest": Text(200, empty=False),
    "custom_metrics": Each(TEXT),
    "seed": SEED,
    "round": whole(1, 17),
    "num_workers": whole(0, 256),
    "num_threads": whole(1, 1024),
    "metric_best": Registered("a metric of the task"),
    "metric_agg": Choice(("argmax", "argmin")),
    "share.dim_in": NATURAL,
    "share.dim_out": NATURAL,
    "share.num_splits": NATURAL,
    "dataset.format": NAME,
    "dataset.dir": Text(2000, empty=False, part=200),
    "dataset.task": Choice(("node", "edge", "graph", "link_pred")),
    "dataset.task_type": Registered("a task"),
    "dataset.split": Each(FRACTION, 2, 3),
    "dataset.encoder_name": NAME,
    "dataset.node_encoder_name": NAME,
    "dataset.edge_encoder_name": NAME,
    "dataset.encoder_dim": WIDTH,
    "dataset.edge_dim": whole(0, 65_536),  # 0: entered when a data set without edge features is loaded
    "dataset.edge_train_mode": TEXT,
    "dataset.edge_message_ratio": FRACTION,
    "dataset.edge_negative_sampling_ratio": NOT_NEGATIVE,
    "dataset.transform": TEXT,
    "dataset.location": TEXT,
    "dataset.label_table": TEXT,
    "dataset.label_column": TEXT,
    "train.batch_size": COUNT,
    "train.sampler": SAMPLER,
    "train.node_per_graph": COUNT,
    "train.radius": TEXT,
    "train.eval_period": COUNT,
    "train.ckpt_period": COUNT,
    "train.epoch_resume": whole(-1, 10**9),
    "train.iter_per_epoch": COUNT,
    "train.walk_length": COUNT,
    "train.neighbor_sizes": Each(whole(-1, 10**9), 1),
    "val.sampler": SAMPLER,
    "val.node_per_graph": COUNT,
    "val.radius": TEXT,
    "model.type": NAME,
    "model.loss_fun": NAME,
    "model.size_average": Registered("of the loss"),
    "model.thresh": FRACTION,
    "model.edge_decoding": Registered("of the head"),
    "model.graph_pooling": Registered("of the head"),
    "gnn.head": NAME,
    "gnn.layers_pre_mp": SOME_LAYERS,
    "gnn.layers_mp": SOME_LAYERS,
    "gnn.layers_post_mp": SOME_LAYERS,
    "gnn.dim_inner": WIDTH,
    "gnn.layer_type": NAME,
    "gnn.stage_type": NAME,
    "gnn.skip_every": whole(1, 1000),
    "gnn.act": NAME,
    "gnn.dropout": FRACTION,
    "gnn.agg": Registered("of the layers"),
    "gnn.msg_direction": Choice(("single", "both")),
    "gnn.self_msg": Choice(("none", "add", "concat")),
    "gnn.att_heads": HEADS,
    "gnn.keep_edge": FRACTION,
    "optim.optimizer": NAME,
    "optim.base_lr": NOT_NEGATIVE,
    "optim.weight_decay": NOT_NEGATIVE,
    "optim.momentum": FRACTION,
    "optim.scheduler": NAME,
    "optim.steps": Each(NATURAL),
    "optim.lr_decay": POSITIVE,
    "optim.max_epoch": COUNT,
    "bn.eps": POSITIVE,
    "bn.mom": FRACTION,
}


class Unread:
    """Rule of a key of public files that nothing reads: any value of the default's type."""

    def allows(self, value: Any) -> bool:
        """Return True."""
        del value
        return True

    def __str__(self) -> str:
        """Return the rule in words."""
        return "anything, no part of this package reads it"


class Unruled:
    """Rule of an option that its component gives no range: of its type, and no NaN."""

    def allows(self, value: Any) -> bool:
        """Return whether the value is not NaN."""
        return not (isinstance(value, float) and math.isnan(value))

    def __str__(self) -> str:
        """Return the rule in words."""
        return "a value of the default's type that is not NaN"


def rules(cfg: CfgNode) -> dict[str, Rule]:
    """Return the rule of every key of ``cfg``, those of components that a user has registered included."""
    declared: dict[str, Any] = dict(GRAPHGYM)
    declared |= {key: Unread() for key in UNREAD}
    declared |= {key: one.rule for key, one in (DEFAULTS | FAULTS).items() if isinstance(one, Default)}
    for spec in entries("encoding").values():
        keys = option_keys(spec.component).items()
        declared |= {f"{spec.group}.{key}": one.rule for key, one in keys if isinstance(one, Default)}
    for spec in with_groups():
        declared |= {
            f"{spec.group}.{name}": rule for name, rule in rules_of(spec.component, KINDS[spec.kind].given).items()
        }
    return {key: declared.get(key) or (FLAG if isinstance(value, bool) else Unruled()) for key, value in flatten(cfg)}


def check_ranges(cfg: CfgNode, origins: Mapping[str, str]) -> None:
    """Check every key against its rule.

    Args:
        cfg: loaded config.
        origins: key -> file or command line that set it; other keys have their defaults.

    Raises:
        ConfigError: the first value that is not allowed, with key, value, origin and what is allowed.
    """
    allowed = rules(cfg)
    for key, value in flatten(cfg):
        if why := refusal(allowed[key], value):
            origin = f"{origins[key]}: " if key in origins else ""
            raise ConfigError(f"{origin}{key}: {why} Change it, or leave it out for the default.")
