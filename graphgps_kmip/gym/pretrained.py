"""``pretrained.*``: begin with the settings and parameters of an earlier run, of ours or of a public code.

As GraphGPS does (Rampášek et al. 2022, appendix on fine-tuning): the earlier run decides what the network is made of,
the YAML at hand what it predicts.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn
from torch_geometric.graphgym.config import cfg
from yacs.config import CfgNode

from graphgps_kmip.common.yaml_files import flatten
from graphgps_kmip.compat.checkpoint_names import choose_names
from graphgps_kmip.compat.dialects import FOREIGN, name_dialect
from graphgps_kmip.compat.foreign_keys import encoder_with_rrwp, translate_foreign
from graphgps_kmip.compat.key_translation import UNREAD, UNREAD_ELSEWHERE, translate
from graphgps_kmip.compat.parameter_renaming import constants_of, read_state, rename_parameters
from graphgps_kmip.compat.ppgt_keys import HEAD_OPTIONS
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_defaults import check_ranges
from graphgps_kmip.gym.config_loading import load_config, read_settings
from graphgps_kmip.registry import named
from graphgps_kmip.results.run_folder import best_or_newest
from graphgps_kmip.results.run_record import config_file, read_record
from graphgps_kmip.train import CheckpointError

ADOPTED = ("gt", "gnn", "grit", "ppgt")  # groups that the earlier run decides, and those of all encodings
HEADS = ("linear_graph", "linear_node")  # and of these heads the `HEAD_OPTIONS`, which in PPGT's code are keys of gnn
OWN = "posenc_RRWP.where"  # how they are computed changes no number: as here, like GRIT's and PPGT's dataset.pe_*
# Must be as in the earlier run: the network and the encoders that its parameters are of.
EQUAL = ("model.type",) + tuple(
    f"dataset.{kind}_encoder{part}" for kind in ("node", "edge") for part in ("", "_name", "_bn")
)
KEPT = ("gnn.head", "gnn.layers_post_mp", "gnn.act", "gnn.dropout")  # what the YAML at hand decides of these groups
LOGGED = ("model.graph_pooling", "model.edge_decoding", *KEPT)  # a difference is logged
WRITTEN = ("dialect", "quirks", "custom_modules")  # stand in every config.yaml of ours, together in no other


def adopt_settings() -> None:
    """Enter the settings of the earlier run into ``cfg``; nothing where ``pretrained.dir`` is empty.

    Taken over are all of ``posenc_*`` and `ADOPTED` but those of `KEPT` and `OWN`, and options of `HEADS`. ``cfg`` must
    be open.

    Raises:
        ConfigError: the folder or its config.yaml is missing, or the runs differ in one of `EQUAL`.
    """
    if not cfg.pretrained.dir:
        return
    file = _config_file()
    theirs = _settings_of(file)
    if cfg.dialect == "grit":  # its network reads RRWP wherever it is enabled, which the earlier run decides
        cfg.dataset.node_encoder_name = encoder_with_rrwp(cfg.dataset.node_encoder_name, theirs.posenc_RRWP.enable)
    for key in EQUAL:
        if _value(theirs, key) != _value(cfg, key):
            raise ConfigError(
                f"pretrained.dir: {key} is {_value(theirs, key)!r} in {file} and {_value(cfg, key)!r} here: its "
                "parameters fit only where they are equal"
            )
    for key in LOGGED:
        if _value(theirs, key) != _value(cfg, key):
            logging.warning("pretrained: %s was %s, here it is %s", key, _value(theirs, key), _value(cfg, key))
    _adopt_head(theirs)
    kept = {key: _value(cfg, key) for key in (*KEPT, OWN)}
    for group in (*ADOPTED, *(key for key in cfg if key.startswith("posenc_"))):
        cfg[group] = theirs[group]
    for key, value in kept.items():
        group, leaf = key.split(".")
        cfg[group][leaf] = value
    cfg.model.auto_satisfy_param_budget = False  # the width is that of the earlier run
    check_ranges(cfg, {})
    groups = ", ".join((*ADOPTED, "posenc_*"))
    logging.info("pretrained: %s (without %s) are those of %s", groups, ", ".join((*KEPT, OWN)), file)


def _adopt_head(theirs: CfgNode) -> None:
    """Take over norms and number of outputs of PPGT's heads, from one for graphs to one for nodes, too."""
    names = {name: spec.name for name, spec in named("head").items()}
    earlier, here = names.get(theirs.gnn.head), names.get(cfg.gnn.head)
    if not {earlier, here} <= set(HEADS):
        return
    for key in HEAD_OPTIONS:
        before, cfg.head[here][key] = cfg.head[here][key], theirs.head[earlier][key]
        if before != cfg.head[here][key]:
            logging.warning("pretrained: head.%s.%s is %s, as it was, not %s", here, key, cfg.head[here][key], before)


