"""The config hash: equal for two runs whose numbers should be equal."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch_geometric.graphgym import register
from torch_geometric.graphgym.config import set_cfg
from yacs.config import CfgNode

from graphgps_kmip.compat.key_translation import UNREAD
from graphgps_kmip.data.node_loader import NODE2SUBGRAPH
from graphgps_kmip.gym.config_defaults import NAME
from graphgps_kmip.gym.config_loading import flatten
from graphgps_kmip.gym.sparse_settings import is_sparse
from graphgps_kmip.registry import KINDS, entries, named, with_groups

# Where and how comfortably a run happens, or what is derived from the data: without influence on its numbers.
NOT_HASHED = frozenset(
    """out_dir run_dir cfg_dest name_tag print num_workers num_threads accelerator devices gpu_mem benchmark view_emb
    params run_multiple_splits custom_modules tensorboard_each_run tensorboard_agg dataset.dir dataset.edge_dim
    dataset.cache_edges train.auto_resume train.epoch_resume train.enable_ckpt train.ckpt_period train.ckpt_clean
    train.ckpt_best spexphormer.scores spexphormer.estimator""".split()
)

# Where model.auto_satisfy_param_budget searches for them, they follow from the other settings.
SEARCHED = frozenset({"gnn.dim_inner", "gt.dim_hidden", "graphormer.embed_dim", "gt.kmip.dim_val"})

# Keys that name components, some of them joined by a plus.
NAMING = tuple(sorted({kind.key for kind in KINDS.values()} | {"gnn.layer_type", "gnn.layer_act"}))


# Message passing layers of ours that give edge features back as they were; those among them that read none.
KEEP_EDGES = frozenset("GCN APPNP GIN GINE GAT GATv2 GraphSAGE GENConv PNA".split())
WITHOUT_EDGES = frozenset("GCN APPNP GIN GraphSAGE".split())

# Keys that came later: left out at these values, so that runs of before keep their hash.
ABSENT: dict[str, tuple[Any, ...]] = {
    "dataset.edge_norm_on_nodes": (False,),
    "dataset.split_seed": (-1,),
    "prep.exp_seed": (-1,),
    "gt.sparse_attn_dropout": (None,),
    "gt.FFN": (True,),
    "dataset.sample_graphs": (0,),
    "posenc_RRWP.sparse": (False,),
    "prep.node_order": ("natural",),
    "train.early_stop_patience": (0,),
    "recipe.local_residual": (True,),
    "recipe.attention_residual": (True,),
    "recipe.ffn": (True,),
    "recipe.norm_place": ("post",),
    "recipe.order": ("parallel",),
    "recipe.jump": ("none",),
    "recipe.feature_dropout": (0.0,),
    "recipe.edge_dropout": (0.0,),
    "recipe.attention_layer_scale": (0.0,),
    "recipe.local_residual_map": ("identity",),
    "recipe.dropout_place": ("branches",),
    "optimizer.adamw.beta1": (0.9,),
    "optimizer.adamw.beta2": (0.999,),
    "ppgt.mask_rate": (0.0,),
    "head.linear_node.post_pooling_norm": ("none",),
    "head.linear_node.out_bn": (False,),
    "head.linear_node.out_dim": (0,),
}
# Groups and keys of networks that came later -> model.type: their keys count for that network alone.
OF_NETWORKS = {"grit.": "GritTransformer", "ppgt.": "PPGT"} | dict.fromkeys(
    ("gt.FFN", "network.spexphormer."), "Spexphormer"
)
# Groups of components that came later: as those that others registered, they count where the config names them.
LATER = frozenset(
    {"posenc_RRWP", "gt.sl2", "gt.grit", "gt.geco", "gt.hyena", "gt.score_estimator", "head.linear_graph"}
    | {"head.linear_node", "posenc_SVD", "gt.appnp", "network.polynormer", "network.sgformer"}
)


def config_hash(cfg: CfgNode, of_run: bool = True) -> str:
    """Return 12 hex digits over all settings that matter, and over the text of the user's own modules.

    Options of components that others registered count if the config names their module or the component, or sets
    them: what else a process has imported changes nothing.

    Args:
        cfg: the config.
        of_run: seed and split count too; False: one hash for all runs of an experiment, which may be averaged.
    """
    left_out = NOT_HASHED if of_run else NOT_HASHED | {"seed", "dataset.split_index"}
    if cfg.model.auto_satisfy_param_budget:
        left_out |= SEARCHED
    settings = dict(flatten(cfg))
    left_out |= _of_others(settings, cfg.custom_modules) | _came_later(settings)
    if cfg.train.mode != "brec":  # they came later, and nothing else reads them
        left_out |= {key for key in settings if key.startswith("brec.")}
    if cfg.train.sampler != NODE2SUBGRAPH:  # likewise
        left_out |= {key for key in settings if key.startswith("train.subgraph_")}
    if not is_sparse(cfg):
        left_out |= {key for key in settings if key.startswith("spexphormer.")}
    kept = {"gt.kmip.shard": False}  # a key of before, so that its runs keep their hash
    kept |= {
        key: value
        for key, value in settings.items()
        if key not in left_out and key not in UNREAD and not key.startswith(("wandb.", "share."))
    }
    if changed := _changed_mathematics(settings):
        kept["changed mathematics"] = changed
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode())
    for name in cfg.custom_modules:
        path = Path(name)
        digest.update(path.read_bytes() if path.is_file() else name.encode())
    return digest.hexdigest()[:12]


def _changed_mathematics(settings: Mapping[str, Any]) -> list[str]:
    """Return which settings compute other numbers than the code that finished earlier runs of them.

    Only these settings get another hash by it: their earlier runs are no results of this code.
    """
    changed = []
    if settings["gnn.head"] == "san_graph" and (settings["gnn.layer_act"] or settings["gnn.act"]) != "relu":
        changed.append("san_graph has the activation of the layers")  # a ReLU before
    if settings["model.type"] == "MultiModel" and _chains_edges(settings):
        changed.append("branches of MultiModel read the edges of the branch before")  # those of the layer before
    normed = settings["dataset.node_encoder_bn"] or settings["dataset.edge_norm_on_nodes"]
    if normed and "RRWP" in settings["dataset.node_encoder_name"].split("+"):
        changed.append("RRWP is added after the norm of nodes")  # before it
    if settings["train.precision"] == "64-true" and settings["train.mode"] != "brec":
        changed.append("the loss is computed in float64")  # in float32
    return changed


def _chains_edges(settings: Mapping[str, Any]) -> bool:
    """Return whether a message passing branch changes edge features that a later one in the same layer reads."""
    known, changed = named("message_passing"), False
    for row in (known.get(name) for name in str(settings["gt.layer_type"]).split("+")):
        if row is None:  # an attention, no branch, or a branch along the expander, which has edges of its own
            continue
        if changed and row.name not in WITHOUT_EDGES and settings.get(f"{row.group}.use_edge_attr", True):
            return True
        changed |= row.name not in KEEP_EDGES
    return False


def _came_later(settings: Mapping[str, Any]) -> set[str]:
    """Return the keys of `ABSENT` whose values mean what was computed before they existed, and of other networks."""
    absent = ABSENT | {"gt.sparse_attn_dropout": (None, settings["gt.attn_dropout"])}
    known, branches = named("message_passing"), str(settings["gt.layer_type"]).split("+")
    gated = any(getattr(known.get(name), "name", "") == "GatedGCN" for name in branches)
    absent |= {"gt.gatedgcn.outer_residual": (False,) if gated else (False, True)}
    spec = named("network").get(settings["model.type"])
    unread = tuple(group for group, network in OF_NETWORKS.items() if spec is None or spec.name != network)
    return {key for key in settings if key.startswith(unread) or settings[key] in absent.get(key, ())}


def _of_others(settings: Mapping[str, Any], modules: Iterable[str]) -> set[str]:
    """Return the keys of a config that are there only because others, or this code later, registered them."""
    foreign = settings.keys() - _built_in_keys()
    if not foreign:
        return set()
    owners = _owners(foreign)
    defaults = _all_defaults()
    names = {name for key in NAMING for name in str(settings.get(key, "")).split("+")} - {""}
    return {
        key
        for key in foreign
        if settings[key] == defaults.get(key, settings[key])
        and not any(_names(module, modules) or name in names for name, module in owners[key])
    }


@functools.cache
def _built_in_keys() -> frozenset[str]:
    """Return the keys that GraphGym and this package declare by themselves."""
    others = {key: entry for key, entry in register.config_dict.items() if key != NAME}
    foreign = _foreign_groups()
    keys = {key for key in _defaults(without=others) if not key.startswith(tuple(foreign))}
    return frozenset(keys)


def _foreign_groups() -> dict[str, tuple[str, str]]:
    """Return group and dot -> name and module of each component beside the built-in ones, or among the `LATER`."""
    specs = [*with_groups(), *entries("encoding").values()]
    beside = [spec for spec in specs if spec.group in LATER or not spec.module.startswith(f"{NAME}.")]
    return {f"{spec.group}.": (spec.name, spec.module) for spec in beside}


def _owners(foreign: Iterable[str]) -> dict[str, list[tuple[str, str]]]:
    """Return key -> (name, module) of what registered it; the name is empty where no component has it."""
    groups = _foreign_groups()
    owners = {key: [owner for group, owner in groups.items() if key.startswith(group)] for key in foreign}
    unknown = [key for key, found in owners.items() if not found]
    for name, declare in register.config_dict.items() if unknown else ():
        if name == NAME:
            continue
        own = _defaults(without={name: declare}).keys()
        for key in unknown:
            if key not in own:
                owners[key].append(("", declare.__module__))
    return owners


def _all_defaults() -> dict[str, Any]:
    return _defaults(without={})


def _defaults(without: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of all keys, or of those that are declared without some config functions."""
    declared = dict(register.config_dict)
    node = CfgNode()
    try:
        for name in without:
            del register.config_dict[name]
        set_cfg(node)
    finally:
        register.config_dict.clear()
        register.config_dict.update(declared)
    return dict(flatten(node))


def _names(module: str, modules: Iterable[str]) -> bool:
    """Return whether `custom_modules` names a module, by its path or its dotted name."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return module in modules or (file is not None and str(Path(file).resolve()) in modules)
