"""Parameter names in checkpoints of the public codes, and ours; which table a file needs.

One ordered table for GraphGPS, Exphormer, LRGB and the k-MIP codes on GraphGym, one for GRIT and one for PPGT, a group
of rows for each part of a network. Meaning of a row: `graphgps_kmip.compat.parameter_renaming`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from graphgps_kmip.compat.parameter_renaming import (
    Condition,
    Form,
    Names,
    States,
    find_linear_maps,
    find_modules_after,
    rank,
)

Rows = tuple[tuple[str, tuple[Form, ...]], ...]


def _branch(part: str) -> Form:
    """A branch of a MultiModel layer: the file leaves out the numbers of branches of the other kind."""
    return lambda match, states: f"layers.{match[1]}.{part}.{rank(match, 2, states.file)}."


def _linear(prefix: str, index: Callable[[re.Match[str], States], int]) -> Form:
    """A linear map of a Sequential of ours that may have other modules: number ``index`` of them, -1 is the last."""

    def form(match: re.Match[str], states: States) -> str | None:
        maps, number = find_linear_maps(states.model, prefix), index(match, states)
        return f"{prefix}{maps[number]}." if -len(maps) <= number < len(maps) else None

    return form


def _after_linear(prefix: str) -> Form:
    """The norm or PReLU of ours after a linear map: group 1 is the number of that, group 2 that of the module."""

    def form(match: re.Match[str], states: States) -> str | None:
        modules, number = find_modules_after(states.model, prefix, int(match[1])), rank(match, 2, states.file)
        return f"{prefix}{modules[number]}." if number < len(modules) else None

    return form


def _first_group(match: re.Match[str], _: States) -> int:
    return int(match[1])


def _last(*_: object) -> int:
    return -1


def _post_layer(match: re.Match[str], states: States) -> str | None:
    # dropout, which has a number too, may differ
    prefix, number = f"layers.{match[1]}.layer.post_layer.", rank(match, 2, states.file)
    modules = sorted({int(name.removeprefix(prefix).split(".")[0]) for name in states.model if name.startswith(prefix)})
    return f"{prefix}{modules[number]}." if number < len(modules) else None


def _is_without(branch: str) -> Condition:
    return lambda match, file: not any(name.startswith(f"layers.{match[1]}.{branch}.") for name in file)


def _repeats(first: str) -> Condition:
    """Whether the tensor equals the one whose name has ``first`` in place of the match."""

    def condition(match: re.Match[str], file: Mapping[str, Tensor]) -> bool:
        twin = file.get(match.string.replace(match[0], first))
        return twin is not None and torch.equal(twin, file[match.string])

    return condition


def _is_zero(match: re.Match[str], file: Mapping[str, Tensor]) -> bool:
    return not file[match.string].any()


def _is_of_roads(match: re.Match[str], file: Mapping[str, Tensor]) -> bool:
    return file[match.string].shape != (14,)  # 14: superpixels, which are not scaled when they are loaded


_CONV = r"^(layers\.\d+\.(?:local\.\d+|conv|layer\.layer\.conv)\.)"
_ATTENTION = r"^(layers\.\d+\.attention\.\d+\.)"
_START = r"layers.0.attention.0.initial_state."  # the parameters of Exphormer's edges are in the first layer

_ENCODERS = (
    (r"^encoder\.(node|edge)_encoder_bn\.bn\.", (r"encoder.\1_norm.",)),
    (r"^encoder\.(node|edge)_encoder\.", (r"encoder.\1.",)),
    (r"^encoder\.(node|edge)\.encoder(\d)\.", (lambda m, _: f"encoder.{m[1]}.{int(m[2]) - 1}.",)),  # joined by plus
    (r"^(encoder\.(?:node|edge)\..*)(?:node|edge)_x_(mean|std)$", (r"\1\2",)),  # constants of superpixels
    (r"^encoder\.edge\.norm\.", ("encoder.edge.1.norm.",)),  # before RWSEEdge
    (r"^encoder\.edge\.encoder\.weight$", ("encoder.edge.encoder.weight", "start.types.weight")),  # TypeDictEdge2
    (r"^encoder\.edge\.(\d)\.", (r"encoder.edge.\1.", r"encoder.edge.\1.encoder.")),  # the same encoder, but on edges
    # SignNet: linear map, ReLU and norm follow each other in ours
    (r"\.sign_inv_net\.enc\.bns\.(\d+)\.", (lambda m, _: f".phi.norms.{int(m[1]) + 1}.",)),
    (r"\.sign_inv_net\.enc\.", (".phi.",)),
    (r"\.sign_inv_net\.rho\.", (".rho.",)),
    (r"\.lins\.(\d+)\.", (lambda m, _: f".{3 * int(m[1])}.",)),
    (r"\.bns\.(\d+)\.", (lambda m, _: f".{3 * int(m[1]) + 2}.",)),
    # LapPE: its first map is one of the DeepSet's
    (r"\.linear_A\.", (".pe_encoder.0.", ".linear_in.", ".pe_encoder.")),
    (r"^(encoder\..*\.pe_encoder)\.(\d+)\.", (r"\1.\2.", lambda m, _: f"{m[1]}.{int(m[2]) + 1}.")),
    (r"\.linear_encoder_eigenvec\.", (".linear.",)),  # EquivStableLapPE
    (r"\.er_encoder\.", (".pe_encoder.",)),  # ERE
    # GraphormerBias, alone or before its token
    (r"\.[01]\.(spatial_encoder|in_degree_encoder|out_degree_encoder|edge_encoder)\.", (r".\1.", r".0.\1.")),
    (r"\.0\.edge_dis_encoder\.weight$", (".place_encoder", ".0.place_encoder")),
    (r"\.1\.graph_token$", (".1.token",)),
    (r"\.0\.graph_token$", (".1.bias", ".1.token")),
)
_LAYERS = (
    (r"^layers\.(\d+)\.local_model\.", (r"layers.\1.local.0.",)),
    # attention_layer: both stages of the low-width method
    (r"^layers\.(\d+)\.(?:attention_layer\.)?self_attn\.", (r"layers.\1.attention.0.",)),
    (r"^layers\.(\d+)\.norm1_local\.", (r"layers.\1.local_norm.0.",)),
    (r"^layers\.(\d+)\.(?:attention_layer\.)?norm1_(?:attn|global)\.", (r"layers.\1.attention_norm.0.",)),
    # Graphormer
    (r"^layers\.(\d+)\.input_norm\.", (r"layers.\1.attention_norm.",)),
    (r"^layers\.(\d+)\.attention\.(in_proj_|out_proj\.)", (r"layers.\1.attention.0.\2",)),
    # SAN
    (r"^trf_layers\.0\.attention\.fake_edge_emb\.", (f"{_START}feature.",)),
    (r"^trf_layers\.(\d+)\.attention\.([QKE])_2\.", (r"layers.\1.attention.0.fake_\2.",)),
    (r"^trf_layers\.(\d+)\.attention\.", (r"layers.\1.attention.0.",)),
    (r"^trf_layers\.(\d+)\.O_h\.", (r"layers.\1.attention.0.out.",)),
    *(
        (rf"^trf_layers\.(\d+)\.(?:layer|batch)_norm{i}_h\.", (rf"layers.\1.{name}.0.", rf"layers.\1.{name}.1."))
        for i, name in ((1, "attention_norm"), (2, "ffn_norm"))
    ),
    (r"^trf_layers\.(\d+)\.FFN_h_layer1\.", (r"layers.\1.ffn.0.",)),
    (r"^trf_layers\.(\d+)\.FFN_h_layer2\.", (r"layers.\1.ffn.3.",)),
    # Performer alone: performer_pytorch's layers
    (r"^trf\.net\.layers\.(\d+)\.0\.norm\.", (r"layers.\1.attention_norm.",)),
    (r"^trf\.net\.layers\.(\d+)\.0\.fn\.", (r"layers.\1.attention.0.",)),
    (r"^trf\.net\.layers\.(\d+)\.1\.norm\.", (r"layers.\1.ffn_norm.",)),
    (r"^trf\.net\.layers\.(\d+)\.1\.fn\.fn\.w1\.", (r"layers.\1.ffn.0.",)),
    (r"^trf\.net\.layers\.(\d+)\.1\.fn\.fn\.w2\.", (r"layers.\1.ffn.3.",)),
    (r"^trf\.proj_updater\.calls_since_last_redraw$", ("redraw_calls",)),
    # any number of branches
    (r"^layers\.(\d+)\.models\.(\d+)\.local_model\.", (_branch("local"),)),
    (r"^layers\.(\d+)\.models\.(\d+)\.self_attn\.", (_branch("attention"),)),
    (r"^layers\.(\d+)\.models\.(\d+)\.norm1_local\.", (_branch("local_norm"),)),
    (r"^layers\.(\d+)\.models\.(\d+)\.norm1_(?:attn|global)\.", (_branch("attention_norm"),)),
    (r"^layers\.(\d+)\.norm2\.", (r"layers.\1.ffn_norm.",)),
    (r"^layers\.(\d+)\.ff_linear1\.", (r"layers.\1.ffn.0.",)),
    (r"^layers\.(\d+)\.ff_linear2\.", (r"layers.\1.ffn.3.",)),
    # custom_gnn, and GraphGym's own network
    (r"^gnn_layers\.(\d+)\.(?:model\.)?", (r"layers.\1.conv.",)),
    (r"^mp\.layer(\d+)\.post_layer\.(\d+)\.", (_post_layer,)),
    (r"^mp\.layer(\d+)\.layer\.", (r"layers.\1.layer.layer.",)),
    (r"^(layers\.\d+\.layer\.layer)\.model\.", (r"\1.model.", r"\1.conv.")),
)
_CONVS = (
    (_CONV + r"bn_(node|edge)_[xe]\.", (r"\1\2_norm.",)),
    (_CONV + r"mlp_r_ij\.", (r"\1gate.mlp.",)),
    (_CONV + r"nn\.", (r"\1inner.", r"\1conv.nn.")),
    (_CONV + r"lin_src\.", (r"\1lin.",)),  # GAT of torch_geometric before 2.5
    (_CONV, (r"\1", r"\1conv.")),
)
# Their parts of attentions, as patterns, and ours.
_PARTS = r"""
    in_proj_ qkv.|out_proj\. out.|MQs\. query.|MKs\. key.|MVs\. value.|MO\. out.|to_q\. query.|to_k\. key.
    to_v\. value.|to_out\. out.|fast_attention\.projection_matrix projection
    encoder\.layers\.0\.attention\.output\.dense\. out.
    encoder\.layers\.0\.attention\.output\.LayerNorm\. out_norm.|encoder\.layers\.0\.intermediate\.dense\. ffn.0.
    encoder\.layers\.0\.output\.dense\. ffn.2.|encoder\.layers\.0\.output\.LayerNorm\. ffn_norm.|QKV\. qkv.
    V_scale$ value_scale|E1\. edge.|E2\. edge_bias.|(fake_)?Q\. \2query.|(fake_)?K\. \2key.|V\. value.
    (fake_)?E\. \2edge.
