"""Network stack: encoders of nodes and edges, pre-MLP and prediction heads around the layers of every network.

Encoders and heads are functions from widths to a module, under their public names. As in GraphGPS,
``Atom+LapPE+RWSE`` is an encoder of the data's features and two encodings, for whose widths ``dim_pe`` it leaves room;
``RWSE`` alone maps the raw features linearly. Of edges: ``Bond+RWSEEdge``, or ``ERE``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations
from typing import Annotated, Any

from torch import nn

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.encoding import coco_voc_superpixels as superpixels
from graphgps_kmip.encoding import feature_encoders as features
from graphgps_kmip.encoding.positional_encoding import encoding_parts, from_settings
from graphgps_kmip.encoding.rrwp import RRWPLinear
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.model import EdgeHead, FeatureEncoder, GPSModel, GraphHead, NodeHead, SequenceHead, input_layers
from graphgps_kmip.model.layer_recipe import JumpingConnections, LayerRecipe
from graphgps_kmip.model.prediction_heads import LinearHead, san_graph_head
from graphgps_kmip.networks.network_settings import NetworkPlan
from graphgps_kmip.ops.row_layers import NORM_LAYERS
from graphgps_kmip.ranges import NATURAL, Choice
from graphgps_kmip.registry import Spec, named, register

Act = Callable[[], nn.Module]


def layers_width(settings: Any, group: str = "gt", width: str = "dim_hidden", layers: str = "layers") -> int:
    """Return the width of a network whose layers have these keys in a group."""
    dim, dim_layers, num_layers = settings.gnn.dim_inner, settings[group][width], settings[group][layers]
    if dim_layers != dim:
        raise ConfigError(
            f"{group}.{width} ({dim_layers}) and gnn.dim_inner ({dim}) must be equal: encoder, layers and head share "
            "one width"
        )
    if num_layers < 1:
        raise ConfigError(f"{group}.{layers}: expected 1 or more, got {num_layers}")
    return dim


def stack(
    plan: NetworkPlan,
    dim: int,
    dim_out: int,
    layers: Sequence[nn.Module],
    dim_edge: int | None = None,
    *,
    recipe: LayerRecipe = LayerRecipe(),  # noqa: B008 (frozen)
) -> GPSModel:
    """Return the network of these layers, of width C, with edge features of width ``dim_edge``, C if None."""
    return GPSModel(
        encoder=encoder(plan, dim, dim_edge),
        pre_mp=input_part(plan, dim),
        layers=layers,
        head=prediction_head(plan, dim, dim_out),
        recompute=plan.settings.share.gradient_checkpointing,
        jump=None if recipe.jump == "none" else JumpingConnections(dim, len(layers), recipe.jump),
        feature_dropout=recipe.feature_dropout,
        edge_dropout=recipe.edge_dropout,
    )


def encoder(plan: NetworkPlan, dim: int, dim_edge: int | None = None, reads_edges: bool = True) -> FeatureEncoder:
    """Return the encoder of nodes, to width ``dim``, and of edges that the network reads, to ``dim_edge``."""
    data, rrwp = plan.settings.dataset, None
    node = node_encoder(plan, data.node_encoder_name, dim) if data.node_encoder else None
    if isinstance(node, nn.Sequential) and isinstance(node[-1], RRWPLinear):  # comes after the norms
        node, rrwp = node[:-1], node[-1]
    dim_edge = dim_edge or dim
    edge = edge_encoder(plan, data.edge_encoder_name, dim_edge) if data.edge_encoder and reads_edges else None
    return FeatureEncoder(dim, node, edge, data.node_encoder_bn, data.edge_encoder_bn, dim_edge, rrwp)


def check_raw_width(plan: NetworkPlan, dim: int, otherwise: str = "") -> None:
    """Raise a ConfigError if nothing brings node features to the width of the layers; `otherwise`: what else helps."""
    if not plan.settings.dataset.node_encoder and plan.dim_in != dim:
        raise ConfigError(
            f"dataset.node_encoder is False, so gnn.dim_inner ({dim}) must be the data's width {plan.dim_in}: set "
            f"dataset.node_encoder True and dataset.node_encoder_name LinearNode{otherwise}"
        )


def input_part(plan: NetworkPlan, dim: int, any_width: bool = False) -> nn.Sequential | None:
    """Return gnn.layers_pre_mp layers between encoder and stack, or None; `any_width`: the stack reads raw features."""
    gnn, raw = plan.settings.gnn, None if plan.settings.dataset.node_encoder else plan.dim_in
    if gnn.layers_pre_mp < 1 and not any_width:
        check_raw_width(plan, dim, ", or gnn.layers_pre_mp 1")
    return input_layers(dim, gnn.layers_pre_mp, gnn.batchnorm, gnn.dropout, plan.activation(), gnn.l2norm, raw)


def prediction_head(plan: NetworkPlan, dim: int, dim_out: int) -> nn.Module:
    """Return the head gnn.head; ours come before GraphGym's of the same name."""
    settings, name = plan.settings, plan.settings.gnn.head
    entry = look_up(dict(plan.others.get("head", {})) | named("head"), name, "gnn.head")
    head = build_head(plan, entry, dim, dim_out) if isinstance(entry, Spec) else entry(dim, dim_out)
    has_token = settings.graphormer.use_graph_token and plan.has_encoding("GraphormerBias")
    level = getattr(head, "level", "")  # "": of another package
    if has_token and level not in ("graph", ""):
        raise ConfigError(
            f"graphormer.use_graph_token: gnn.head {name} would predict the tokens of graphs, too: set it False"
        )
    if settings.model.graph_pooling == "graph_token" and level == "graph" and not has_token:
        raise ConfigError(
            "model.graph_pooling graph_token: the graphs have no token: set graphormer.use_graph_token True, with "
            "GraphormerBias as the last part of dataset.node_encoder_name, or take another pooling"
        )
    return head


