"""Parameter names of the public codes and ours: GraphGPS, Exphormer, LRGB and the k-MIP code, on GraphGym.

An ordered table, a group of rows for each part of a network, for `graphgps_kmip.compat.parameter_renaming`, which says
what a row means. Where a number of ours must be computed, a small function does it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from graphgps_kmip.compat.parameter_renaming import (
    Dropped,
    Filled,
    Form,
    Names,
    States,
    behind_linear,
    linear_maps,
    rank,
)


def _branch(part: str) -> Form:
    """A branch of a MultiModel layer: the file leaves out the numbers of branches of the other kind."""
    return lambda match, states: f"layers.{match[1]}.{part}.{rank(match, 2, states.theirs)}."


def linear_of(prefix: str, index: Callable[[re.Match[str], States], int]) -> Form:
    """Return the name of a linear map of a Sequential of ours, between whose linear maps other modules may stand.

    Args:
        prefix: name of the Sequential, with its dot.
        index: which of its linear maps, by the match; -1 is the last.
    """

    def form(match: re.Match[str], states: States) -> str | None:
        maps, wanted = linear_maps(states.ours, prefix), index(match, states)
        return f"{prefix}{maps[wanted]}." if -len(maps) <= wanted < len(maps) else None

    return form


def _behind_linear(prefix: str) -> Form:
    """The norm or PReLU of ours behind a linear map: group 1 is the number of that, group 2 that of the module."""

    def form(match: re.Match[str], states: States) -> str | None:
        modules, wanted = behind_linear(states.ours, prefix, int(match[1])), rank(match, 2, states.theirs)
        return f"{prefix}{modules[wanted]}." if wanted < len(modules) else None

    return form


def _first(match: re.Match[str], _: States) -> int:
    return int(match[1])


def last_map(*_: object) -> int:
    """Return the index of the last linear map, for `linear_of`."""
    return -1


def _post_layer(match: re.Match[str], states: States) -> str | None:
    """GraphGym's norm and PReLU behind a layer; dropout, which has a number too, may differ."""
    prefix, wanted = f"layers.{match[1]}.layer.post_layer.", rank(match, 2, states.theirs)
    modules = sorted({int(name.removeprefix(prefix).split(".")[0]) for name in states.ours if name.startswith(prefix)})
    return f"{prefix}{modules[wanted]}." if wanted < len(modules) else None


def _is_without(branch: str) -> Callable[[re.Match[str], Mapping[str, Tensor]], bool]:
    return lambda match, theirs: not any(name.startswith(f"layers.{match[1]}.{branch}.") for name in theirs)


def _repeats(first: str) -> Callable[[re.Match[str], Mapping[str, Tensor]], bool]:
    """True where the tensor equals the one in whose name ``first`` stands in place of what the pattern found."""

    def where(match: re.Match[str], theirs: Mapping[str, Tensor]) -> bool:
        twin = theirs.get(match.string.replace(match[0], first))
        return twin is not None and torch.equal(twin, theirs[match.string])

    return where


def is_zero(match: re.Match[str], theirs: Mapping[str, Tensor]) -> bool:
    """Tell whether a tensor of the file is 0 everywhere."""
    return not theirs[match.string].any()


def _is_of_roads(match: re.Match[str], theirs: Mapping[str, Tensor]) -> bool:
    return theirs[match.string].shape != (14,)  # 14: superpixels, which are not scaled when they are loaded


_CONV = r"^(layers\.\d+\.(?:local\.\d+|conv|layer\.layer\.conv)\.)"
_ATTENTION = r"^(layers\.\d+\.attention\.\d+\.)"
_START = r"layers.0.attention.0.initial_state."  # the parameters of Exphormer's edges stand in the first layer

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
    (r"^layers\.(\d+)\.self_attn\.", (r"layers.\1.attention.0.",)),
    (r"^layers\.(\d+)\.norm1_local\.", (r"layers.\1.local_norm.0.",)),
    (r"^layers\.(\d+)\.norm1_(?:attn|global)\.", (r"layers.\1.attention_norm.0.",)),
    # Graphormer
    (r"^layers\.(\d+)\.input_norm\.", (r"layers.\1.attention_norm.",)),
    (r"^layers\.(\d+)\.attention\.(in_proj_|out_proj\.)", (r"layers.\1.attention.0.\2",)),
    # both stages of the low-width method
    (r"^layers\.(\d+)\.attention_layer\.self_attn\.", (r"layers.\1.attention.0.",)),
    (r"^layers\.(\d+)\.attention_layer\.norm1_attn\.", (r"layers.\1.attention_norm.0.",)),
    # SAN
    (r"^trf_layers\.0\.attention\.fake_edge_emb\.", (f"{_START}feature.",)),
    (r"^trf_layers\.(\d+)\.attention\.([QKE])_2\.", (r"layers.\1.attention.0.fake_\2.",)),
    (r"^trf_layers\.(\d+)\.attention\.", (r"layers.\1.attention.0.",)),
    (r"^trf_layers\.(\d+)\.O_h\.", (r"layers.\1.attention.0.out.",)),
    (
        r"^trf_layers\.(\d+)\.(?:layer|batch)_norm1_h\.",
        (r"layers.\1.attention_norm.0.", r"layers.\1.attention_norm.1."),
    ),
    (r"^trf_layers\.(\d+)\.(?:layer|batch)_norm2_h\.", (r"layers.\1.ffn_norm.0.", r"layers.\1.ffn_norm.1.")),
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
        (_ATTENTION + theirs, (rf"\1{ours}",))
        for theirs, ours in (part.split() for part in _PARTS.strip().replace("\n", "|").split("|"))
    ),
    (_ATTENTION, (r"\1", r"\1attention.")),  # BiasedTransformer is a Transformer with biases
    (r"^(?:encoder\.)?exp_edge_fixer\.exp_edge_attr\.", (f"{_START}expander.",)),
    (r"^(?:encoder\.)?exp_edge_fixer\.virt_node_emb\.", (f"{_START}virtual.",)),
    (r"^(?:encoder\.)?exp_edge_fixer\.virt_edge_in_emb\.", (f"{_START}to_virtual.",)),
    (r"^(?:encoder\.)?exp_edge_fixer\.virt_edge_out_emb\.", (f"{_START}from_virtual.",)),
)


