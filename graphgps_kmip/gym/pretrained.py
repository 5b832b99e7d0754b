"""``pretrained.*``: begin with settings and parameters of an earlier run (Rampášek et al. 2022, on fine-tuning)."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from torch import nn
from torch_geometric.graphgym.config import cfg
from yacs.config import CfgNode

from graphgps_kmip.common.yaml_files import flatten
from graphgps_kmip.compat.checkpoint_names import choose_names
from graphgps_kmip.compat.dialects import FOREIGN, name_dialect
from graphgps_kmip.compat.key_translation import (
    UNREAD,
    UNREAD_ELSEWHERE,
    encoder_with_rrwp,
    translate,
    translate_foreign,
)
from graphgps_kmip.compat.parameter_renaming import list_constants, read_state, rename_parameters
from graphgps_kmip.compat.ppgt_keys import HEAD_OPTIONS
from graphgps_kmip.errors import CheckpointError, ConfigError
from graphgps_kmip.gym.config_defaults import check_ranges
from graphgps_kmip.gym.config_loading import enter_settings, load_config, read_settings
from graphgps_kmip.registry import named
from graphgps_kmip.results.run_folder import best_or_newest
from graphgps_kmip.results.run_record import config_file, read_record

ADOPTED = ("gt", "gnn", "ppgt")  # groups that the earlier run decides, and those of all encodings
HEADS = ("linear_graph", "linear_node")  # and of these heads the `HEAD_OPTIONS`, which in PPGT's code are keys of gnn
# What the YAML at hand decides of these groups; how RRWP is computed changes no number, like dataset.pe_* elsewhere.
HEAD_KEYS = ("gnn.head", "gnn.layers_post_mp", "gnn.act", "gnn.dropout")
NOT_ADOPTED = (*HEAD_KEYS, "posenc_RRWP.where")
# Must be as in the earlier run: the network and the encoders that its parameters are of.
EQUAL = ("model.type",) + tuple(
    f"dataset.{kind}_encoder{part}" for kind in ("node", "edge") for part in ("", "_name", "_bn")
)
LOGGED = ("model.graph_pooling", "model.edge_decoding", *HEAD_KEYS)  # a difference is logged
WRITTEN = {"dialect", "quirks", "custom_modules"}  # in every config.yaml of ours, together in no other


def adopt_settings() -> None:
    """Enter the settings of the earlier run into ``cfg``, which must be open; nothing without ``pretrained.dir``."""
    if not cfg.pretrained.dir:
        return
    file = _config_file()
    earlier = _earlier_settings(file)
    if cfg.dialect == "grit":  # its network reads RRWP wherever it is enabled, which the earlier run decides
        cfg.dataset.node_encoder_name = encoder_with_rrwp(cfg.dataset.node_encoder_name, earlier.posenc_RRWP.enable)
    before, here = dict(flatten(earlier)), dict(flatten(cfg))
    for key in EQUAL:
        if before[key] != here[key]:
            raise ConfigError(
                f"pretrained.dir: {key} is {before[key]!r} in {file} and {here[key]!r} here: its "
                "parameters fit only where they are equal"
            )
    for key in LOGGED:
        if before[key] != here[key]:
            logging.warning("pretrained: %s was %s, here it is %s", key, before[key], here[key])
    _adopt_head(earlier)
    for group in (*ADOPTED, *(key for key in cfg if key.startswith("posenc_"))):
        cfg[group] = earlier[group]
    for key in NOT_ADOPTED:
        group, leaf = key.split(".")
        cfg[group][leaf] = here[key]
    cfg.model.auto_satisfy_param_budget = False  # the width is that of the earlier run
    check_ranges(cfg, {})
    groups = ", ".join((*ADOPTED, "posenc_*"))
    logging.info("pretrained: %s (without %s) are those of %s", groups, ", ".join(NOT_ADOPTED), file)


def _adopt_head(earlier: CfgNode) -> None:
    names = {name: spec.name for name, spec in named("head").items()}
    before, here = names.get(earlier.gnn.head), names.get(cfg.gnn.head)
    if not {before, here} <= set(HEADS):
        return
    for key in HEAD_OPTIONS:
        old, new = cfg.head[here][key], earlier.head[before][key]
        cfg.head[here][key] = new
        if old != new:
            logging.warning("pretrained: head.%s.%s is %s, as it was, not %s", here, key, new, old)


def load_parameters(model: nn.Module) -> None:
    """Give a new model the parameters of the earlier run's best checkpoint, else its newest; nothing without a run.

    With ``pretrained.freeze_main`` batch norms outside of the head go on with their running statistics, as in GraphGPS.
    """
    if not cfg.pretrained.dir:
        return
    path, new_head = _checkpoint(), cfg.pretrained.reset_prediction_head
    values, state = model.state_dict(), read_state(path)
    in_module = any(name.removeprefix("model.").startswith("head.head.") for name in values)  # PPGT's, with a last norm
    head = "head.head." if in_module else "head."
    left = {"left": rf"^{re.escape(head)}"} if new_head else {}
    full = rename_parameters(state, values, choose_names(state), path, constants=list_constants(model), **left)
    model.load_state_dict(full)
    if cfg.pretrained.freeze_main:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.removeprefix("model.").startswith(head))
    kind = "a new head" if new_head else "its head"
    frozen = ", all but the head frozen" if cfg.pretrained.freeze_main else ""
    logging.info("pretrained: parameters of %s, %s%s", path, kind, frozen)


def _run_dir() -> Path:
    folder = Path(cfg.pretrained.dir)
    if not folder.is_dir():
        raise ConfigError(f"pretrained.dir: there is no folder {folder}: name that of the YAML's runs, above the seeds")
    seed = cfg.seed if cfg.pretrained.seed < 0 else cfg.pretrained.seed
    if not (folder / str(seed)).is_dir():
        there = ", ".join(sorted(path.name for path in folder.iterdir() if path.name.isdecimal())) or "none"
        raise ConfigError(f"pretrained.seed: {folder} has no run {seed}: choose one of those there ({there})")
    return folder / str(seed)


def _config_file() -> Path:
    run_dir = _run_dir()
    places = (run_dir / cfg.cfg_dest, run_dir.parent / cfg.cfg_dest)  # the second: GraphGPS's
    file = next((path for path in (config_file(run_dir, read_record(run_dir)), *places) if path.is_file()), None)
    if file is None:
        raise ConfigError(
            f"pretrained.dir: there is neither {places[0]} nor {places[1]}: put the config of that run there"
        )
    return file


def _checkpoint() -> Path:
    path = best_or_newest(_run_dir())
    if path is None:
        raise CheckpointError(
            f"pretrained.dir: no checkpoint in {_run_dir() / 'ckpt'}; train that run with train.enable_ckpt True, "
            "or choose another pretrained.seed."
        )
    return path


def _earlier_settings(file: Path) -> CfgNode:
    settings = read_settings(file)
    dialect = "" if {key for key, _, _ in settings} >= WRITTEN else _find_dialect(settings)
    if dialect in FOREIGN:
        settings = translate_foreign(settings, FOREIGN[dialect])
    defaults = CfgNode()
    load_config(defaults, None, [])
    keys = {key for key, _ in flatten(defaults)} - {*UNREAD, *UNREAD_ELSEWHERE}
    adopted = [row for row in settings if row[0] in (*EQUAL, *LOGGED) or _is_adopted(row[0])]
    read = [row for row in adopted if translate(row[0], row[1])[0] in keys]
    if len(read) < len(adopted):  # what a code notes down while it runs, too
        left = sorted({key for key, *_ in adopted} - {key for key, *_ in read})
        logging.info("pretrained: of %s nothing reads %s", file, ", ".join(left))
    earlier = CfgNode()
    enter_settings(earlier, [("dialect", dialect, str(file)), *read], None)
    return earlier


def _find_dialect(settings: list[tuple[str, Any, str]]) -> str:
    values = {key: value for key, value, _ in name_dialect(settings)}
    # The codes of the k-MIP paper and of the thesis write the same keys, but gt.layer_norm of a GPSModel is
    # torch_geometric's LayerNorm in the one and its GraphNorm in the other: the parameters tell which.
    alike = values["dialect"] == "kmip" and values.get("model.type") == "GPSModel" and values.get("gt.layer_norm")
    is_named = any(key == "dialect" for key, _, _ in settings)
    if alike and not is_named and any(name.endswith(".mean_scale") for name in read_state(_checkpoint())):
        logging.info("pretrained: dialect 'kmip-thesis', for the parameters of that run are those of GraphNorms")
        return "kmip-thesis"
    return values["dialect"]


def _is_adopted(key: str) -> bool:
    group, _, rest = key.partition(".")
    return group in ADOPTED or group.startswith("posenc_") or (group == "head" and rest.split(".")[0] in HEADS)
