"""Keys of public codes whose files have their own groups, and ours: GRIT and the low-width method; PPGT: ``ppgt_keys``.

GRIT: LiamMa/GRIT, Ma et al. 2023. Low-width method: hamed1375/Sp_Exphormer. Keys in no table of a `Code` stay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from graphgps_kmip.compat.key_translation import log_settings
from graphgps_kmip.errors import ConfigError

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
    **{f"gt.{key}": f"grit.{key}" for key in ("bn_momentum", "bn_no_runner", "rezero")},
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
