"""Dialects and quirks: the meanings of the same keys in the public codes, and their faults.

A dialect is a set of values of our settings, and of keys that mean another of ours, chosen by ``dialect: kmip`` or
detected from the settings. A quirk is a fault of a public code; ``quirks: [kmip_no_mask]`` switches it on.
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Callable, Hashable, Iterable
from fnmatch import fnmatchcase
from typing import Any

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.compat.key_translation import GRIT, SPEXPHORMER, Code, Setting, find_estimator, translate_foreign
from graphgps_kmip.compat.ppgt_keys import PPGT
from graphgps_kmip.errors import ConfigError

Config = Any  # GraphGym's tree of settings, whose package `gym` alone imports

QUIRKS: dict[str, dict[str, Any]] = {
    "kmip_no_mask": {"gt.kmip.pad_keys": True},
    "kmip_duplicate_key_0": {"gt.kmip.repeat_first_key": True},
    "performer_unmasked_keys": {"gt.performer.mask_keys": False},
    "performer_detached_stabiliser": {"gt.performer.detach_stabiliser": True},
    "bigbird_padded_blocks": {"gt.bigbird.pattern": "public"},
    "bigbird_global_rng": {"gt.bigbird.pattern": "public_global_rng"},
    "gine_row_1": {"gt.gine.broadcast_row_1": True},
    "graphormer_padded_paths": {"posenc_GraphormerBias.pad_paths": True},
    "graphormer_token_shifts_edges": {"posenc_GraphormerBias.move_edges": False},
    "exphormer_raw_expander": {"prep.exp_raw": True},
    "exphormer_double_edges": {"prep.raw_reverse_edges": True},
    "edge_norm_on_nodes": {"dataset.edge_norm_on_nodes": True},
    "spexphormer_mixed_heads": {"network.spexphormer.mix_heads": True},
}


def _list_branches(cfg: Config) -> set[str]:
    layered = cfg.model.type in ("GPSModel", "MultiModel", "SingleModel")
    return set(cfg.gt.layer_type.split("+")) if layered else set()


def _list_encodings(cfg: Config) -> set[str]:
    return set(cfg.dataset.node_encoder_name.split("+")) if cfg.dataset.node_encoder else set()


def _has_kmip(cfg: Config) -> bool:
    return bool({"kMIP", "SparseAttention"} & _list_branches(cfg))


def _puts_tokens_in(cfg: Config) -> bool:
    names = {name.partition("__")[0] for name in _list_branches(cfg)}
    local = names & {"GINE", "CustomGatedGCN", "GatedGCN", "GAT", "PNA"}
    return "GraphormerBias" in _list_encodings(cfg) and cfg.graphormer.use_graph_token and bool(local)


# Quirk -> whether the public code has the fault with the settings of a file.
MET: dict[str, Callable[[Config], bool]] = {
    "kmip_no_mask": _has_kmip,
    "kmip_duplicate_key_0": _has_kmip,
    "performer_unmasked_keys": lambda cfg: cfg.model.type == "Performer" or "Performer" in _list_branches(cfg),
    "performer_detached_stabiliser": lambda cfg: "Performer" in _list_branches(cfg),  # performer_pytorch's own is exact
    "bigbird_padded_blocks": lambda cfg: "BigBird" in _list_branches(cfg),
    "gine_row_1": lambda cfg: "GINE" in _list_branches(cfg) and "EquivStableLapPE" in _list_encodings(cfg),
    "graphormer_padded_paths": lambda cfg: (
        "GraphormerBias" in _list_encodings(cfg) and cfg.dataset.edge_encoder_num_types > 0
    ),
    "graphormer_token_shifts_edges": _puts_tokens_in,
    "exphormer_raw_expander": lambda cfg: cfg.prep.exp,
    "edge_norm_on_nodes": lambda cfg: cfg.dataset.edge_encoder and cfg.dataset.edge_encoder_bn,
    "spexphormer_mixed_heads": lambda cfg: (
        cfg.model.type == "Spexphormer" and cfg.gt.layer_type == "Spexphormer" and cfg.gt.n_heads > 1
    ),
}


def quirks_met(cfg: Config) -> list[str]:
    """Return the quirks that repeat a loaded file of a public code; a config without a dialect, ours, has none."""
    return [name for name, met in MET.items() if met(cfg)] if cfg.dialect else []


def log_quirks(cfg: Config) -> None:
    """Log in one line the faults that the public code of this file has and that are corrected here."""
    corrected = [name for name in quirks_met(cfg) if name not in cfg.quirks]
    if corrected:
        logging.info(
            "config: faults of the code of dialect %s that concern this file are corrected; "
            "`quirks: [%s]` repeats them (docs/differences.md)",
            cfg.dialect,
            ", ".join(corrected),
        )


DEFAULT_WIDTH = 64  # gt.dim_hidden of the k-MIP codes, as of GraphGPS
NONE = ("none", "None", "null")

# GraphGym's older layers: rows of length 1 after input layers and hidden layers of heads; and a default that most
# public files of whole-model baselines rely on.
L2NORM = {"gnn.l2norm": True}
GRAPHGYM = L2NORM | {"gt.layer_type": "SANLayer"}
SUM = {"optim.accumulation_mean": False}  # the gradients of accumulated batches are added up
RELU = {"gnn.layer_act": "relu"}  # in GPS layers, whatever gnn.act says
KEPT_WEIGHTS = {"gt.sparse_attn_dropout": 0.0}  # gt.attn_dropout reaches neither k-MIP nor Exphormer attention
REVERSE = {"prep.add_reverse_edges": True}  # of graphs whose nodes are classified
KEPT_HEAD = {"pretrained.reset_prediction_head": False, "pretrained.seed": 0}
NARROW_PNA = {"gt.pna.edge_dim": 16}
GRAPH_NORM = {("gt.layer_norm", True): ("gt.graph_norm", True)}
# Only LRGB's code scales the edge features of its superpixels, and with it the paper's k-MIP code those of nodes.
RAW_EDGES = {("dataset.edge_encoder_name", "VOCEdge"): ("dataset.edge_encoder_name", "LinearEdge")}
RAW_VOC = RAW_EDGES | {
    ("dataset.node_encoder_name", name): ("dataset.node_encoder_name", "LinearNode") for name in ("VOCNode", "COCONode")
}
# Matrices for edges on paths without types: nothing reads them, but printed counts and checkpoints include them.
GRAPHORMER = {"posenc_GraphormerBias.unread_tables": True}
BEST_KEPT = {"train.ckpt_best": True}
# On this data set the head predicts all nodes, and the training loop selects those of the split.
ARXIV = ("dataset.name ogbn-arxiv", "gnn.head inductive_node")
NODES_OF_SPLIT = {("gnn.head", "inductive_node"): ("gnn.head", "node")}
# A file that does not list stems and norms has none.
PPGT_DEFAULTS = {
    "posenc_RRWP.channels": "K+1",
    "ppgt.node_features": "",
    "ppgt.pair_features": "",
    "ppgt.num_bases": 5,
    "ppgt.stem_hidden": [],
    "ppgt.stem_blocks": 0,
    "ppgt.stem_ffn_ratio": 1.0,
    "ppgt.subgraph_layers": 5,
    **{f"ppgt.{norm}": "none" for norm in ("stem_norm", "stem_last_norm", "norm", "last_norm")},
}
# name -> our settings, as far as they are not our defaults.
DIALECTS: dict[str, dict[str, Any]] = {
    "graphgps": GRAPHGYM | SUM | GRAPHORMER,
    "exphormer": GRAPHGYM | SUM | RELU | NARROW_PNA | REVERSE | GRAPHORMER | KEPT_WEIGHTS,
    "spexphormer": GRAPHGYM
    | SUM
    | RELU
    | REVERSE
    | KEPT_WEIGHTS
    | {"prep.exp": True, "prep.exp_algorithm": "Hamiltonian", "gt.layer_type": "ExphormerInitial"}
    | {"spexphormer.repeat_missing": True, "dataset.split_seed": 0},
    "lrgb": GRAPHGYM
    | SUM
    | {"gt.gine.inner": "norm_linear", "gnn.gine_inner": "mlp_dropout", "gnn.edge_residual": True},
    "kmip": GRAPHGYM
    | RELU
    | NARROW_PNA
    | {"gt.gatedgcn.residual": False, "gt.gine.inner": "norm_linear", "gnn.edge_residual": True}
    | {"gt.kmip.head_agg": "Linear"}
    | KEPT_WEIGHTS
    | KEPT_HEAD,
    "kmip-thesis": GRAPHGYM | RELU | NARROW_PNA | {"gt.kmip.head_agg": "Linear"} | KEPT_WEIGHTS | KEPT_HEAD,
    "grit": L2NORM | SUM | BEST_KEPT | {"gt.layer_type": "GRIT"},
    "ppgt": L2NORM | SUM | BEST_KEPT | PPGT_DEFAULTS | {"gt.layer_type": "sL2"},
}
# Further settings of networks or data sets: (dialect, model.type), (dialect, model.type, gnn.layer_type) or (dialect,
# dataset.name). The k-MIP code's MultiModel is Exphormer's, whose GatedGCN keeps its residual. In custom_gnn, gnn.act
# reaches neither GraphGPS's layers nor LRGB's GatedGCN.
SPECIAL: dict[tuple[str, ...], dict[str, Any]] = {
    ("kmip", "MultiModel"): {"gt.gatedgcn.residual": True},
    ("kmip", "SingleModel"): {"gt.gatedgcn.residual": True},
    ("graphgps", "custom_gnn"): RELU,
    ("lrgb", "custom_gnn", "gatedgcnconv"): RELU,
    ("kmip-thesis", "ogbn-arxiv"): REVERSE,
}
# dialect, (dialect, model.type) or (dialect, dataset.name) -> (key, value) -> our key and value.
MEANINGS: dict[str | tuple[str, str], dict[tuple[str, Any], tuple[str, Any]]] = {
    "graphgps": RAW_VOC,
    "exphormer": RAW_VOC | GRAPH_NORM,
    "spexphormer": GRAPH_NORM
    | {
        ("model.type", "Exphormer"): ("model.type", "Spexphormer"),
        ("train.mode", "custom_train"): ("train.mode", "custom"),
        ("train.mode", "custom_with_sampling"): ("train.mode", "custom"),
    },
    "kmip": RAW_EDGES,
    "kmip-thesis": RAW_VOC | GRAPH_NORM,
    "grit": {("gt.layer_type", "GritTransformer"): ("gt.layer_type", "GRIT")},
    "ppgt": {("gt.layer_type", "PPGTLayer"): ("gt.layer_type", "sL2")},
    ("kmip", "MultiModel"): GRAPH_NORM,
    ("kmip", "SingleModel"): GRAPH_NORM,
    ("exphormer", "ogbn-arxiv"): NODES_OF_SPLIT,
    ("kmip-thesis", "ogbn-arxiv"): NODES_OF_SPLIT,
}
# The k-MIP codes' heads are as wide as the network where a file does not give their width.
HEAD_WIDTHS = {
    "gt.kmip.dim_kq": ("gt.sparse.kq_dim", "gt.kmip.dim_kq"),
    "gt.kmip.dim_val": ("gt.sparse.val_dim", "gt.kmip.dim_val"),
}
WIDE_HEADS = ("kmip", "kmip-thesis")
# Dialects whose files have groups of keys that no other code has.
FOREIGN: dict[str, Code] = {"grit": GRIT, "ppgt": PPGT, "spexphormer": SPEXPHORMER}


def in_dialect(settings: list[Setting]) -> list[Setting]:
    """Return the settings, of files and command line in order, translated, after those of their dialect and quirks."""
    last = {key: value for key, value, _ in settings}
    dialect, quirks = last.get("dialect") or "", last.get("quirks") or []
    if not isinstance(quirks, list):
        raise ConfigError(f"quirks: expected a list of names, got {reprlib.repr(quirks)}: write quirks: [name]")
    network = (dialect, str(last.get("model.type")))
    data = (dialect, str(last.get("dataset.name")))
    values = dict(look_up(DIALECTS, dialect, "dialect")) if dialect else {}
    for special in (network, (*network, str(last.get("gnn.layer_type"))), data):
        values |= SPECIAL.get(special, {})
    for quirk in quirks:
        values |= look_up(QUIRKS, quirk, "quirks")
    if dialect in FOREIGN:
        settings = translate_foreign(settings, FOREIGN[dialect])
    meanings = MEANINGS.get(dialect, {}) | MEANINGS.get(network, {}) | MEANINGS.get(data, {})
    before = [(key, value, f"dialect {dialect}") for key, value in values.items()]
    before += find_estimator(settings) if dialect == SPEXPHORMER.name else []
    translated = [_translate_value(setting, meanings, dialect) for setting in settings]
    return before + translated + _fill_head_widths(last, dialect)


def _fill_head_widths(values: dict[str, Any], dialect: str) -> list[Setting]:
    parts = str(values.get("gt.layer_type", "")).split("+")
    if dialect not in WIDE_HEADS or "SparseAttention" not in parts:  # by our name, kMIP, None has our meaning
        return []
    width, filled = values.get("gt.dim_hidden", DEFAULT_WIDTH), []
    for our_key, keys in HEAD_WIDTHS.items():
        if all(values.get(key) in (None, *NONE) for key in keys):
            logging.info("config: %s is the whole width, %s, in the dialect %s", our_key, width, dialect)
            filled.append((our_key, width, f"dialect {dialect}"))
    return filled


def _translate_value(setting: Setting, meanings: dict[tuple[str, Any], tuple[str, Any]], dialect: str) -> Setting:
    key, value, origin = setting
    if not isinstance(value, Hashable):
        return setting
    first, plus, rest = value.partition("+") if isinstance(value, str) else (value, "", "")  # VOCNode+LapPE
    if (key, first) not in meanings:
        return setting
    our_key, meant = meanings[key, first]
    meant = f"{meant}+{rest}" if plus else meant
    logging.info("config: %s %s means %s %s in the dialect %s", key, value, our_key, meant, dialect)
    return (our_key, meant, origin)


# Dialect -> settings that only its code has, or it and those above it; the first match counts: keys, key=value, and
# beginnings of either. PPGT is before ours, whose train.max_nodes one of its files has with another meaning.
MARKERS: dict[str, list[str]] = {
    dialect: [mark.replace("=", " ") if "=" in mark or mark.endswith("*") else f"{mark} *" for mark in marks.split()]
    for dialect, marks in {
        "ppgt": """
            model.type=BaseGraphNet gt.layer_type=PPGTLayer gt.pos_enc.* gt.macro_norm_type posenc_I2SG.*
        """,
        "grit": """
            gt.layer_type=GritTransformer posenc_RWPSE.*
        """,
        "": """
            custom_modules quirks dataset.sample dataset.sample_graphs dataset.cache_edges train.precision
            train.eval_test train.early_stop_patience train.max_nodes train.subgraph_* optim.accumulation_mean
            optim.max_seconds gnn.edge_residual gnn.gine_inner gnn.layer_act gt.graph_norm gt.kmip.* gt.appnp.*
            gt.gatedgcn.* gt.gine.*
            gt.pna.* gt.performer.* gt.transformer.* gt.exphormer.* gt.score_estimator.* spexphormer.*
            network.spexphormer.* gt.sl2.* gt.grit.* grit.* ppgt.* brec.* model.type=PPGT posenc_RRWP.channels
            posenc_RRWP.sparse posenc_GraphormerBias.edge_types posenc_GraphormerBias.unread_tables
            posenc_GraphormerBias.pad_paths posenc_GraphormerBias.move_edges prep.exp_raw prep.raw_reverse_edges
        """,
        "kmip": """
            model.auto_satisfy_param_budget model.param_budget share.gradient_checkpointing
            dataset.format=PyG-CityNetwork
        """,
        "kmip-thesis": """
            gt.sparse.* gt.layer_type=*SparseAttention* gt.vn_pooling train.shuffle dataset.debug pretrained.seed
            posenc_RWSEEdge.* dataset.edge_encoder_name=*RWSEEdge dataset.format=PyG-ShapeNet
            dataset.format=PyG-S3DIS* dataset.format=PyG-ModelNet*
        """,
        "lrgb": """
            gnn.head=mlp_graph gnn.heads gnn.attn_dropout gnn.use_vn gnn.vn_pooling gnn.norm_type
            train.eval_smoothing_metrics dataset.node_encoder_name=COCONode* dataset.edge_encoder_name=COCOEdge
        """,
        "spexphormer": """
            model.type=Exphormer model.type=Spexphormer gt.layer_type=ASE gt.layer_type=Spexphormer gt.use_edge_feats
            gt.FFN gt.JK train.mode=custom_train train.mode=custom_with_sampling train.save_attention_scores
            train.temp_* train.spexphormer_sampler train.*edge_s* train.*_edges train.resampling_epochs
            prep.replace_combined_exp_edges prep.save_edges prep.load_edges prep.default_initial prep.num_edge_sets
            prep.edge_set_name dataset.edge_encoder_name=TypeDictEdge2 dataset.format=PyG-Heterophilous
            dataset.format=SNAP
        """,
        "exphormer": """
            prep.* model.type=MultiModel model.type=SingleModel posenc_ER[NE].* gt.secondary_edges
        """,
    }.items()
}
# Parts of gt.layer_type in public files; any other name is ours, or one that a user has registered.
BRANCHES = frozenset(
    """None GENConv GINE GAT PNA CustomGatedGCN GCN GIN Transformer BiasedTransformer Performer BigBird SparseAttention
    ETransformer Exphormer SANLayer SAN2Layer ASE Spexphormer ExphormerInitial GritTransformer PPGTLayer""".split()
)


def detect(settings: Iterable[tuple[str, Any, str]]) -> tuple[str, str]:
    """Return the dialect of a file and the reason, by the first of `MARKERS`; "" is ours, the default is GraphGPS's.

    Settings that one code copied from another count as the other's. Of the two k-MIP codes, the paper's shows by its
    parameter budgets; other settings of k-MIP codes are read as the thesis', with a warning (`name_dialect`).

    Args:
        settings: (key, value, place) of a file that does not name its dialect.
    """
    texts = {f"{key} {value}".strip(): where for key, value, where in settings}
    for text, where in texts.items():
        key, _, value = text.partition(" ")
        if key == "gt.layer_type" and {part.partition("__")[0] for part in value.split("+")} - BRANCHES:
            return "", f"{text} ({where})"
    for dialect, patterns in MARKERS.items():
        for pattern in patterns:
            for text, where in texts.items():
                if fnmatchcase(text, pattern):
                    return dialect, f"{text} ({where})"
    if texts.keys() >= {*ARXIV}:
        return "kmip-thesis", " and ".join(ARXIV)
    return "graphgps", "nothing in it is of another code"


def name_dialect(settings: list[tuple[str, Any, str]]) -> list[tuple[str, Any, str]]:
    """Return the settings of a file after its detected dialect, unless it names one."""
    if any(key == "dialect" for key, _, _ in settings):
        return settings
    dialect, why = detect(settings)
    logging.info("config: dialect %r, for %s; `dialect: NAME` overrides it", dialect or "ours", why)
    if dialect == "kmip-thesis":
        logging.warning(
            "config: read as a file of the k-MIP thesis' code; the paper's code means other mathematics by the same "
            "keys: set `dialect: kmip` if the file is the paper's, `dialect: kmip-thesis` if it is the thesis'"
        )
    return [("dialect", dialect, "the markers of the file"), *settings]
