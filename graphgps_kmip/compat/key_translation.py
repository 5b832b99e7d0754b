"""Keys and values of public YAML files in our names and forms; keys that nothing reads; settings that are refused.

GraphGym's keys, ours and those of `UNREAD` are all that GraphGPS, Exphormer, Sp_Exphormer and the k-MIP code declare.
Codes whose files have groups of their own are a `Code` each: GRIT (LiamMa/GRIT, Ma et al. 2023) and the low-width
method (hamed1375/Sp_Exphormer), below; PPGT in ``ppgt_keys``. Keys in no table of a `Code` stay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
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


Setting = tuple[str, Any, str]  # key, value, place
COMMAND_LINE = "the command line"


@dataclass(frozen=True)
class Code:
    """Translation of the keys of a public code."""

    name: str  # its dialect
    keys: Mapping[str, str]  # their key -> ours, with the same values
    together: tuple[str, ...]  # patterns of keys that are translated together
    # all settings of a file, by their keys -> ours in place of ``together``
    derive: Callable[[Mapping[str, Any]], dict[str, Any]]
    only: Mapping[str, tuple[Any, ...]]  # pattern of a key -> values that this package has; others are refused
    # pattern of a key without effect here -> values that need no warning; None: all
    unread: Mapping[str, tuple[Any, ...] | None]


def translate_foreign(settings: Iterable[Setting], code: Code) -> list[Setting]:
    """Return settings, of files and command line in order, under our keys; derived ones at the first of their keys."""
    settings = [_translate_accelerator(setting) for setting in settings]
    derived = code.derive({key: value for key, value, _ in settings})
    result: list[Setting] = []
    read: dict[str, str] = {}
    unread: dict[str, bool] = {}  # "key value" -> whether a warning is due
    placed = False
    for key, value, origin in settings:
        pattern = _match_first(key, code.only)
        if pattern is not None and value not in code.only[pattern]:
            allowed = " or ".join(str(choice) or "''" for choice in code.only[pattern])
            raise ConfigError(f"{origin}: {key} {value}: this package has only {allowed}: change it, or leave it out")
        if key in code.keys:
            read[key] = code.keys[key]
            result.append((code.keys[key], value, origin))
        elif _match_first(key, code.together) is not None:
            if not placed:
                result += [(our_key, choice, origin) for our_key, choice in derived.items()]
            placed = True
        elif (pattern := _match_first(key, code.unread)) is not None:
            quiet = code.unread[pattern]
            unread[f"{key} {value}"] = quiet is not None and value not in quiet
        elif _match_first(key, code.only) is None:
            result.append((key, value, origin))
    parts = [", ".join(f"{key} as {our_key}" for key, our_key in read.items())]
    parts += [", ".join(f"{key} {value}" for key, value in derived.items())] if placed else []
    if text := "; ".join(part for part in parts if part):
        logging.info("config: keys of %s are read as ours: %s", code.name, text)
    log_settings(unread)
    return result


def _match_first(key: str, patterns: Iterable[str]) -> str | None:
    return next((pattern for pattern in patterns if fnmatchcase(key, pattern)), None)


def _translate_accelerator(setting: Setting) -> Setting:
    key, value, origin = setting
    if key != "accelerator" or origin == COMMAND_LINE:
        return setting
    devices = str(value).split(",")
    if devices[0] != "cuda:0":
        return setting
    logging.info("config: accelerator %s of a public file is read as auto: a GPU if there is one, else the CPU", value)
    if len(devices) > 1:
        logging.warning(
            "config: the file was made for %d GPUs with train.batch_size graphs each, this run is for one device; for "
            "the same batches multiply train.batch_size, which counts over all devices here, and set devices",
            len(devices),
        )
    return key, "auto", origin


ENCODER = "dataset.node_encoder_name"
# The name of RRWP in older versions of the code and in one of its files.
OLD_GROUP = "posenc_RWPSE"

GRIT_KEYS: dict[str, str] = {
    "gt.attn.clamp": "gt.grit.clamp",
    "gt.update_e": "gt.grit.update_e",
    **{f"{OLD_GROUP}.{key}": f"posenc_RRWP.{key}" for key in ("enable", "ksteps", "add_identity")},
}


def _derive_grit(settings: Mapping[str, Any]) -> dict[str, Any]:
    name = settings.get(ENCODER)
    if name is None:
        return {}
    enabled = settings.get("posenc_RRWP.enable", settings.get(f"{OLD_GROUP}.enable", False))
    return {ENCODER: encoder_with_rrwp(name, True) if enabled else name}


def encoder_with_rrwp(name: str, enabled: bool) -> str:
    """Return the name of a node encoder with RRWP among its parts if that is enabled, else without."""
    parts = str(name).split("+")
    if enabled:
        return name if "RRWP" in parts else f"{name}+RRWP"
    return "+".join(part for part in parts if part != "RRWP")


GRIT = Code(
    "grit",
    GRIT_KEYS,
    together=(ENCODER,),
    derive=_derive_grit,
    only={
        **{f"gt.attn.{key}": (True,) for key in ("use", "full_attn", "deg_scaler", "O_e", "norm_e")},
        **{f"gt.attn.{key}": (False,) for key in ("sparse", "graphormer_attn", "use_bias")},
        "gt.attn.act": ("relu",),
        "gt.bn_momentum": (0.1,),
        **dict.fromkeys(("gt.bn_no_runner", "gt.rezero"), (False,)),
        "posenc_RRWP.spd": (False,),
    },
    unread={
        "mlflow.use": (False,),
        "mlflow.*": None,
        "dataset.pe_transform_on_the_fly": None,  # the values are the same: posenc_RRWP.where decides
        "gt.attn.edge_enhance": (True,),  # its layers say True themselves
        **{f"gt.attn.{key}": None for key in ("signed_sqrt", "sqrt_relu", "scaled_attn", "no_qk", "fwl")},
        "gnn.dim_edge": None,  # gnn.dim_inner, whatever it says
        **{f"{group}.{key}": None for group in (OLD_GROUP, "posenc_RRWP") for key in ("add_node_attr", "add_inverse")},
    },
)

DEGREE = "train.edge_sample_num_neighbors"
PUBLIC_DEGREE = [6, 4, 4, 4, 4, 4]  # of a file that does not say it, one number for each layer
LAYERS = 3
SPARSE, ESTIMATOR = "_spexphormer.yaml", "_ASE.yaml"  # how the files of the two stages end

# train.* of an earlier version of the public code
EARLIER = "replace_edges rotate_edges layer_wise_edges sample_new_edges number_of_edge_sets num_edge_samples".split()
LOW_WIDTH_KEYS: dict[str, str] = {
    "train.temp_rdc_ratio": "gt.score_estimator.temp_ratio",
    "train.temp_min": "gt.score_estimator.temp_min",
    "train.temp_wait": "gt.score_estimator.temp_wait",
    "gt.use_edge_feats": "gt.score_estimator.use_edge_types",
    "train.spexphormer_sampler": "spexphormer.sampler",
    "train.resampling_epochs": "spexphormer.resampling_epochs",
}
# Its graphs of these formats stay directed, although prep.add_reverse_edges says True.
DIRECTED = ("PyG-actor", "SNAP")


def _derive_low_width(settings: Mapping[str, Any]) -> dict[str, Any]:
    same = ("dataset.format", "gt.layer_type")
    derived = {key: settings[key] for key in same if key in settings}
    if "gt.dim_hidden" in settings:
        derived["gnn.dim_inner"] = settings["gt.dim_hidden"]  # whose own value its network does not read
    if settings.get("gt.layer_type") == "Spexphormer":
        # it takes as many numbers as there are layers
        degrees = settings.get(DEGREE, PUBLIC_DEGREE)
        cut = isinstance(degrees, list) and isinstance(settings.get("gt.layers", LAYERS), int)
        derived["spexphormer.degree"] = degrees[: settings.get("gt.layers", LAYERS)] if cut else degrees
    if settings.get("dataset.format") in DIRECTED:
        derived["prep.add_reverse_edges"] = False
    if settings.get("dataset.format") == "PyG-actor":
        derived["dataset.normalize_features"] = True  # as its loader does
    return {key: value for key, value in derived.items() if key in same or key not in settings}


def find_estimator(settings: Iterable[Setting]) -> list[Setting]:
    """Return the estimator of a sparse network, a file next to its own, unless the settings name one."""
    settings = list(settings)
    if any(key in ("spexphormer.estimator", "spexphormer.scores") and value for key, value, _ in settings):
        return []
    for key, value, origin in settings:
        if key == "gt.layer_type" and value == "Spexphormer" and origin.endswith(SPARSE):
            return [("spexphormer.estimator", Path(origin).name.removesuffix(SPARSE) + ESTIMATOR, origin)]
    return []


SPEXPHORMER = Code(
    "spexphormer",
    LOW_WIDTH_KEYS,
    together=("dataset.format", "gt.layer_type", DEGREE),
    derive=_derive_low_width,
    only=dict.fromkeys(("gt.JK", "prep.load_edges", "prep.save_edges"), (False,)),
    # what nothing reads in the public code either, or what has no meaning here
    unread={
        "train.save_attention_scores": None,  # every estimator writes its scores
        **dict.fromkeys(("train.saving_epoch", "train.cur_epoch"), None),  # state of the public loop
        **dict.fromkeys(("prep.replace_combined_exp_edges", "prep.default_initial"), None),  # of an earlier version
        "prep.num_edge_sets": (1,),  # of prep.load_edges
        "prep.edge_set_name": None,
        **{f"train.{key}": None for key in EARLIER},
        "gt.activation": ("relu",),  # a ReLU always
    },
)
