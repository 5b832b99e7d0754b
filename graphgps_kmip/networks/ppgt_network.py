"""Network PPGT (Ma et al.): structural stems of nodes and pairs, pre-norm layers of simplified L2 attention, head.

Its keys are those of ``ppgt``, gt.sl2 (the attention), posenc_RRWP (what the stems read), and some of gt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn

from graphgps_kmip.attention import ClassAttention
from graphgps_kmip.attention.simplified_l2 import SharedPairs, SimplifiedL2Attention
from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.encoding.i2_gin import I2GINEncoder
from graphgps_kmip.encoding.positional_encoding import from_settings
from graphgps_kmip.encoding.ppgt_stems import (
    NODE_FEATURES,
    PAIR_FEATURES,
    ClassToken,
    NodeMask,
    NodeStem,
    PairFFN,
    PairStem,
    TargetNode,
)
from graphgps_kmip.encoding.rrwp import RRWP
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.model import GPSModel
from graphgps_kmip.model.ppgt_model import (
    BranchOptions,
    ClassAttentionLayer,
    PPGTEncoder,
    PPGTLayer,
    PPGTReadout,
    feed_forward,
    initialise_ppgt,
)
from graphgps_kmip.model.prediction_heads import CLASS_TOKEN
from graphgps_kmip.networks.network_settings import NetworkPlan
from graphgps_kmip.networks.network_stack import check_raw_width, encoder, layers_width, prediction_head
from graphgps_kmip.ops.row_layers import NORM_LAYERS
from graphgps_kmip.registry import entries, register

OF_CLASS_ATTENTION = ("key_norm", "scale")  # options of gt.sl2 that it has, too


@register("network", "PPGT", aliases=("BaseGraphNet",))
def ppgt(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """PPGT: gt.layers pre-norm layers of simplified L2 attention (gt.sl2), random walks of all pairs as positions.

    The layers have adaptive norms, no message passing. gt.layer_type, gt.layer_norm and gt.batch_norm are not read.
    """
    dim, gt, settings = layers_width(plan.settings), plan.settings.gt, plan.settings.ppgt
    _check_settings(plan)
    check_raw_width(plan, dim)
    layers = [_build_layer(plan, dim) for _ in range(gt.layers)]
    attentions = [layer.attention[0] for layer in layers]
    if attentions and all(isinstance(a, SimplifiedL2Attention) and a.window <= 0 for a in attentions):
        attentions[0].initial_state = SharedPairs(attentions)  # biases and factors of pairs for all of them
    class_layers = [_build_class_layer(plan, dim) for _ in range(settings.class_layers)]
    last_norm = look_up(NORM_LAYERS, settings.last_norm, "ppgt.last_norm")
    readout = PPGTReadout(
        last_norm(dim), prediction_head(plan, dim, dim_out), class_layers, last_norm(dim) if class_layers else None
    )
    network = GPSModel(
        encoder=_build_encoder(plan, dim),
        pre_mp=look_up(NORM_LAYERS, settings.first_norm, "ppgt.first_norm")(dim),
        layers=layers,
        head=readout,
        recompute=plan.settings.share.gradient_checkpointing,
    )
    stems: list[nn.Module] = []
    for module in network.encoder.modules():
        if isinstance(module, NodeStem):
            stems += module.linears.values()
        elif isinstance(module, PairStem):
            stems.append(module.mlp)
    features = network.encoder.features
    initialise_ppgt(network, [part for part in (features.node, features.edge) if part is not None], stems)
    return network


def _check_settings(plan: NetworkPlan) -> None:
    ppgt, rrwp, window = plan.settings.ppgt, plan.settings.posenc_RRWP, plan.settings.gt.sl2.window
    if not rrwp.get("enable", True) and rrwp.where != "batch":
        raise ConfigError(
            "posenc_RRWP.enable: model.type PPGT reads random walk probabilities: set it True, or posenc_RRWP.where "
            "batch"
        )
    token_settings = {
        "class_token in ppgt.node_features": "class_token" in ppgt.node_features.split("+"),
        "ppgt.class_layers 1 or more": ppgt.class_layers > 0,
        f"model.graph_pooling {CLASS_TOKEN}": plan.settings.model.graph_pooling == CLASS_TOKEN,
    }
    present, missing = (
        " and ".join(text for text, is_set in token_settings.items() if is_set is side) for side in (True, False)
    )
    if present and missing:
        raise ConfigError(f"ppgt: {present} asks for {missing}: set all or none")
    if not rrwp.sparse:
        return
    if not 0 < window < rrwp.k_hop:
        raise ConfigError(
            f"posenc_RRWP.sparse lists pairs within posenc_RRWP.k_hop {rrwp.k_hop} hops, gt.sl2.window {window} keeps "
            "those within window + 1: set the window between 1 and k_hop - 1"
        )
    if ppgt.subgraph_encoder != "none":
        raise ConfigError("ppgt.subgraph_encoder makes features of all pairs: set posenc_RRWP.sparse False, or none")


def _build_ffn(plan: NetworkPlan, dim: int) -> nn.Module:
    settings, act = plan.settings.ppgt, plan.activation()
    if settings.act:
        act = look_up(plan.list_components("activation"), settings.act, "ppgt.act")
    return feed_forward(dim, settings.ffn_ratio, plan.settings.gt.dropout, act)


def _build_layer(plan: NetworkPlan, dim: int) -> PPGTLayer:
    gt, spec = plan.settings.gt, entries("attention")["sL2"]
    attention = plan.build(spec, dim, gt.n_heads, gt.attn_dropout, dim_pair=plan.settings.ppgt.dim_pair or dim)
    return PPGTLayer(dim, attention, _build_ffn(plan, dim), _branch_options(plan, plan.settings.ppgt.drop_path))


def _build_class_layer(plan: NetworkPlan, dim: int) -> ClassAttentionLayer:
    gt = plan.settings.gt
    options = {name: gt.sl2[name] for name in OF_CLASS_ATTENTION}
    attention = ClassAttention(dim, gt.n_heads, gt.attn_dropout, **options)
    return ClassAttentionLayer(
        dim, attention, _build_ffn(plan, dim), _branch_options(plan, plan.settings.ppgt.class_drop_path)
    )


def _branch_options(plan: NetworkPlan, drop_path: float) -> BranchOptions:
    ppgt = plan.settings.ppgt
    return BranchOptions(ppgt.norm, ppgt.branch_dropout, drop_path, ppgt.layer_scale)


def _build_encoder(plan: NetworkPlan, dim: int) -> PPGTEncoder:
    rrwp, settings = from_settings(RRWP, "RRWP", plan.settings), plan.settings.ppgt
    features = encoder(plan, dim, settings.dim_pair or dim)
    mask = NodeMask(settings.mask_rate) if settings.mask_rate else None
    return PPGTEncoder(features, _build_node_stems(plan, rrwp, dim), _build_pair_stems(plan, rrwp, dim), mask)


def _build_node_stems(plan: NetworkPlan, rrwp: RRWP, dim: int) -> list[nn.Module]:
    settings = plan.settings.ppgt
    others: dict[str, Callable[[], nn.Module]] = {
        "target": lambda: TargetNode(dim),
        "class_token": lambda: ClassToken(dim, order=settings.class_token),
    }
    names = _split_names(settings.node_features, (*NODE_FEATURES, *others), "ppgt.node_features")
    linear = [name for name in names if name in NODE_FEATURES]
    stems: list[nn.Module] = [NodeStem(rrwp, dim, features=linear, dim_location=settings.dim_location)]
    return stems + [others[name]() for name in names if name in others]


def _build_pair_stems(plan: NetworkPlan, rrwp: RRWP, dim: int) -> list[nn.Module]:
    settings, width = plan.settings.ppgt, plan.settings.ppgt.dim_pair or dim
    names = _split_names(settings.pair_features, PAIR_FEATURES, "ppgt.pair_features")
    subgraphs = []
    if settings.subgraph_encoder == "I2GIN":
        layers, hops = settings.subgraph_layers, settings.subgraph_hops
        subgraphs.append(I2GINEncoder(rrwp, width, num_layers=layers, num_hops=hops))
    stem = PairStem(
        rrwp,
        width,
        features=[name for name in PAIR_FEATURES if name in names],  # the order of their columns is fixed
        num_bases=settings.num_bases,
        hidden=settings.stem_hidden,
        dim_location=settings.dim_location,
    )
    blocks = PairFFN(
        width,
        settings.stem_blocks,
        ffn_ratio=settings.stem_ffn_ratio,
        norm=settings.stem_norm,
        first_norm=settings.stem_first_norm,
        last_norm=settings.stem_last_norm,
        drop_path=settings.stem_drop_path,
        layer_scale=settings.stem_layer_scale,
    )
    return [*subgraphs, stem, blocks]


def _split_names(value: str, allowed: Iterable[str], key: str) -> list[str]:
    return [look_up({name: name for name in allowed}, name, key) for name in value.split("+") if name]