def load_parameters(model: nn.Module) -> None:
    """Give a new model the parameters of the earlier run; nothing where ``pretrained.dir`` is empty.

    The prediction head stays new where ``pretrained.reset_prediction_head`` says so. ``pretrained.freeze_main`` trains
    the head alone; batch norms elsewhere go on with their running statistics, as in GraphGPS.

    Raises:
        ConfigError: the folder is missing.
        CheckpointError: it has no checkpoint, or its best, else its newest one does not fit the model.
    """
    if not cfg.pretrained.dir:
        return
    path, new_head = _checkpoint(), cfg.pretrained.reset_prediction_head
    own, state = model.state_dict(), read_state(path)
    head = _head(own)
    left = {"left": rf"^{re.escape(head)}"} if new_head else {}
    full = rename_parameters(state, own, choose_names(state), path, constants=constants_of(model), **left)
    model.load_state_dict(full)
    if cfg.pretrained.freeze_main:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.removeprefix("model.").startswith(head))
    kind = "a new head" if new_head else "its head"
    frozen = ", all but the head frozen" if cfg.pretrained.freeze_main else ""
    logging.info("pretrained: parameters of %s, %s%s", path, kind, frozen)


def _head(own: Iterable[str]) -> str:
    """Return how names of the prediction head begin: PPGT's stands inside of a module with its last norm."""
    inside = any(name.removeprefix("model.").startswith("head.head.") for name in own)
    return "head.head." if inside else "head."


def _run_dir() -> Path:
    """Return the folder of the earlier run: ``<dir>/<seed>``."""
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
    own = config_file(run_dir, read_record(run_dir))
    places = (own, run_dir / cfg.cfg_dest, run_dir.parent / cfg.cfg_dest)  # the last: GraphGPS's
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise ConfigError(
            f"pretrained.dir: there is neither {places[1]} nor {places[2]}: put the config of that run there"
        )
    return found


def _checkpoint() -> Path:
    run_dir = _run_dir()
    path = best_or_newest(run_dir)
    if path is None:
        raise CheckpointError(
            f"pretrained.dir: no checkpoint in {run_dir / 'ckpt'}; train that run with train.enable_ckpt True, "
            "or choose another pretrained.seed."
        )
    return path


def _settings_of(file: Path) -> CfgNode:
    """Return the earlier run's settings in our keys, as far as they matter here; others are left at their defaults."""
    settings = read_settings(file)
    ours = set(WRITTEN) <= {key for key, _, _ in settings}  # then all of it stands there, in our meaning
    dialect = "" if ours else _dialect_of(settings)
    if dialect in FOREIGN:
        settings = translate_foreign(settings, FOREIGN[dialect])
    known = CfgNode()
    load_config(known, None, [])
    keys = {key for key, _ in flatten(known)} - {*UNREAD, *UNREAD_ELSEWHERE}
    matter = [(key, value) for key, value, _ in settings if key in (*EQUAL, *LOGGED) or _is_adopted(key)]
    read = [(key, value) for key, value in matter if translate(key, value)[0] in keys]
    if len(read) < len(matter):  # what a code notes down while it runs, too
        left = sorted({key for key, _ in matter} - {key for key, _ in read})
        logging.info("pretrained: of %s nothing reads %s", file, ", ".join(left))
    theirs = CfgNode()
    try:
        load_config(theirs, None, _as_words([("dialect", dialect), *read]))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    return theirs


def _dialect_of(settings: list[tuple[str, Any, str]]) -> str:
    """Return the dialect of an earlier run of a public code: the file's own, or what its settings and names tell."""
    found = {key: value for key, value, _ in name_dialect(settings)}
    # The codes of the k-MIP paper and of the thesis write the same keys, but gt.layer_norm of a GPSModel is
    # torch_geometric's LayerNorm in the one and its GraphNorm in the other: the parameters tell which.
    alike = found["dialect"] == "kmip" and found.get("model.type") == "GPSModel" and found.get("gt.layer_norm")
    named = any(key == "dialect" for key, _, _ in settings)
    if alike and not named and any(name.endswith(".mean_scale") for name in read_state(_checkpoint())):
        logging.info("pretrained: dialect 'kmip-thesis', for the parameters of that run are those of GraphNorms")
        return "kmip-thesis"
    return found["dialect"]


def _is_adopted(key: str) -> bool:
    group, _, rest = key.partition(".")
    return group in ADOPTED or group.startswith("posenc_") or (group == "head" and rest.split(".")[0] in HEADS)


def _as_words(settings: Iterable[tuple[str, Any]]) -> list[str]:
    return [word for key, value in settings for word in (key, json.dumps(value))]


def _value(node: CfgNode, key: str) -> Any:
    for part in key.split("."):
        node = node[part]
    return node
