"""Keys of the public code of PPGT (LiamMa/PPGT, Ma et al. 2025): encoders listed in gt.pos_enc, gt.attn, drop path.

A section of gt.pos_enc lists encoders joined by a plus, the features that they read (pe_name) and their widths
(in_dim), and has a group of options for each of them, or holds the options itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from graphgps_kmip.compat.key_translation import Code
from graphgps_kmip.errors import ConfigError

NETWORK = "BaseGraphNet"
NODE, EDGE, SUBGRAPH = (f"gt.pos_enc.{part}_encoder." for part in ("node", "edge", "subgraph"))
STEM, BLOCKS, TOKEN = f"{EDGE}MLPSinEdgeEncoder.", f"{EDGE}EdgeFFN.", f"{NODE}CLSTokenEmb."
MASK = f"{NODE}NodeMask.mask_rate"

KEYS: dict[str, str] = {
    "gt.norm_fn": "ppgt.norm",
    "gt.pre_backbone_norm": "ppgt.first_norm",
    "gt.post_backbone_norm": "ppgt.last_norm",
    "gt.ffn_ratio": "ppgt.ffn_ratio",
    "gt.act": "ppgt.act",
    "gt.drop_path": "ppgt.drop_path",
    "gt.drop_path_scale": "ppgt.drop_path_scale",
    "gt.layerwise_drop_path_rate": "ppgt.drop_path_by_layer",
    "gt.proj_drop": "ppgt.branch_dropout",
    "gt.ffn_drop": "ppgt.ffn_dropout",
    "gt.class_attn_layers": "ppgt.class_layers",
    "gt.class_attn.drop_path": "ppgt.class_drop_path",
    "gt.attn.urpe": "gt.sl2.urpe",
    "gt.attn.gated_attn": "gt.sl2.gated",
    "gt.attn.qk_norm": "gt.sl2.qk_norm",
    "gt.attn.window_attn_hop": "gt.sl2.window",
    "optim.beta1": "optimizer.adamw.beta1",
    "optim.beta2": "optimizer.adamw.beta2",
    "train.loss_threshold": "brec.loss_threshold",
    "train.k_hop_subgraph": "train.subgraph_hops",
    "train.max_nodes": "train.subgraph_nodes",
    f"{STEM}sin_L": "ppgt.num_bases",
    f"{STEM}add_raw_feat": "ppgt.raw_channels",
    f"{STEM}loc_dim": "ppgt.dim_location",
    f"{STEM}drop_edge": "ppgt.drop_pairs",
    f"{BLOCKS}num_blocks": "ppgt.stem_blocks",
    f"{BLOCKS}ffn_ratio": "ppgt.stem_ffn_ratio",
    f"{BLOCKS}pre_mlp_norm": "ppgt.stem_norm",
    f"{BLOCKS}pre_backbone_norm": "ppgt.stem_first_norm",
    f"{BLOCKS}post_backbone_norm": "ppgt.stem_last_norm",
    f"{BLOCKS}drop_path": "ppgt.stem_drop_path",
    f"{SUBGRAPH}num_layers": "ppgt.subgraph_layers",
    "posenc_I2SG.k_hop": "ppgt.subgraph_hops",
}
# Options of the heads linear_graph and linear_node, with the values that mean none.
HEAD_OPTIONS = {"post_pooling_norm": "none", "out_bn": False, "out_dim": None}
SAN_HEAD = ("gnn.head", "gnn.layers_post_mp", "gnn.dropout")  # what san_graph is here is said by these
# Keys that derive reads, each with others.
TOGETHER = (
    *(f"{section}{key}" for section in (NODE, EDGE, SUBGRAPH) for key in ("enable", "name", "pe_name", "in_dim")),
    *(f"{TOKEN}{key}" for key in ("add_order", "add_log_order")),
    MASK,
    *(f"{STEM}{key}" for key in ("hid_dim", "add_loc", "add_invN", "add_invD")),
    *(f"{group}{key}" for group in ("gt.", BLOCKS) for key in ("layer_scale", "alpha")),
    *(f"{group}kaiming_uniform_{kind}init" for group in (f"{NODE}MLPNodeEncoder.", STEM) for kind in ("", "linear_")),
    *(f"gt.attn.{key}" for key in ("qkv_bias", "o_bias", "l2dist", "learn_k_bias")),
    *(
        "model.type",
        "gt.dim_edge",
        "gt.macro_norm_type",
        "gnn.trunc_init",
        *(f"gnn.{key}" for key in HEAD_OPTIONS),
        *SAN_HEAD,
        "train.cfi_only",
        f"{BLOCKS}drop_path_scale",
    ),
)
NO_NORM = ("none",)
ONLY: dict[str, tuple[Any, ...]] = {
    "gt.pos_enc.coord_encoder.enable": (False,),
    **{f"{NODE}MLPNodeEncoder.{key}": (False,) for key in ("add_invN", "add_invD", "add_loc")},
    **{f"{NODE}MLPNodeEncoder.{key}": (True,) for key in ("bias", "add_to_x")},
    **{f"{NODE}MLPNodeEncoder.{key}": NO_NORM for key in ("raw_norm", "post_norm")},
    f"{NODE}MLPNodeEncoder.hid_dim": ("",),
    **{f"{STEM}{key}": (True,) for key in ("to_complete_graph", "bias", "add_to_edge")},
    **{f"{STEM}{key}": NO_NORM for key in ("raw_norm", "post_norm")},
    **{f"{group}act": ("gelu",) for group in (STEM, BLOCKS, SUBGRAPH)},
    f"{STEM}loc_name": ("pos",),
    **{f"{BLOCKS}{key}": NO_NORM for key in ("post_mlp_norm", "pre_res_post_mlp_norm")},
    **{f"{BLOCKS}{key}": (0,) for key in ("dropout", "proj_drop")},
    **{f"{BLOCKS}{key}": (False,) for key in ("add_weight_norm", "add_spectral_norm", "layerwise_drop_path_rate")},
    f"{BLOCKS}rezero": (False,),
    f"{SUBGRAPH}raw_norm": NO_NORM,
    f"{SUBGRAPH}post_norm": NO_NORM,
    f"{SUBGRAPH}norm": ("batch_norm",),
    f"{SUBGRAPH}pool_norm": ("batch_norm",),
    f"{SUBGRAPH}graph_pool": ("add",),
    f"{SUBGRAPH}to_complete_graph": (True,),
    f"{SUBGRAPH}frozen": (False,),
    "posenc_I2SG.pe_name": ("rrwp",),
    "posenc_I2SG.add_self_loops": (False,),
    "gt.rezero": (False,),
    "gt.lecun_init": (False,),
    "gt.class_attn.layerwise_drop_path_rate": (False,),
    **{f"optim.{key}": (False,) for key in ("EMA", "early_stop_by_lr", "early_stop_by_perf")},
    **{f"posenc_RRWP.{key}": (False, 0) for key in ("add_cls_token", "add_register_tokens")},
}
UNREAD: dict[str, tuple[Any, ...] | None] = {
    "mlflow.use": (False,),
    "mlflow.*": None,
    # the values are the same: posenc_RRWP.where decides
    **dict.fromkeys(("dataset.pe_transform_on_the_fly", "dataset.brec_pe_transform"), None),
    "gt.pos_enc.enable": None,
    f"{NODE}raw_norm": None,  # the group of each encoder has its own
    f"{NODE}post_norm": None,
    f"{EDGE}raw_norm": None,
    f"{EDGE}post_norm": None,
    f"{STEM}dropout": (0,),
    f"{STEM}add_invDsqrt": (False,),
    "posenc_RRWP.add_node_attr": None,
    "posenc_RRWP.add_uniform": None,
    "posenc_addX.enable": None,  # graphs of BREC have features, zeros
    "posenc_I2SG.enable": None,
    "gt.class_attn.*": None,
    "gt.attn.zero_token": (False,),  # a parameter that nothing reads
    **{
        f"gt.attn.{key}": None for key in "learned_scale gate deg_scaler clamp act lecun_init norm_P norm_e O_e".split()
    },
    "model.loss_threshold": None,
    "model.label_smoothing": (0,),  # cross_entropy does not read it
    "train.num_workers": None,  # of its sampler, which draws all subgraphs before training
    "val.batch_size": None,
}
# Features of nodes by pe_name, and encoders that are features themselves.
FEATURES = {"rrwp": "rrwp", "log_deg": "log_degree", "log_order": "log_order", "pos": "location"}
TOKENS = {"TargetNodeEmb": "target", "CLSTokenEmb": "class_token"}


def derive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return ours for the keys of `TOGETHER` in the settings."""
    result: dict[str, Any] = {}
    if "model.type" in settings:
        result["model.type"] = settings["model.type"]
    if settings.get("model.type") == NETWORK:
        _check_whole(settings)
        result["model.type"] = "PPGT"
    if settings.get(f"{NODE}enable"):
        result |= _derive_node_features(settings)
    if settings.get(f"{EDGE}enable"):
        result |= _derive_pair_features(settings)
    if settings.get(f"{SUBGRAPH}enable"):
        _list_encoders(settings, SUBGRAPH, ("I2GINEncoder",))
        _require(settings, f"{SUBGRAPH}pool_norm", "batch_norm")
        result["ppgt.subgraph_encoder"] = "I2GIN"
    for our_key, group, start in (("ppgt.layer_scale", "gt.", 1.0), ("ppgt.stem_layer_scale", BLOCKS, 0.1)):
        if f"{group}layer_scale" in settings:
            result[our_key] = float(settings.get(f"{group}alpha", start)) if settings[f"{group}layer_scale"] else 0.0
    if settings.get("gt.dim_edge") not in (None, "none", "None"):
        result["ppgt.dim_pair"] = settings["gt.dim_edge"]
    if settings.get("train.cfi_only"):
        result["brec.pairs"] = "cfi"
    return result | _derive_head(settings) | _derive_attention(settings)