def build_head(plan: NetworkPlan, spec: Spec, dim: int, dim_out: int) -> nn.Module:
    """Return a head, whose options come from the settings."""
    gnn = plan.settings.gnn
    options = {"num_layers": gnn.layers_post_mp, "pooling": plan.settings.model.graph_pooling, "dropout": gnn.dropout}
    return plan.build(spec, dim, dim_out, act=plan.activation(), **options)


def superpixel_edge_encoder(scale: superpixels.Scale, dim: int, *, edge_dim: int) -> nn.Module:
    """Return the encoder of superpixel edges: no scale is published for those of one number."""
    if edge_dim == 1:
        return features.LinearEdgeEncoder(1, dim)
    return superpixels.SuperpixelEdgeEncoder(scale, dim)


NODE_ENCODERS: dict[str, tuple[Callable[..., nn.Module], str]] = {
    "LinearNode": (lambda dim, *, dim_in: features.LinearNodeEncoder(dim_in, dim), "Linear map of the node features."),
    "TypeDictNode": (
        lambda dim, *, num_types: features.TypeDictNodeEncoder(num_types, dim),
        "Embedding of an integer node type; dataset.node_encoder_num_types of them.",
    ),
    "PPANode": (features.ConstantNodeEncoder, "One learned vector for every node, for graphs without node features."),
    "Atom": (lambda dim: features.AtomEncoder(features.ATOM, dim), "Sum of the embeddings of ogb's 9 atom features."),
    "ASTNode": (features.SyntaxNodeEncoder, "Sum of the embeddings of type, attribute and depth in a syntax tree."),
}
EDGE_ENCODERS: dict[str, tuple[Callable[..., nn.Module], str]] = {
    "LinearEdge": (
        lambda dim, *, edge_dim: features.LinearEdgeEncoder(edge_dim, dim),
        "Linear map of the edge features.",
    ),
    "TypeDictEdge": (
        lambda dim, *, num_types: features.TypeDictEdgeEncoder(num_types, dim),
        "Embedding of an integer edge type; dataset.edge_encoder_num_types of them.",
    ),
    "DummyEdge": (features.ConstantEdgeEncoder, "One learned vector for every edge, for graphs without edge features."),
    "Bond": (lambda dim: features.BondEncoder(features.BOND, dim), "Sum of the embeddings of ogb's 3 bond features."),
    "ASTEdge": (features.SyntaxEdgeEncoder, "Sum of the embeddings of type and direction of an edge in a syntax tree."),
}
for _prefix, _title, _node_scale, _edge_scale in (
    ("VOC", "PascalVOC-SP", superpixels.VOC_NODE, superpixels.VOC_EDGE),
    ("COCO", "COCO-SP", superpixels.COCO_NODE, superpixels.COCO_EDGE),
):
    NODE_ENCODERS[f"{_prefix}Node"] = (
        partial(superpixels.SuperpixelNodeEncoder, _node_scale),
        f"Linear map of {_title}'s 14 node features, standardised.",
    )
    EDGE_ENCODERS[f"{_prefix}Edge"] = (
        partial(superpixel_edge_encoder, _edge_scale),
        f"Linear map of {_title}'s edge features, standardised where there are 2 (edge_wt_region_boundary).",
    )