def ends(head: str) -> tuple[tuple[str, tuple[Form, ...]], ...]:
    """Return the rows of pre-MLP and prediction head.

    Args:
        head: name of the head in our network, with its dot.
    """
    return (
        (r"^pre_mp\.Layer_(\d+)\.layer\.model\.", (linear_of("pre_mp.", _first),)),
        (r"^pre_mp\.Layer_(\d+)\.post_layer\.(\d+)\.", (_behind_linear("pre_mp."),)),
        (r"^post_mp\.layer_post_mp\.model\.\d\.Layer_(\d+)\.layer\.model\.", (linear_of(f"{head}mlp.", _first),)),
        (r"^post_mp\.layer_post_mp\.model\.\d\.Layer_(\d+)\.post_layer\.(\d+)\.", (_behind_linear(f"{head}mlp."),)),
        (r"^post_mp\.layer_post_mp\.model\.\d\.model\.", (linear_of(f"{head}mlp.", last_map),)),
        (r"^post_mp\.ln\.", (f"{head}norm.",)),  # graphormer_graph
        (r"^post_mp\.layers\.0\.", (f"{head}mlp.0.",)),
        (r"^post_mp\.FC_layers\.(\d+)\.", (rf"{head}FC_layers.\1.", linear_of(f"{head}mlp.", _first))),  # san_graph
        # mlp_graph, and those of PPGT
        (r"^post_mp\.mlp\.(\d+)\.", (linear_of(f"{head}mlp.", lambda m, states: rank(m, 1, states.theirs)),)),
        (r"^post_mp\.", (head,)),
    )


# Ours wrap torch's and torch_geometric's norms.
NORMS = ((r"\.(\w+)$", (r".\1", r".module.\1", r".norm.module.\1", r".norm.\1")),)

PUBLIC = Names(
    wrappers=("module.", "model."),  # of DistributedDataParallel and of GraphGym
    rules=(*_ENCODERS, *_LAYERS, *_CONVS, *_ATTENTIONS, *ends("head."), *NORMS),
    dropped=(
        Dropped(r"^layers\.(\d+)\.norm1_local\.", "norm of a branch that is not there", _is_without("local_model")),
        Dropped(
            r"^layers\.(\d+)\.norm1_(?:attn|global)\.", "norm of a branch that is not there", _is_without("self_attn")
        ),
        Dropped(
            r"^trf_layers\.\d+\.attention\.fake_edge_emb\.",
            "SAN's layers share one vector, saved with each",
            _repeats("trf_layers.0.attention.fake_edge_emb."),
        ),
        Dropped(
            r"^trf\.proj_updater\.instance\.",
            "performer_pytorch saves the layers again with what redraws their projections",
            _repeats("trf.net."),
        ),
        Dropped(r"\.eps$", "GINE's epsilon, which is not learned and 0", is_zero),
        Dropped(r"\.lin_dst\.", "torch_geometric before 2.5 saved GAT's one map twice", _repeats(".lin_src.")),
        Dropped(r"\.num_batches_tracked$", "a count of steps that no BatchNorm here reads"),
        Dropped(r"\.aggr_module\.avg_deg_(lin|log)$", "mean degrees that PNA's scaler, identity, does not read"),
        Dropped(
            r"^encoder\.node_encoder\.node_x_(mean|std)$",
            "columns of the road networks are scaled when they are loaded",
            _is_of_roads,
        ),
    ),
    filled=(
        Filled(r"\.num_batches_tracked$", "see above; older codes do not save it"),
        Filled(r"\.avg_deg_(lin|log)$", "see above; torch_geometric before 2.4 did not save it"),
        Filled(r"^redraw_seed$", "GraphGPS' Performer redraws by torch's generator, which no file holds"),
        Filled(
            r"\.attention\.\d+\.temperature$", "the public estimator counts it from the epoch, and saves it nowhere"
        ),
        Filled(r"^layers\.\d+\.attention\.\d+\.seed$", "the public BigBird draws its random blocks by seed 0", 0),
    ),
    reasons=(
        (r"(atom|bond)_embedding_list", "the vocabularies of atoms and bonds differ between versions of ogb"),
        (r"\.mean_scale\b", "GraphNorm's, which gt.layer_norm means in the dialects exphormer and kmip-thesis"),
        (r"\bpost_mp\.|\bhead\.", "for a new prediction head set pretrained.reset_prediction_head True"),
    ),
)