"""
_ATTENTIONS = (
    (_ATTENTION + r"encoder\.layers\.0\.attention\.self\.", (r"\1",)),
    *(
        (_ATTENTION + pattern, (rf"\1{name}",))
        for pattern, name in (part.split() for part in _PARTS.strip().replace("\n", "|").split("|"))
    ),
    (_ATTENTION, (r"\1", r"\1attention.")),  # BiasedTransformer is a Transformer with biases
    (r"^(?:encoder\.)?exp_edge_fixer\.exp_edge_attr\.", (f"{_START}expander.",)),
    (r"^(?:encoder\.)?exp_edge_fixer\.virt_node_emb\.", (f"{_START}virtual.",)),
    (r"^(?:encoder\.)?exp_edge_fixer\.virt_edge_in_emb\.", (f"{_START}to_virtual.",)),
    (r"^(?:encoder\.)?exp_edge_fixer\.virt_edge_out_emb\.", (f"{_START}from_virtual.",)),
)


def _list_ends(head: str) -> Rows:
    """Return the rows of pre-MLP and prediction head, whose name in our network is ``head`` with its dot."""
    return (
        (r"^pre_mp\.Layer_(\d+)\.layer\.model\.", (_linear("pre_mp.", _first_group),)),
        (r"^pre_mp\.Layer_(\d+)\.post_layer\.(\d+)\.", (_after_linear("pre_mp."),)),
        (r"^post_mp\.layer_post_mp\.model\.\d\.Layer_(\d+)\.layer\.model\.", (_linear(f"{head}mlp.", _first_group),)),
        (r"^post_mp\.layer_post_mp\.model\.\d\.Layer_(\d+)\.post_layer\.(\d+)\.", (_after_linear(f"{head}mlp."),)),
        (r"^post_mp\.layer_post_mp\.model\.\d\.model\.", (_linear(f"{head}mlp.", _last),)),
        (r"^post_mp\.ln\.", (f"{head}norm.",)),  # graphormer_graph
        (r"^post_mp\.layers\.0\.", (f"{head}mlp.0.",)),
        (r"^post_mp\.FC_layers\.(\d+)\.", (rf"{head}FC_layers.\1.", _linear(f"{head}mlp.", _first_group))),  # san_graph
        # mlp_graph, and those of PPGT
        (r"^post_mp\.mlp\.(\d+)\.", (_linear(f"{head}mlp.", lambda m, states: rank(m, 1, states.file)),)),
        (r"^post_mp\.", (head,)),
    )


# Ours wrap torch's and torch_geometric's norms.
_NORMS: Rows = ((r"\.(\w+)$", (r".\1", r".module.\1", r".norm.module.\1", r".norm.\1")),)
_STEP_COUNT = r"\.num_batches_tracked$"  # of batch norms, which none reads here; older codes do not save it

PUBLIC = Names(
    rules=(*_ENCODERS, *_LAYERS, *_CONVS, *_ATTENTIONS, *_list_ends("head."), *_NORMS),
    dropped=(
        # norms of branches that are not there
        (r"^layers\.(\d+)\.norm1_local\.", _is_without("local_model")),
        (r"^layers\.(\d+)\.norm1_(?:attn|global)\.", _is_without("self_attn")),
        # SAN's layers share one vector, saved with each
        (r"^trf_layers\.\d+\.attention\.fake_edge_emb\.", _repeats("trf_layers.0.attention.fake_edge_emb.")),
        # performer_pytorch saves the layers again with what redraws their projections
        (r"^trf\.proj_updater\.instance\.", _repeats("trf.net.")),
        (r"\.eps$", _is_zero),  # GINE's, which is not learned
        (r"\.lin_dst\.", _repeats(".lin_src.")),  # torch_geometric before 2.5 saved GAT's one map twice
        (_STEP_COUNT, None),
        (r"\.aggr_module\.avg_deg_(lin|log)$", None),  # mean degrees that PNA's scaler, identity, does not read
        # columns of the road networks are scaled when they are loaded
        (r"^encoder\.node_encoder\.node_x_(mean|std)$", _is_of_roads),
    ),
    filled={
        _STEP_COUNT: None,
        r"\.avg_deg_(lin|log)$": None,  # torch_geometric before 2.4 did not save it
        r"^redraw_seed$": None,  # GraphGPS's Performer redraws by torch's generator, which no file has
        r"\.attention\.\d+\.temperature$": None,  # the public estimator counts it from the epoch
        r"^layers\.\d+\.attention\.\d+\.seed$": 0,  # the public BigBird draws its random blocks by seed 0
    },
)

# GRIT and PPGT: a row is of one module of the public code. Encoders, numbered in a list there, are counted among those
# that save parameters.
_LAYER = r"^layers\.(\d+)\."
_GRIT_ATTENTION = r"layers.\1.attention.0."
_STEM = re.compile(r"^encoder\.pair_stems\.(\d+)\.mlp\.")
_LINEAR = "encoder.node_stems.0.linears."


def _grit_norm(place: str) -> Form:
    """A norm of GRIT's layers: where a layer has both, the one over batches is the second."""

    def form(match: re.Match[str], states: States) -> str:
        twin = match[0].replace("batch_norm", "layer_norm") + "weight"  # running statistics have no twin
        second = "batch_norm" in match[0] and twin in states.file
        return f"layers.{match[1]}.{place}.{int(second)}."

    return form