ALIASES = {"LinearNode": ("CityNetworkNode",), "LinearEdge": ("PPAEdge",)}  # CityNetwork's columns: made when loaded
for _kind, _table in (("node_encoder", NODE_ENCODERS), ("edge_encoder", EDGE_ENCODERS)):
    for _name, (_build, _summary) in _table.items():
        register(_kind, _name, _build, aliases=ALIASES.get(_name, ()), summary=_summary)

MAX_ENCODINGS = 3  # in one of the `composed_names`, as in GraphGPS


def composed_names(kind: str) -> list[str]:
    """Return the names of encodings (of a kind of encoder) alone, and of an encoder with one to three of them."""
    parts = encoding_parts(on_edges=kind == "edge_encoder")
    combinations = ["+".join(names) for count in range(1, MAX_ENCODINGS + 1) for names in permutations(parts, count)]
    return [*parts, *(f"{first}+{rest}" for first in named(kind) for rest in combinations)]


def build_named_encoder(plan: NetworkPlan, name: str, dim: int, *, kind: str) -> nn.Module:
    """Return the encoder of a name that may join parts; kind is "node_encoder" or "edge_encoder".

    An encoding of edges alone comes with a linear map of the edge features, or one learned vector if there are none.
    """
    key, on_edges = f"dataset.{kind}_name", kind == "edge_encoder"
    parts, others = encoding_parts(on_edges), plan.others.get(kind, {})
    first, *rest = name.split("+")
    composed = first in (named(kind) | parts) and all(part in parts for part in rest)
    if name in named(kind) or (name in others and not composed):  # GraphGPS registers names whose parts we have
        return _build_features(plan, kind, name, dim)
    if first in parts and not rest:
        if not on_edges:
            return from_settings(parts[first].component, parts[first].name, plan.settings).encoder(dim, plan.dim_in)
        first, rest = "LinearEdge" if plan.edge_dim else "DummyEdge", [first]
    look_up(dict(others) | named(kind), first, key)
    specs = [look_up(parts, part, key) for part in rest]
    encodings = [from_settings(spec.component, spec.name, plan.settings) for spec in specs]
    width = dim - sum(encoding.width for encoding in encodings)
    if width < on_edges:  # in GraphGPS encodings of nodes may take all columns
        raise ConfigError(f"{key}: {name}: its encodings take {dim - width} of {dim} columns: lower their dim_pe")
    modules = [_build_features(plan, kind, first, width)]
    for encoding in encodings:
        width += encoding.width
        modules.append(encoding.encoder(width, None))
    return nn.Sequential(*modules)


node_encoder = partial(build_named_encoder, kind="node_encoder")
edge_encoder = partial(build_named_encoder, kind="edge_encoder")


def _build_features(plan: NetworkPlan, kind: str, name: str, dim: int) -> nn.Module:
    entry: Any = named(kind).get(name)
    return plan.others[kind][name](dim) if entry is None else build_encoder(plan, entry, dim)


