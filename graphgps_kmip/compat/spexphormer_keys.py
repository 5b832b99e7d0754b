"""Keys of the public code of the low-width method (hamed1375/Sp_Exphormer): temperatures, sampling, its two stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from graphgps_kmip.compat.foreign_keys import Code, Setting

DEGREE = "train.edge_sample_num_neighbors"
PUBLIC_DEGREE = [6, 4, 4, 4, 4, 4]  # of a file that does not say it, one number for each layer
LAYERS = 3
SPARSE, ESTIMATOR = "_spexphormer.yaml", "_ASE.yaml"  # how the files of the two stages end

KEYS: dict[str, str] = {
    "train.temp_rdc_ratio": "gt.score_estimator.temp_ratio",
    "train.temp_min": "gt.score_estimator.temp_min",
    "train.temp_wait": "gt.score_estimator.temp_wait",
    "gt.use_edge_feats": "gt.score_estimator.use_edge_types",
    "train.spexphormer_sampler": "spexphormer.sampler",
    "train.resampling_epochs": "spexphormer.resampling_epochs",
}
TOGETHER = ("dataset.format", "gt.layer_type", DEGREE)
ONLY: dict[str, tuple[Any, ...]] = {
    "gt.JK": (False,),
    "prep.load_edges": (False,),
    "prep.save_edges": (False,),
}
# What nothing reads in the public code either, or what has no meaning here.
UNREAD: dict[str, tuple[Any, ...] | None] = {
    "train.save_attention_scores": None,  # every estimator writes its scores
    "train.saving_epoch": None,  # state of the public loop
    "train.cur_epoch": None,
    "prep.replace_combined_exp_edges": None,  # of an earlier version of the public code
    "prep.default_initial": None,
    "prep.num_edge_sets": (1,),  # of prep.load_edges
    "prep.edge_set_name": None,
    **{
        f"train.{key}": None  # of an earlier version, too
        for key in (
            *("replace_edges", "rotate_edges", "layer_wise_edges", "sample_new_edges"),
            *("number_of_edge_sets", "num_edge_samples"),
        )
    },
    "gt.activation": ("relu",),  # a ReLU always
}
# Its graphs of these formats stay directed, although prep.add_reverse_edges says True.
DIRECTED = ("PyG-actor", "SNAP")


def derive(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ours for the keys of `TOGETHER`; what a file says by our own keys stays."""
    found = {key: given[key] for key in ("dataset.format", "gt.layer_type") if key in given}
    if "gt.dim_hidden" in given:
        found["gnn.dim_inner"] = given["gt.dim_hidden"]  # whose own value its network does not read
    if given.get("gt.layer_type") == "Spexphormer":
        # it takes as many numbers as there are layers
        degrees = given.get(DEGREE, PUBLIC_DEGREE)
        cut = isinstance(degrees, list) and isinstance(given.get("gt.layers", LAYERS), int)
        found["spexphormer.degree"] = degrees[: given.get("gt.layers", LAYERS)] if cut else degrees
    if given.get("dataset.format") in DIRECTED:
        found["prep.add_reverse_edges"] = False
    if given.get("dataset.format") == "PyG-actor":
        found["dataset.normalize_features"] = True  # as its loader does
    kept = ("dataset.format", "gt.layer_type")
    return {key: value for key, value in found.items() if key in kept or key not in given}


def beside(settings: Iterable[Setting]) -> list[Setting]:
    """Return the estimator of a sparse network: the file of the same name, and another ending, beside its own.

    None where the settings name one, or are of no file with such an ending.

    Args:
        settings: of files and command line, in order, by our keys or theirs.
    """
    settings = list(settings)
    if any(key in ("spexphormer.estimator", "spexphormer.scores") and value for key, value, _ in settings):
        return []
    for key, value, origin in settings:
        if key == "gt.layer_type" and value == "Spexphormer" and origin.endswith(SPARSE):
            return [("spexphormer.estimator", Path(origin).name.removesuffix(SPARSE) + ESTIMATOR, origin)]
    return []


SPEXPHORMER = Code("spexphormer", KEYS, TOGETHER, derive, ONLY, UNREAD)