def _pair_stem(rest: str, step: int = 0) -> Form:
    """A part of PPGT's encoder of pairs: ours count from its MLP, which may follow a subgraph encoder."""

    def form(match: re.Match[str], states: States) -> str | None:
        numbers = [int(stem[1]) for stem in map(_STEM.match, states.model) if stem]
        return match.expand(f"encoder.pair_stems.{numbers[0] + step}.{rest}") if numbers else None

    return form


def _stem_map(index: int | None) -> Form:
    """A linear map of that MLP: the hidden one of the same number, or the last."""

    def form(match: re.Match[str], states: States) -> str | None:
        start = _pair_stem("mlp.")(match, states)
        if start is None:
            return None
        return f"{start}{match[1]}." if index is None else _linear(start, _last)(match, states)

    return form


def _feature(match: re.Match[str], states: States) -> str | None:
    """The linear map of a feature of nodes, by its place among those of the file."""
    names = dict.fromkeys(name.removeprefix(_LINEAR).split(".")[0] for name in states.model if name.startswith(_LINEAR))
    number = rank(match, 1, states.file)
    return f"{_LINEAR}{list(names)[number]}." if number < len(names) else None


def _token(match: re.Match[str], states: States) -> str | None:
    """The module of a token of nodes or graphs, by its place among those of the file."""
    matches = (re.match(r"encoder\.node_stems\.(\d+)\.token$", name) for name in states.model)
    numbers, number = sorted(int(token[1]) for token in matches if token), rank(match, 1, states.file)
    return f"encoder.node_stems.{numbers[number]}.token" if number < len(numbers) else None