def build_encoder(plan: NetworkPlan, spec: Spec, dim: int) -> nn.Module:
    """Return an encoder of nodes or of edges, whose options come from the settings and the data."""
    types = plan.settings.dataset[f"{spec.kind}_num_types"]
    return plan.build(spec, dim, dim_in=plan.dim_in, edge_dim=plan.edge_dim, num_types=types)


def hidden_options(plan: NetworkPlan) -> dict[str, Any]:
    """Return the options of a head's hidden layers; GraphGym's have a ReLU, no dropout, and rows of length 1."""
    if plan.settings.model.type == "gnn" or plan.settings.gnn.l2norm:
        return {"dropout": 0.0, "act": nn.ReLU, "l2norm": True}
    return {"dropout": plan.settings.gnn.dropout, "act": plan.activation()}


@register("head", "graph")
def graph(dim_in: int, dim_out: int, *, plan: NetworkPlan, num_layers: int, pooling: str) -> nn.Module:
    """Pool the nodes (model.graph_pooling), then an MLP: one prediction per graph."""
    return GraphHead(dim_in, dim_out, num_layers, pooling, **hidden_options(plan))


@register("head", "mlp_graph")
def mlp_graph(dim_in: int, dim_out: int, *, num_layers: int, pooling: str, dropout: float, act: Act) -> nn.Module:
    """As graph, with dropout before each layer of the MLP: also on the pooled nodes."""
    return GraphHead(dim_in, dim_out, num_layers, pooling, dropout, act, input_dropout=True)


@register("head", "san_graph")
def san_graph(dim_in: int, dim_out: int, *, plan: NetworkPlan, pooling: str) -> nn.Module:
    """Pool the nodes (model.graph_pooling), then an MLP that halves the width twice: one prediction per graph."""
    return san_graph_head(dim_in, dim_out, pooling, act=plan.layer_activation())


@register("head", "ogb_code_graph")
def ogb_code_graph(dim_in: int, dim_out: int, *, pooling: str) -> nn.Module:
    """Pool the nodes (model.graph_pooling), then one linear map for each of the 5 words of a name."""
    return SequenceHead(dim_in, dim_out, pooling=pooling)


@register("head", "graphormer_graph")
def graphormer_graph(dim_in: int, dim_out: int, *, pooling: str) -> nn.Module:
    """LayerNorm of the nodes, pool them (model.graph_pooling), then one linear map: one prediction per graph."""
    return GraphHead(dim_in, dim_out, pooling=pooling, node_norm=True)


@register("head", "linear_graph", aliases=("linear_graph_nodecay",))
def linear_graph(
    dim_in: int,
    dim_out: int,
    *,
    num_layers: int,
    pooling: str | None,
    dropout: float,
    act: Act,
    halve_widths: bool = False,
    post_pooling_norm: Annotated[str, Choice(tuple(NORM_LAYERS))] = "none",
    out_bn: bool = False,
    out_dim: Annotated[int, NATURAL] = 0,
) -> nn.Module:
    """Pool the nodes (model.graph_pooling, also cls_token), norm, dropout, an MLP that keeps the width: PPGT's.

    ``halve_widths`` halves each hidden layer; ``out_bn`` normalises the ``out_dim`` outputs (0: those of the data).
    """
    options = {"norm": post_pooling_norm, "halve_widths": halve_widths, "out_bn": out_bn}
    return LinearHead(dim_in, out_dim or dim_out, num_layers, pooling, dropout, act, **options)


@register("head", "linear_node", aliases=("linear_node_nodecay",))
def linear_node(
    dim_in: int,
    dim_out: int,
    *,
    num_layers: int,
    dropout: float,
    act: Act,
    halve_widths: bool = False,
    post_pooling_norm: Annotated[str, Choice(tuple(NORM_LAYERS))] = "none",
    out_bn: bool = False,
    out_dim: Annotated[int, NATURAL] = 0,
) -> nn.Module:
    """As linear_graph, without pooling: predictions of all nodes, or of those of the split at hand."""
    options = {"norm": post_pooling_norm, "halve_widths": halve_widths, "out_bn": out_bn}
    return LinearHead(dim_in, out_dim or dim_out, num_layers, None, dropout, act, **options)


