"""Parameter names in checkpoints of GRIT's and PPGT's public codes, and ours; which table a file needs.

Rows and their meaning: `graphgps_kmip.compat.parameter_renaming`. In these tables a row belongs to one module of the
public code, and the numbers of encoders, which are those of a list there, are counted among the ones that save
parameters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from graphgps_kmip.compat.checkpoint_names import NORMS, PUBLIC, ends, is_zero, last_map, linear_of
from graphgps_kmip.compat.parameter_renaming import Dropped, Form, Names, States, rank

_LAYER = r"^layers\.(\d+)\."
_ATTENTION = r"layers.\1.attention.0."
_STEM = re.compile(r"^encoder\.pair_stems\.(\d+)\.mlp\.")
_LINEAR = "encoder.node_stems.0.linears."


def _grit_norm(place: str) -> Form:
    """A norm of GRIT's layers: where a layer has both, the one over batches is the second."""

    def form(match: re.Match[str], states: States) -> str:
        twin = match[0].replace("batch_norm", "layer_norm") + "weight"  # running statistics have no twin
        second = "batch_norm" in match[0] and twin in states.theirs
        return f"layers.{match[1]}.{place}.{int(second)}."

    return form


def _pair_stem(rest: str, step: int = 0) -> Form:
    """A part of PPGT's encoder of pairs: ours count from its MLP, before which a subgraph encoder may stand."""

    def form(match: re.Match[str], states: States) -> str | None:
        numbers = [int(stem[1]) for stem in map(_STEM.match, states.ours) if stem]
        return match.expand(f"encoder.pair_stems.{numbers[0] + step}.{rest}") if numbers else None

    return form


def _stem_map(index: int | None) -> Form:
    """A linear map of that MLP: the hidden one of the same number, or the last."""

    def form(match: re.Match[str], states: States) -> str | None:
        start = _pair_stem("mlp.")(match, states)
        if start is None:
            return None
        return f"{start}{match[1]}." if index is None else linear_of(start, last_map)(match, states)

    return form


def _feature(match: re.Match[str], states: States) -> str | None:
    """The linear map of a feature of nodes, by its place among those of the file."""
    names = dict.fromkeys(name.removeprefix(_LINEAR).split(".")[0] for name in states.ours if name.startswith(_LINEAR))
    wanted = rank(match, 1, states.theirs)
    return f"{_LINEAR}{list(names)[wanted]}." if wanted < len(names) else None


def _token(match: re.Match[str], states: States) -> str | None:
    """The module of a token of nodes or graphs, likewise."""
    matches = (re.match(r"encoder\.node_stems\.(\d+)\.token$", name) for name in states.ours)
    numbers, wanted = sorted(int(token[1]) for token in matches if token), rank(match, 1, states.theirs)
    return f"encoder.node_stems.{numbers[wanted]}.token" if wanted < len(numbers) else None


def _of_token(_: re.Match[str], states: States) -> str | None:
    """The MLP of a class token."""
    matches = (re.match(r"(encoder\.node_stems\.\d+\.)mlp\.", name) for name in states.ours)
    return next((f"{token[1]}mlp." for token in matches if token), None)