def _derive_head(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the head that a file names, which only linear heads may have."""
    options = {key: settings.get(f"gnn.{key}", default) for key, default in HEAD_OPTIONS.items()}
    options = {key: value for key, value in options.items() if value not in (HEAD_OPTIONS[key], "None")}
    name = str(settings.get("gnn.head", "default")).removesuffix("_nodecay")
    if options and name not in ("linear_graph", "linear_node"):
        key, value = next(iter(options.items()))
        raise ConfigError(f"gnn.{key} {value}: here the heads linear_graph and linear_node alone have it, not {name}")
    result = {key: settings[key] for key in SAN_HEAD if key in settings}
    if name == "san_graph":  # here as many hidden layers as gnn.layers_post_mp says, none narrower than the outputs
        layers = settings.get("gnn.layers_post_mp", 2)
        result |= {"gnn.head": "linear_graph", "head.linear_graph.halve_widths": True, "gnn.dropout": 0.0}
        result["gnn.layers_post_mp"] = layers + 1 if isinstance(layers, int) else layers
    return result | {f"head.{name}.{key}": value for key, value in options.items()}


def _check_whole(settings: Mapping[str, Any]) -> None:
    _require(settings, "gt.macro_norm_type", "pre_norm")
    _require(settings, "gnn.trunc_init", True)
    if settings.get(f"{BLOCKS}drop_path"):
        _require(settings, f"{BLOCKS}drop_path_scale", settings.get("gt.drop_path_scale", True), default=True)
    for group in (f"{NODE}MLPNodeEncoder.", STEM):
        if not any(settings.get(f"{group}kaiming_uniform_{kind}init") for kind in ("", "linear_")):
            raise ConfigError(f"{group}kaiming_uniform_init: this package draws the stem so alone: set it True")


def _require(settings: Mapping[str, Any], key: str, needed: Any, default: Any = None) -> None:
    if settings.get(key, default) != needed:
        raise ConfigError(f"{key} {settings.get(key, 'is not set')}: this package has only {needed}: set it so")


def _list_encoders(settings: Mapping[str, Any], section: str, allowed: tuple[str, ...]) -> list[str]:
    names = str(settings.get(f"{section}name", "")).split("+")
    for name in names:
        if name not in allowed:
            raise ConfigError(f"{section}name {'+'.join(names)}: this package has only {', '.join(allowed)}")
    return names


def _derive_node_features(settings: Mapping[str, Any]) -> dict[str, Any]:
    names = _list_encoders(settings, NODE, ("MLPNodeEncoder", "NodeMask", *TOKENS))
    read = str(settings.get(f"{NODE}pe_name", "")).split("+")
    widths = str(settings.get(f"{NODE}in_dim", "")).split("+")
    features, result = [], dict[str, Any]()
    if "NodeMask" in names and settings.get(MASK):
        if names[0] != "NodeMask" or read[0] != "x" or names.count("NodeMask") > 1:
            raise ConfigError(f"{NODE}name {'+'.join(names)}: this package has NodeMask once, first, with pe_name x")
        result["ppgt.mask_rate"] = settings[MASK]
    for name, feature, width in zip(names, read, widths, strict=False):
        if name == "MLPNodeEncoder":
            if feature not in FEATURES:
                raise ConfigError(f"{NODE}pe_name {feature}: this package has only {', '.join(FEATURES)}")
            features.append(FEATURES[feature])
            if feature == "pos":
                result["ppgt.dim_location"] = int(width)
        elif name in TOKENS:
            features.append(TOKENS[name])
    if unused := read[len(names) :]:
        logging.warning(
            "config: %spe_name names %s, for which there is no encoder: not used, as in the public code; append it to "
            "ppgt.node_features (%s) to use it",
            NODE,
            " and ".join(unused),
            "+".join(features),
        )
    orders = [order for order in ("order", "log_order") if settings.get(f"{TOKEN}add_{order}")]
    return result | {"ppgt.node_features": "+".join(features), "ppgt.class_token": (orders or ["none"])[0]}


def _derive_pair_features(settings: Mapping[str, Any]) -> dict[str, Any]:
    names = _list_encoders(settings, EDGE, ("MLPSinEdgeEncoder", "EdgeFFN"))
    if names not in (["MLPSinEdgeEncoder"], ["MLPSinEdgeEncoder", "EdgeFFN"]):
        raise ConfigError(f"{EDGE}name {'+'.join(names)}: this package has only MLPSinEdgeEncoder, then EdgeFFN or not")
    added = {"location": "add_loc", "inverse_order": "add_invN", "inverse_degree": "add_invD"}
    hidden = str(settings.get(f"{STEM}hid_dim", ""))
    return {
        "ppgt.pair_features": "+".join(name for name, key in added.items() if settings.get(f"{STEM}{key}")),
        "ppgt.stem_hidden": [int(width) for width in hidden.split(",") if width],
    }


def _derive_attention(settings: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    if {"gt.attn.qkv_bias", "gt.attn.o_bias"} & settings.keys():
        bias, of_outputs = (settings.get(f"gt.attn.{key}", True) for key in ("qkv_bias", "o_bias"))
        if bias != of_outputs:
            raise ConfigError("gt.attn.qkv_bias and o_bias differ: this package has both or none: set both alike")
        result["gt.sl2.bias"] = bias
    if {"gt.attn.l2dist", "gt.attn.learn_k_bias"} & settings.keys():
        learned = "learned" if settings.get("gt.attn.learn_k_bias") else "fixed"
        result["gt.sl2.key_norm"] = learned if settings.get("gt.attn.l2dist", True) else "none"
    return result


PPGT = Code("ppgt", KEYS, TOGETHER, derive, ONLY, UNREAD)