@register("head", "node")
def node(dim_in: int, dim_out: int, *, plan: NetworkPlan, num_layers: int) -> nn.Module:
    """MLP on the nodes of the split at hand: one graph, divided by masks (transductive)."""
    return NodeHead(dim_in, dim_out, num_layers, masked=True, **hidden_options(plan))


@register("head", "inductive_node")
def inductive_node(dim_in: int, dim_out: int, *, plan: NetworkPlan, num_layers: int) -> nn.Module:
    """MLP on all nodes of every graph: whole graphs are divided (inductive)."""
    return NodeHead(dim_in, dim_out, num_layers, **hidden_options(plan))


@register("head", "inductive_edge")
def inductive_edge(dim_in: int, dim_out: int, *, plan: NetworkPlan, num_layers: int) -> nn.Module:  # noqa: ARG001
    """Logits of labelled pairs of nodes (model.edge_decoding) and ranks within their graph: many graphs."""
    return EdgeHead(dim_in, num_layers, plan.settings.model.edge_decoding, **hidden_options(plan))


@register("head", "link_pred")
def link_pred(dim_in: int, dim_out: int, *, plan: NetworkPlan, num_layers: int) -> nn.Module:  # noqa: ARG001
    """Logits of labelled pairs of nodes (model.edge_decoding), without ranks: also for one large graph."""
    return EdgeHead(dim_in, num_layers, plan.settings.model.edge_decoding, ranked=False, **hidden_options(plan))


@register("head", "edge")
def edge(dim_in: int, dim_out: int, *, plan: NetworkPlan, num_layers: int) -> nn.Module:
    """Class or targets of labelled pairs of nodes (dataset.task_type; model.edge_decoding concat for several)."""
    decoding = plan.settings.model.edge_decoding
    return EdgeHead(dim_in, num_layers, decoding, ranked=False, dim_out=dim_out, **hidden_options(plan))


# What has a label -> heads that predict something else, with what fits.
UNFIT: dict[str, tuple[tuple[str, ...], str]] = {
    "graph": (("node", "inductive_node", "linear_node", "inductive_edge", "link_pred", "edge"), "graph"),
    "inductive_node": (("graph", "mlp_graph", "san_graph", "graphormer_graph", "linear_graph"), "inductive_node"),
    "sampled": (("graph", "mlp_graph", "san_graph", "graphormer_graph", "linear_graph"), "node"),
}
UNFIT["subgraph"] = UNFIT["graph"]
UNFIT["link"] = ((*UNFIT["sampled"][0], "node", "inductive_node", "linear_node"), "edge or link_pred")
UNFIT["node"] = ((*UNFIT["sampled"][0], "inductive_node"), "node")  # which would learn the labels of test nodes, too
LABELLED = {
    "graph": "each graph",
    "inductive_node": "each node; the public codes stop at their first loss, with fewer predictions than labels",
    "subgraph": "the subgraph around each node (train.sampler node2subgraph)",
    "node": "each node of one graph, of which a split has some",
    "link": "pairs of nodes",
}


def check_head(settings: Any, level: str) -> None:
    """Raise a ConfigError for a head that the labels of the data do not fit, which no public code can train either.

    Args:
        settings (Any): Config with the groups ``gnn`` and ``dataset``.
        level (str): Of the data set, see `DatasetRecord`; "subgraph", of a node; "sampled", of nodes of a split.
    """
    unfit, right = UNFIT.get(level, ((), ""))
    if settings.gnn.head in unfit:
        labelled = LABELLED.get(level, "each node")
        raise ConfigError(
            f"gnn.head: {settings.gnn.head} does not fit {settings.dataset.format} {settings.dataset.name}, which has "
            f"a label for {labelled}: set gnn.head {right} (`default` is what dataset.task says)"
        )
    if settings.gnn.head == "ogb_code_graph" and settings.dataset.task_type != "subtoken_prediction":
        raise ConfigError(
            "gnn.head: ogb_code_graph predicts the words of a name, and dataset.task_type is "
            f"{settings.dataset.task_type}: set it to subtoken_prediction, or take the head graph"
        )
