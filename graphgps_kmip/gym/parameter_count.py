"""Parameter counts by component, in the words of the k-MIP thesis, and the text of a dry run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from torch import nn
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.models.layer import GeneralLayer
from torch_geometric.nn import GATConv, GCNConv

from graphgps_kmip.attention.bigbird import BigBirdAttention
from graphgps_kmip.attention.exphormer import ExpanderMessages, ExphormerAttention, ExphormerStart
from graphgps_kmip.attention.full import FullAttention
from graphgps_kmip.attention.kmip import KMIPAttention
from graphgps_kmip.attention.performer import PerformerAttention
from graphgps_kmip.attention.san import SANAttention, SANStart
from graphgps_kmip.data import find, published_rows
from graphgps_kmip.encoding.degree import DegreeEncoder
from graphgps_kmip.encoding.graphormer_bias import GraphormerEncoder, GraphToken
from graphgps_kmip.encoding.kernel_encoder import KernelEncoder, OnEdges
from graphgps_kmip.encoding.laplacian import EquivStableLapPEEncoder, LapPEEncoder
from graphgps_kmip.encoding.signnet import SignNetEncoder
from graphgps_kmip.gym.data_loading import missing_data, stand_in
from graphgps_kmip.gym.experiment import Parts, assemble
from graphgps_kmip.gym.network_building import GraphGymLayer
from graphgps_kmip.model import (
    AttentionLayer,
    EdgeHead,
    FeatureEncoder,
    GNNLayer,
    GPSLayer,
    GPSModel,
    GraphHead,
    GraphormerHead,
    GraphormerLayer,
    NodeHead,
    SequenceHead,
    TransformerLayer,
)
from graphgps_kmip.model.layer_recipe import adds_nothing
from graphgps_kmip.model.san_layer import SANLayer
from graphgps_kmip.mpnn import GINE, GatedGCN
from graphgps_kmip.networks.branches import GPS
from graphgps_kmip.networks.gps_networks import norm_of, recipe_of

ALL = ""  # every part of a module that has no row of its own
# class -> its attributes -> component. The innermost module that says something decides.
PARTS: dict[type[nn.Module], dict[str, str]] = {
    GPSModel: {"pre_mp": "input_layer", "jump": "jump"},
    FeatureEncoder: {"node": "node_enc", "edge": "edge_enc", "node_norm": "node_bn", "edge_norm": "edge_bn"},
    LapPEEncoder: {ALL: "LapPE", "linear_x": "node_enc"},
    EquivStableLapPEEncoder: {ALL: "ESLapPE"},
    SignNetEncoder: {ALL: "SignNet", "linear_x": "node_enc"},
    KernelEncoder: {ALL: "{name}", "linear_x": "node_enc"},
    DegreeEncoder: {ALL: "Degree", "linear_x": "node_enc"},
    GraphormerEncoder: {ALL: "GraphormerBias", "linear_x": "node_enc"},
    GraphToken: {ALL: "GraphormerBias"},
    OnEdges: {"norm": "edge_enc"},
    GNNLayer: {},
    GraphGymLayer: {},
    GPSLayer: {"local_norm": "branch_norms", "attention_norm": "branch_norms", "ffn": "ffn", "ffn_norm": "ffn_norm"}
    | {"local_residual": "residual_lin"},
    GraphormerLayer: {"attention_norm": "branch_norms", "mlp": "ffn"},
    AttentionLayer: {},
    TransformerLayer: {"attention_norm": "branch_norms", "ffn": "ffn", "ffn_norm": "ffn_norm"},
    ExpanderMessages: {},
    GatedGCN: dict.fromkeys("ABCDE", "gated_lin")
    | {"node_norm": "gated_bn", "edge_norm": "gated_bn", "gate": "es_gate"},
    GINE: {"inner": "gine_mlp", "gate": "es_gate"},
    GCNConv: {ALL: "gcn_lin"},
    GATConv: {ALL: "gat_lin", "att_src": "gat_att", "att_dst": "gat_att", "att_edge": "gat_att"},
    GeneralLayer: {"post_layer": "bn"},
    FullAttention: {ALL: "mha"},
    PerformerAttention: {ALL: "performer"},
    BigBirdAttention: dict.fromkeys(("query", "key", "value"), "bb_qkv")
    | {"out": "bb_out", "ffn": "bb_ffn", "out_norm": "bb_ln", "ffn_norm": "bb_ln"},
    ExphormerAttention: {ALL: "exph_qkve"},
    ExphormerStart: {ALL: "virtual_emb", "expander": "expander_emb"},
    KMIPAttention: {"query": "kmip_qk", "key": "kmip_qk", "value": "kmip_v", "out": "kmip_out"},
    SANLayer: {"attention_norm": "branch_norms", "ffn": "ffn", "ffn_norm": "ffn_norm"},
    SANAttention: dict.fromkeys(("query", "key", "edge"), "san_qke")
    | dict.fromkeys(("fake_query", "fake_key", "fake_edge"), "san_fake_qke")
    | {"value": "san_v", "out": "san_out", "gamma": "san_gamma"},
    SANStart: {ALL: "fake_edge_emb"},
    GraphHead: {"mlp": "head_hidden"},
    NodeHead: {"mlp": "head_hidden"},
    EdgeHead: {"mlp": "head_hidden"},
    GraphormerHead: {"norm": "head_norm", "mlp": "head_hidden"},
    SequenceHead: {ALL: "head_out"},
}
IN_LAYER = re.compile(r"layers\.(\d+)\.")
SHARED = ("expander_emb", "virtual_emb", "fake_edge_emb")  # stand in the first layer, and serve all


def count_by_component(model: nn.Module) -> tuple[dict[str, int], dict[str, int]]:
    """Return the parameters of each component: of those that a network has once, and of those of each layer.

    Args:
        model: network, or GraphGym's wrapper of one.

    Raises:
        ValueError: the layers differ, as those of gnn.stage_type skipconcat do: `count_layers` gives each of them.
    """
    once, layers = count_layers(model)
    if any(layer != layers[0] for layer in layers):
        raise ValueError("the layers of this network differ, count_layers counts each of them")
    return once, layers[0] if layers else {}


def count_layers(model: nn.Module) -> tuple[dict[str, int], list[dict[str, int]]]:
    """Return the parameters of each component: of those that a network has once, and of each layer's, layer by layer.

    Parts without a name of their own get that of their class, so that the sum is always that of all parameters.
    """
    network = getattr(model, "model", model)  # GraphGym wraps its networks once
    once: Counter[str] = Counter()
    layers: dict[int, Counter[str]] = {}
    last = _last_of_head(network)
    for name, parameter in network.named_parameters():
        component = "head_out" if id(parameter) in last else _component(network, name)
        found = IN_LAYER.match(name)
        into = layers.setdefault(int(found[1]), Counter()) if found and component not in SHARED else once
        into[component] += parameter.numel()
    return dict(once), [dict(layers[i]) for i in sorted(layers)]


def _component(network: nn.Module, name: str) -> str:
    """Return the component of one parameter, from the innermost class of `PARTS` on the way to it."""
    component, first = "", ""
    for module, attribute in _way(network, name):
        known = next((kind for kind in type(module).__mro__ if kind in PARTS), None)  # its own, or a base class's
        row = PARTS.get(known, {})
        if attribute in row or ALL in row:
            component = row.get(attribute, row.get(ALL, "")).format(name=getattr(module, "name", ""))
        elif module is not network and known is None and type(module) not in (nn.ModuleList, nn.Sequential):
            first = first or type(module).__name__
    return component or first or name.split(".")[0]


def _way(network: nn.Module, name: str) -> Iterator[tuple[nn.Module, str]]:
    """Yield (module, attribute) from the network down to a parameter."""
    module = network
    *modules, leaf = name.split(".")
    for attribute in modules:
        yield module, attribute
        module = getattr(module, attribute)
    yield module, leaf


def _last_of_head(network: nn.Module) -> set[int]:
    """Return the ids of the parameters of the last linear map of a head's MLP."""
    mlp = getattr(getattr(network, "head", None), "mlp", None)
    return {id(parameter) for parameter in mlp[-1].parameters()} if isinstance(mlp, nn.Sequential) else set()