def _token_mlp(_: re.Match[str], states: States) -> str | None:
    """The MLP of a class token."""
    matches = (re.match(r"(encoder\.node_stems\.\d+\.)mlp\.", name) for name in states.model)
    return next((f"{token[1]}mlp." for token in matches if token), None)


def _subgraph_layer(rest: str) -> Form:
    """Of the subgraph encoder: a layer is three modules of the public code."""
    return lambda match, states: _pair_stem(rest.format(int(match[1]) // 3), step=-1)(match, states)


def _block(rest: str) -> Form:
    """Of the blocks after the MLP: the public code counts an identity before them."""
    return lambda match, states: _pair_stem(rest.format(int(match[1]) - 1), step=1)(match, states)


def _is_unit(match: re.Match[str], file: Mapping[str, Tensor]) -> bool:
    value = file[match.string]
    return value.numel() == 1 and bool((value == 1).all())


def _is_frequencies(match: re.Match[str], file: Mapping[str, Tensor]) -> bool:
    value = file[match.string].flatten().double()
    return torch.allclose(value, math.pi * 2.0 ** torch.arange(len(value), dtype=torch.float64), rtol=1e-6)


GRIT = Names(
    rules=(
        (r"^encoder\.(node|edge)_encoder_bn\.bn\.", (r"encoder.\1_norm.",)),
        (r"^encoder\.node_encoder\.", ("encoder.node.0.",)),
        (r"^encoder\.edge_encoder\.", ("encoder.edge.",)),
        (r"^rrwp_abs_encoder\.fc\.", ("encoder.rrwp.node.",)),
        (r"^rrwp_rel_encoder\.fc\.", ("encoder.rrwp.pair.",)),
        (_LAYER + r"(?:batch|layer)_norm1_h\.", (_grit_norm("attention_norm"),)),
        (_LAYER + r"(?:batch|layer)_norm1_e\.", (_grit_norm("attention.0.pairs.norm"),)),
        (_LAYER + r"(?:batch|layer)_norm2_h\.", (_grit_norm("ffn_norm"),)),
        (_LAYER + r"attention\.Q\.", (f"{_GRIT_ATTENTION}query.",)),
        (_LAYER + r"attention\.K\.", (f"{_GRIT_ATTENTION}key.",)),
        (_LAYER + r"attention\.V\.", (f"{_GRIT_ATTENTION}value.",)),
        (_LAYER + r"attention\.E\.", (f"{_GRIT_ATTENTION}edge.",)),
        (_LAYER + r"attention\.Aw$", (f"{_GRIT_ATTENTION}logit",)),
        (_LAYER + r"attention\.VeRow$", (f"{_GRIT_ATTENTION}pair_value",)),
        (_LAYER + r"O_h\.", (f"{_GRIT_ATTENTION}out.",)),
        (_LAYER + r"O_e\.", (f"{_GRIT_ATTENTION}pairs.linear.",)),
        (_LAYER + r"deg_coef$", (f"{_GRIT_ATTENTION}degree_factors",)),
        (_LAYER + r"FFN_h_layer1\.", (r"layers.\1.ffn.0.",)),
        (_LAYER + r"FFN_h_layer2\.", (r"layers.\1.ffn.3.",)),
        *_list_ends("head."),
        *_NORMS,
    ),
    dropped=(
        (r"^rrwp_rel_encoder\.padding$", _is_zero),  # for pairs without a value
        (_STEP_COUNT, None),
    ),
    filled={_STEP_COUNT: None},
)
_PPGT_LAYER = (
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


def _list_layers(public: str, start: str, attention: str) -> Iterable[tuple[str, tuple[Form, ...]]]:
    for pattern, name in _PPGT_LAYER:
        yield rf"^{public}\.(\d+)\.{pattern}", (rf"{start}.\1.{name.replace('ATTENTION', attention)}",)


_SUBGRAPHS = r"^pos_enc\.sg_encoders\.0\."
_PAIRS = r"^pos_enc\.edge_encoders\."
_NODES = r"^pos_enc\.node_encoders\.(\d+)\."
PPGT = Names(
    rules=(
        (r"^feat_enc\.(node|edge)_encoder_bn\.bn\.", (r"encoder.features.\1_norm.",)),
        (r"^feat_enc\.(node|edge)_encoder\.", (r"encoder.features.\1.",)),
        (_NODES + r"out_fc\.", (_feature,)),
        (_NODES + r"(?:target_token|cls_token)$", (_token,)),
        (_NODES + r"order_fc\.", (_token_mlp,)),
        (_SUBGRAPHS + r"pre_fc\.", (_pair_stem("first.", -1),)),
        (_SUBGRAPHS + r"sg_gnns\.module_(\d+)\.eps$", (_subgraph_layer("epsilons.{}"),)),
        (_SUBGRAPHS + r"sg_gnns\.module_(\d+)\.nn\.", (_subgraph_layer("mlps.{}."),)),
        (_SUBGRAPHS + r"sg_gnns\.module_(\d+)\.", (_subgraph_layer("norms.{}."),)),
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
        *_list_layers(r"class_attention_layers", "head.class_layers", "attention"),
        *_list_layers("layers", "layers", "attention.0"),
        (r"^post_mp\.out_bn\.", ("head.head.out_norm.",)),
        (r"^post_mp\.post_pooling_norm\.", ("head.head.norm.",)),
        *_list_ends("head.head."),
        *_NORMS,
    ),
    dropped=(
        (_PAIRS + r"0\.eps$", _is_frequencies),  # of the sinusoidal encoding
        (r"\.attention\.Z\.", None),  # of gt.attn.zero_token, which nothing reads
        (r"\.(?:res_layer\d?|sg_gnns\.module_\d+)\.alpha$", _is_unit),  # in place of a layer scale
        (_STEP_COUNT, None),
    ),
    filled={_STEP_COUNT: None},
)


def choose_names(names: Iterable[str]) -> Names:
    """Return the table of the code that wrote a file, by the names of all its tensors."""
    names = list(names)
    if any(re.search(r"(^|\.)feat_enc\.", name) for name in names):
        return PPGT
    return GRIT if any(name.endswith("attention.Aw") for name in names) else PUBLIC