def _third(rest: str) -> Form:
    """Of the subgraph encoder: a layer is three modules of the public code."""
    return lambda match, states: _pair_stem(rest.format(int(match[1]) // 3), step=-1)(match, states)


def _block(rest: str) -> Form:
    """Of the blocks behind the MLP: the public code counts an identity before them."""
    return lambda match, states: _pair_stem(rest.format(int(match[1]) - 1), step=1)(match, states)


def _is_unit(match: re.Match[str], theirs: Mapping[str, Tensor]) -> bool:
    value = theirs[match.string]
    return value.numel() == 1 and bool((value == 1).all())


def _is_frequencies(match: re.Match[str], theirs: Mapping[str, Tensor]) -> bool:
    value = theirs[match.string].flatten().double()
    return torch.allclose(value, math.pi * 2.0 ** torch.arange(len(value), dtype=torch.float64), rtol=1e-6)


GRIT = Names(
    wrappers=PUBLIC.wrappers,
    rules=(
        (r"^encoder\.(node|edge)_encoder_bn\.bn\.", (r"encoder.\1_norm.",)),
        (r"^encoder\.node_encoder\.", ("encoder.node.0.",)),
        (r"^encoder\.edge_encoder\.", ("encoder.edge.",)),
        (r"^rrwp_abs_encoder\.fc\.", ("encoder.rrwp.node.",)),
        (r"^rrwp_rel_encoder\.fc\.", ("encoder.rrwp.pair.",)),
        (_LAYER + r"(?:batch|layer)_norm1_h\.", (_grit_norm("attention_norm"),)),
        (_LAYER + r"(?:batch|layer)_norm1_e\.", (_grit_norm("attention.0.pairs.norm"),)),
        (_LAYER + r"(?:batch|layer)_norm2_h\.", (_grit_norm("ffn_norm"),)),
        (_LAYER + r"attention\.Q\.", (f"{_ATTENTION}query.",)),
        (_LAYER + r"attention\.K\.", (f"{_ATTENTION}key.",)),
        (_LAYER + r"attention\.V\.", (f"{_ATTENTION}value.",)),
        (_LAYER + r"attention\.E\.", (f"{_ATTENTION}edge.",)),
        (_LAYER + r"attention\.Aw$", (f"{_ATTENTION}logit",)),
        (_LAYER + r"attention\.VeRow$", (f"{_ATTENTION}pair_value",)),
        (_LAYER + r"O_h\.", (f"{_ATTENTION}out.",)),
        (_LAYER + r"O_e\.", (f"{_ATTENTION}pairs.linear.",)),
        (_LAYER + r"deg_coef$", (f"{_ATTENTION}degree_factors",)),
        (_LAYER + r"alpha1_e$", (f"{_ATTENTION}pairs.alpha",)),
        (_LAYER + r"alpha1_h$", (r"layers.\1.attention_alpha",)),
        (_LAYER + r"alpha2_h$", (r"layers.\1.ffn_alpha",)),
        (_LAYER + r"FFN_h_layer1\.", (r"layers.\1.ffn.0.",)),
        (_LAYER + r"FFN_h_layer2\.", (r"layers.\1.ffn.3.",)),
        *ends("head."),
        *NORMS,
    ),
    dropped=(
        Dropped(r"^rrwp_rel_encoder\.padding$", "zeros for pairs without a value", is_zero),
        *(row for row in PUBLIC.dropped if "num_batches_tracked" in row.name),
    ),
    filled=tuple(row for row in PUBLIC.filled if "num_batches_tracked" in row.name),
    reasons=PUBLIC.reasons,
)
PPGT_LAYER = (
    (r"norm1_h\.norm_layer\.", "attention_norm."),
    (r"norm2_h\.norm_layer\.", "ffn_norm."),
    (r"attention\.Q\.", "ATTENTION.heads.query."),
    (r"attention\.KV\.", "ATTENTION.heads.key_value."),
    (r"attention\.O\.", "ATTENTION.heads.out."),
    (r"attention\.G\.", "ATTENTION.heads.gate."),
    (r"attention\.q_norm\.", "ATTENTION.heads.q_norm."),
    (r"attention\.k_norm\.", "ATTENTION.heads.k_norm."),
    (r"attention\.k_sigma$", "ATTENTION.heads.key_scale"),
    (r"attention\.P\.", "ATTENTION.pair."),
    (r"res_layer1\.alpha$", "attention_branch.layer_scale"),
    (r"res_layer2\.alpha$", "ffn_branch.layer_scale"),
    (r"FFN\.0\.", "ffn.0."),
    (r"FFN\.4\.", "ffn.3."),
    (r"FFN\.fc1\.", "ffn.gate."),
    (r"FFN\.fc2\.", "ffn.value."),
    (r"FFN\.fc3\.", "ffn.out."),
)


def _layers(theirs: str, ours: str, attention: str) -> Iterable[tuple[str, tuple[Form, ...]]]:
    for pattern, name in PPGT_LAYER:
        yield rf"^{theirs}\.(\d+)\.{pattern}", (rf"{ours}.\1.{name.replace('ATTENTION', attention)}",)


_SUBGRAPHS = r"^pos_enc\.sg_encoders\.0\."
_PAIRS = r"^pos_enc\.edge_encoders\."
_NODES = r"^pos_enc\.node_encoders\.(\d+)\."
PPGT = Names(
    wrappers=PUBLIC.wrappers,
    rules=(
        (r"^feat_enc\.(node|edge)_encoder_bn\.bn\.", (r"encoder.features.\1_norm.",)),
        (r"^feat_enc\.(node|edge)_encoder\.", (r"encoder.features.\1.",)),
        (_NODES + r"out_fc\.", (_feature,)),
        (_NODES + r"(?:target_token|cls_token)$", (_token,)),
        (_NODES + r"order_fc\.", (_of_token,)),
        (_SUBGRAPHS + r"pre_fc\.", (_pair_stem("first.", -1),)),
        (_SUBGRAPHS + r"sg_gnns\.module_(\d+)\.eps$", (_third("epsilons.{}"),)),
        (_SUBGRAPHS + r"sg_gnns\.module_(\d+)\.nn\.", (_third("mlps.{}."),)),
        (_SUBGRAPHS + r"sg_gnns\.module_(\d+)\.", (_third("norms.{}."),)),
        (_SUBGRAPHS + r"pool_norm\.", (_pair_stem("pool_norm.", -1),)),
        (_SUBGRAPHS + r"pe_fc\.", (_pair_stem("last.", -1),)),
        (_PAIRS + r"0\.mlp\.(\d+)\.", (_stem_map(None),)),
        (_PAIRS + r"0\.out_fc\.", (_stem_map(-1),)),
        (_PAIRS + r"1\.pre_backbone_norm\.norm_layer\.", (_pair_stem("first_norm.", 1),)),
        (_PAIRS + r"1\.post_backbone_norm\.norm_layer\.", (_pair_stem("last_norm.", 1),)),
        (_PAIRS + r"1\.mlp\.module_(\d+)\.pre_mlp_norm\.norm_layer\.", (_block("norms.{}."),)),
        (_PAIRS + r"1\.mlp\.module_(\d+)\.mlp\.0\.", (_block("mlps.{}.0."),)),
        (_PAIRS + r"1\.mlp\.module_(\d+)\.mlp\.3\.", (_block("mlps.{}.2."),)),
        (_PAIRS + r"1\.mlp\.module_(\d+)\.res_layer\.alpha$", (_block("scales.{}"),)),
        (r"^pre_backbone_norm\.norm_layer\.norm_layer\.", ("pre_mp.",)),
        (r"^post_backbone_norm\.norm_layer\.norm_layer\.", ("head.norm.",)),
        (r"^post_CA_norm\.norm_layer\.norm_layer\.", ("head.class_norm.",)),
        *_layers(r"class_attention_layers", "head.class_layers", "attention"),
        *_layers("layers", "layers", "attention.0"),
        (r"^post_mp\.out_bn\.", ("head.head.out_norm.",)),
        (r"^post_mp\.post_pooling_norm\.", ("head.head.norm.",)),
        *ends("head.head."),
        *NORMS,
    ),
    dropped=(
        Dropped(_PAIRS + r"0\.eps$", "frequencies of the sinusoidal encoding", _is_frequencies),
        Dropped(r"\.attention\.Z\.", "of gt.attn.zero_token, which nothing reads"),
        Dropped(
            r"\.(?:res_layer\d?|sg_gnns\.module_\d+)\.alpha$", "the constant 1 in place of a layer scale", _is_unit
        ),
        *(row for row in PUBLIC.dropped if "num_batches_tracked" in row.name),
    ),
    filled=tuple(row for row in PUBLIC.filled if "num_batches_tracked" in row.name),
    reasons=PUBLIC.reasons,
)


def names_of(state: Iterable[str]) -> Names:
    """Return the table of the code that wrote a file, by names that only that code has.

    Args:
        state (Iterable[str]): Names of all its tensors.
    """
    names = list(state)
    if any(re.search(r"(^|\.)feat_enc\.", name) for name in names):
        return PPGT
    return GRIT if any(name.endswith("attention.Aw") for name in names) else PUBLIC