def dry_run() -> str:
    """Return what `describe` says of the loaded config, which is frozen by it.

    Where the raw files of the data set are missing, nothing is downloaded: the model is built from the dims that its
    record knows, and the last section says what is missing and where it goes.

    Raises:
        DataError: the files are missing, and only they tell the dims (Folder data).
    """
    missing = missing_data()
    if not missing:
        return describe(assemble())
    with stand_in():
        parts = assemble()
    record = find(cfg.dataset.format, cfg.dataset.name)
    return describe(parts, [*published_rows(record, parts.info), ("missing", missing)])


def describe(parts: Parts, data: Sequence[tuple[str, str]] | None = None) -> str:
    """Return config, model, counts and data statistics as text.

    Args:
        parts: of the run.
        data: rows (what, value) on the data set; None: what was found in it.
    """
    sections = {
        "config": parts.config.dump().rstrip(),
        "model": str(parts.model),
        **_layers_in_words(parts),
        "parameters": parameter_table(parts.model),
        "data": "\n".join(f"{name:<28} {value}" for name, value in data or parts.info.describe()),
    }
    return "\n\n".join(f"--- {title}\n{text}" for title, text in sections.items())


def _layers_in_words(parts: Parts) -> dict[str, str]:
    """Return the section that says what stands around the branches, for networks of GPS layers."""
    config = parts.config
    if config.model.type not in GPS:
        return {}
    norm = norm_of(config.gt)
    named = {"none": "no norms", "batch": "batch norm", "layer": "layer norm", "graph": "graph norm"}[norm]
    recipe = recipe_of(config) if config.model.type != "SingleModel" else replace(recipe_of(config), ffn=False)
    bare = {type(one).__name__ for one in parts.model.modules() if adds_nothing(one)}  # whatever the recipe says
    without = "".join(f"; no residual of nodes in {name}" for name in sorted(bare))
    return {"layers": f"{config.gt.layers} of {config.gt.layer_type}: {recipe.describe()}; {named}{without}"}


def parameter_table(model: nn.Module) -> str:
    """Return the parameter count of each component, once those of layers that are alike, and their sum."""
    once, layers = count_layers(model)
    rows = list(once.items())
    start = 0
    for layer, alike in groupby(layers):
        stop = start + len(list(alike))
        name = f"layers.{start}" if stop == start + 1 else f"layers.{start} to layers.{stop - 1}, each"
        rows += [(name, sum(layer.values())), *((f"  {part}", count) for part, count in layer.items())]
        start = stop
    rows.append(("total", sum(once.values()) + sum(sum(layer.values()) for layer in layers)))
    return "\n".join(f"{name:<28} {count:>12,}" for name, count in rows)
