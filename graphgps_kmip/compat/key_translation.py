"""Keys and values of public YAML files in our names and forms; keys that nothing reads; settings that are refused.

GraphGym's keys, ours and those of `UNREAD` are all that GraphGPS, Exphormer, Sp_Exphormer and the k-MIP code declare.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from graphgps_kmip.errors import ConfigError

# Keys with another name here. Old component names are aliases in the component tables.
KEYS: dict[str, str] = {
    "gt.sparse.kq_dim": "gt.kmip.dim_kq",
    "gt.sparse.val_dim": "gt.kmip.dim_val",
    **{f"gt.sparse.{key}": f"gt.kmip.{key}" for key in ("k", "head_agg", "random_attention", "random_fraction")},
    "gt.bigbird.attention_type": "gt.bigbird.form",
    "device": "accelerator",  # of older GraphGym
}
NONE = dict.fromkeys(("none", "None", "null"))
NAMED_NONE = {None: "none", "None": "none", "null": "none"}
# Ways in which public files write a value, by our key.
VALUES: dict[str, dict[Any, Any]] = {
    **dict.fromkeys(("gt.kmip.dim_kq", "gt.kmip.dim_val", "gt.dim_edge"), NONE),
    **dict.fromkeys(("gt.kmip.head_agg", "gt.secondary_edges"), NAMED_NONE),
    "wandb.entity": {None: ""},
    **{f"posenc_GraphormerBias.num_{kind}": NONE for kind in ("spatial_types", "in_degrees", "out_degrees")},
}
# Keys that no part of this package reads -> public default. A part that begins to read one takes it out of here.
UNREAD: dict[str, Any] = {
    f"{group}.{key}": default
    for group, defaults in (
        ("dataset", {"debug": False}),
        ("train", dict.fromkeys(("eval_smoothing_metrics", "save_attention_scores", "saving_epoch"), False)),
        ("train", {"cur_epoch": 0}),
        ("train", dict.fromkeys(("replace_edges", "rotate_edges", "layer_wise_edges", "sample_new_edges"), False)),
        ("train", {"number_of_edge_sets": 1, "num_edge_samples": 50}),
        ("gnn", {"heads": 4, "attn_dropout": 0.1, "use_vn": True, "vn_pooling": "add", "norm_type": "layer"}),
        ("gt", {"dim_edge": None, "pna_degrees": [], "activation": "relu", "JK": False, "vn_pooling": "mean"}),
        ("gt.bigbird", {"chunk_size_feed_forward": 0, "is_decoder": False, "add_cross_attention": False}),
        ("gt.bigbird", {"max_position_embeddings": 128}),
        ("prep", {"exp_count": 1, "train_percent": 0.6, "layer_edge_indices_dir": None}),
        ("prep", {"dist_enable": False, "dist_cutoff": 510}),
        ("prep", dict.fromkeys(("replace_combined_exp_edges", "save_edges", "load_edges", "default_initial"), False)),
        ("prep", {"num_edge_sets": 1, "edge_set_name": None}),
    )
    for key, default in defaults.items()
}
# The same, but GraphGym or the table of encodings has their defaults.
UNREAD_ELSEWHERE = frozenset(
    """gpu_mem round dataset.resample_negative dataset.transform posenc_ElstaticSE.kernel.times
    posenc_ElstaticSE.kernel.times_func posenc_RWSEEdge.num_global posenc_RWSEEdge.global_edge_dropout""".split()
)
# Settings ("key value") that load and cannot run: why not, and what to do.
REFUSED: dict[str, str] = {
    "model.type GPSwLPEModel": "no public code has it: take GPSModel, with LapPE in dataset.node_encoder_name",
    "dataset.node_encoder_name ZINCNode*": "no public code has it: take TypeDictNode and "
    "dataset.node_encoder_num_types 28",
    "dataset.edge_encoder_name ZINCEdge*": "no public code has it: take TypeDictEdge and "
    "dataset.edge_encoder_num_types 4",
}


def translate(key: str, value: Any) -> tuple[str, Any]:
    """Return a setting under our key and in our form; a translated key is logged."""
    our_key = KEYS.get(key, key)
    if our_key != key:
        logging.info("config: %s is read as %s", key, our_key)
    if isinstance(value, str):
        value = value.strip()  # public files hold quoted names with trailing blanks
    forms = VALUES.get(our_key, {})
    return our_key, forms[value] if isinstance(value, Hashable) and value in forms else value


def refuse(settings: Mapping[str, Any]) -> None:
    """Raise a ConfigError if a setting (dotted key -> value, all of them) is in `REFUSED`."""
    for pattern, why in REFUSED.items():
        key, _, value = pattern.partition(" ")
        if fnmatchcase(str(settings[key]), value):
            raise ConfigError(f"{key} {settings[key]}: {why}")


def log_unread(settings: Iterable[tuple[str, Any, str]]) -> None:
    """Log the settings (key, value, where) that no part of this package reads; a warning if not the public default."""
    unread = {key: value for key, value, _ in settings if key in UNREAD or key in UNREAD_ELSEWHERE}
    log_settings({f"{key} {value}": key in UNREAD and value != UNREAD[key] for key, value in unread.items()})


def log_settings(unread: Mapping[str, bool]) -> None:
    """Log unread settings ("key value" -> whether they may change the run) in a warning and an information."""
    for level, changes in ((logging.WARNING, True), (logging.INFO, False)):
        if listed := ", ".join(setting for setting, changed in unread.items() if changed == changes):
            logging.log(level, "config: accepted, but no part of this package reads %s", listed)
