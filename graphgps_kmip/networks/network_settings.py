"""Settings of networks: YAML keys with defaults and allowed values; the plan that builders read; activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial, reduce
from typing import Any

from torch import nn

from graphgps_kmip.common.near_misses import look_up, suggest
from graphgps_kmip.encoding.positional_encoding import option_keys
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.model.layer_recipe import LayerRecipe
from graphgps_kmip.mpnn.gin import INNER
from graphgps_kmip.ops.row_layers import NORM_LAYERS
from graphgps_kmip.ranges import (
    DROPOUT,
    FLAG,
    FRACTION,
    HEADS,
    NATURAL,
    NOT_NEGATIVE,
    RATIO,
    SOME_LAYERS,
    TEXT,
    WIDTH,
    Choice,
    Default,
    Each,
    Registered,
    optional,
    read_default,
    refusal,
    whole,
)
from graphgps_kmip.registry import Spec, build, components, entries, register, with_groups
from graphgps_kmip.signatures import read_rules

CLASS_TOKENS = ("none", "order")
SUBGRAPH_ENCODERS = ("none", "I2GIN")

# Key -> default, with the rule for other values; names as in GraphGPS where it has them, a comment marks what is ours.
NETWORK_DEFAULTS: dict[str, Any] = {
    "dataset.node_encoder_num_types": Default(0, NATURAL),
    "dataset.edge_encoder_num_types": Default(0, NATURAL),
    "dataset.infer_link_label": Default("None", Choice(("None",))),  # its head, infer_links, is not here
    "share.gradient_checkpointing": False,  # ours: compute layers again in the backward pass instead of keeping them
    "gnn.residual": False,
    "gnn.edge_residual": Default(None, optional(FLAG)),  # ours: of GatedGCN; None is gnn.residual
    "gnn.gine_inner": Default("mlp", Choice(INNER)),  # ours: what GINE computes inside, see gt.gine.inner
    "gnn.layer_act": Default("", Registered("an activation")),  # ours: activation inside the layers; "" is gnn.act
    "gnn.l2norm": False,  # rows of input layers and of hidden layers of heads get length 1; GraphGym says True
    "gt.layer_type": Default("GatedGCN+kMIP", Registered("--list")),
    "gt.layers": Default(3, SOME_LAYERS),
    "gt.n_heads": Default(8, HEADS),
    "gt.dim_hidden": Default(64, WIDTH),
    "gt.dropout": Default(0.0, FRACTION),
    "gt.attn_dropout": Default(0.0, DROPOUT),
    "gt.sparse_attn_dropout": Default(None, optional(DROPOUT)),  # ours: of k-MIP and Exphormer; None: attn_dropout
    "gt.batch_norm": True,
    "gt.layer_norm": False,  # statistics over all nodes and channels of a graph
    "gt.graph_norm": False,  # ours: GraphNorm
    "gt.full_graph": True,  # SAN: pairs without an edge take part
    "gt.gamma": Default(1e-5, NOT_NEGATIVE),  # SAN: with this weight
    "gt.secondary_edges": Default("full_graph", Registered("an edge set")),  # SAN: which pairs; none, or an edge set
    "gt.residual": Default(True, Choice((True,))),  # SAN
    "gt.FFN": Default(True, Choice((True,))),  # of model.type Spexphormer
    "graphormer.num_layers": Default(6, SOME_LAYERS),
    "graphormer.embed_dim": Default(80, WIDTH),
    "graphormer.num_heads": Default(4, HEADS),  # of model.type Graphormer; GPSModel has gt.n_heads
    "graphormer.dropout": Default(0.0, FRACTION),
    "graphormer.attention_dropout": Default(0.0, DROPOUT),
    "graphormer.mlp_dropout": Default(0.0, FRACTION),
    "graphormer.input_dropout": Default(0.0, FRACTION),  # of GraphormerBias, whatever the network
    "graphormer.use_graph_token": True,  # wherever GraphormerBias is a part of the node encoder
    # ours: of model.type PPGT, which has gt.layers, gt.n_heads, gt.dropout and gt.sl2, too; names joined by a plus
    "ppgt.node_features": Default("rrwp+log_degree+log_order", TEXT),  # also location, target, class_token
    "ppgt.mask_rate": Default(0.0, DROPOUT),  # nodes whose own features are 0 in a training step, see NodeMask
    "ppgt.pair_features": Default("inverse_order+inverse_degree", TEXT),  # also location
    "ppgt.class_token": Default("none", Choice(CLASS_TOKENS)),  # what it says of the number of nodes
    "ppgt.dim_location": Default(2, WIDTH),
    "ppgt.num_bases": Default(3, whole(0, 40)),  # of the sinusoidal encoding of pairs
    "ppgt.dim_pair": Default(0, whole(0, 65_536)),  # 0: gt.dim_hidden
    "ppgt.stem_hidden": Default([128], Each(WIDTH)),
    "ppgt.stem_blocks": Default(2, SOME_LAYERS),
    "ppgt.stem_ffn_ratio": Default(2.0, RATIO),
    "ppgt.stem_norm": Default("ada_rms_norm", Choice(tuple(NORM_LAYERS))),
    "ppgt.stem_first_norm": Default("none", Choice(tuple(NORM_LAYERS))),
    "ppgt.stem_last_norm": Default("ada_rms_norm", Choice(tuple(NORM_LAYERS))),
    "ppgt.stem_drop_path": Default(0.0, DROPOUT),
    "ppgt.stem_layer_scale": Default(0.0, NOT_NEGATIVE),  # start of the learned factor of a branch, 0: none
    "ppgt.norm": Default("ada_rms_norm", Choice(tuple(NORM_LAYERS))),
    "ppgt.first_norm": Default("none", Choice(tuple(NORM_LAYERS))),
    "ppgt.last_norm": Default("ada_rms_norm", Choice(tuple(NORM_LAYERS))),
    "ppgt.ffn_ratio": Default(2.0, RATIO),
    "ppgt.act": Default("", Registered("an activation")),  # inside the layers: "" is gnn.act
    "ppgt.drop_path": Default(0.0, DROPOUT),
    "ppgt.branch_dropout": Default(0.0, FRACTION),
    "ppgt.layer_scale": Default(0.0, NOT_NEGATIVE),
    "ppgt.class_layers": Default(0, SOME_LAYERS),
    "ppgt.class_drop_path": Default(0.0, DROPOUT),
    "ppgt.subgraph_encoder": Default("none", Choice(SUBGRAPH_ENCODERS)),
    "ppgt.subgraph_layers": Default(6, SOME_LAYERS),
    "ppgt.subgraph_hops": Default(4, SOME_LAYERS),
    # ours: what is around the branches of GPSModel, MultiModel and SingleModel, see `LayerRecipe`
    **{f"recipe.{row.name}": row.default for row in fields(LayerRecipe)},
    **{f"recipe.{name}": Default(getattr(LayerRecipe, name), rule) for name, rule in read_rules(LayerRecipe).items()},
    "prep.use_exp_edges": True,
    "prep.add_edge_index": True,
    "prep.num_virt_node": Default(0, whole(0, 10_000)),
}
# Keys that networks read and that GraphGym declares, with the defaults of `create_model`.
GRAPHGYM_DEFAULTS: dict[str, Any] = {
    "model.type": "GPSModel",
    "model.graph_pooling": "mean",
    "model.edge_decoding": "dot",
    "gnn.layers_pre_mp": Default(0, SOME_LAYERS),
    "gnn.layers_mp": Default(2, SOME_LAYERS),
    "gnn.layers_post_mp": Default(1, SOME_LAYERS),
    "gnn.dim_inner": Default(64, WIDTH),
    "gnn.layer_type": "GatedGCN",
    "gnn.batchnorm": True,
    "gnn.act": "relu",
    "gnn.dropout": Default(0.0, FRACTION),
    "gnn.head": "graph",
    "dataset.format": "",
    "dataset.name": "",
    "dataset.task_type": "",
    "dataset.node_encoder": True,
    "dataset.node_encoder_name": "LinearNode",
    "dataset.node_encoder_bn": False,
    "dataset.edge_encoder": True,
    "dataset.edge_encoder_name": "LinearEdge",
    "dataset.edge_encoder_bn": False,
    "posenc_EquivStableLapPE.enable": False,
}


class Settings(dict[str, Any]):
    """Nested settings whose keys are attributes, too: ``settings.gt.layers``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def network_keys() -> dict[str, Any]:
    """Return every key that a network can read, with default and rule; options of registered components included."""
    options = {}
    for spec in with_groups():
        rules = read_rules(spec.component)
        for name, option in spec.options.items():
            rule = rules.get(name)
            options[f"{spec.group}.{name}"] = option.default if rule is None else Default(option.default, rule)
    for spec in entries("encoding").values():
        options |= {f"{spec.group}.{key}": default for key, default in option_keys(spec.component).items()}
    return NETWORK_DEFAULTS | GRAPHGYM_DEFAULTS | options


def network_settings(values: Mapping[str, Any]) -> Settings:
    """Return the settings of a network: ``{"gt.kmip.k": 10}`` and such, and the defaults of all other keys.

    Raises:
        ConfigError: an unknown key, with near misses, or a value that is not allowed.
    """
    keys = network_keys()
    for key, value in values.items():
        if key not in keys:
            raise ConfigError(f"unknown key {key!r}.{suggest(key, keys)}")
        if isinstance(keys[key], Default) and (why := refusal(keys[key].rule, value)):
            raise ConfigError(f"{key}: {why}")
    tree = Settings()
    for key, entry in keys.items():
        *groups, leaf = key.split(".")
        node = reduce(lambda node, group: node.setdefault(group, Settings()), groups, tree)
        node[leaf] = values.get(key, read_default(entry))
    return tree


@dataclass(frozen=True)
class NetworkPlan:
    """What builders of networks read.

    Args:
        settings (Any): Keys as in YAML files: GraphGym's config, or `Settings`.
        dim_in (int): Columns of the node features.
        edge_dim (int): Columns of the edge features, 0 where there are none.
        others (Mapping, optional): Kind -> name -> component of other packages. (default: none)
    """

    settings: Any
    dim_in: int
    edge_dim: int
    others: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def group(self, spec: Spec) -> Mapping[str, Any]:
        """Return the config group of a component, empty for one without options."""
        return reduce(lambda node, name: node[name], spec.group.split("."), self.settings) if spec.options else {}

    def build(self, spec: Spec, *positional: Any, **others: Any) -> Any:
        """Return a new module; the plan and ``others`` are options that do not come from its group."""
        return build(spec, *positional, settings=self.group(spec), supplied={"plan": self} | others)

    def list_components(self, kind: str) -> dict[str, Any]:
        """Return the components of a kind by name and alias; of two of one name, ours."""
        return dict(self.others.get(kind, {})) | components(kind)

    def activation(self) -> Callable[[], nn.Module]:
        """Return what builds the activation ``gnn.act``."""
        return look_up(self.list_components("activation"), self.settings.gnn.act, "gnn.act")

    def layer_activation(self) -> Callable[[], nn.Module]:
        """Return what builds the activation inside GPS layers, GatedGCN and GINE: ``gnn.layer_act``, or ``gnn.act``."""
        name = self.settings.gnn.layer_act
        return look_up(self.list_components("activation"), name, "gnn.layer_act") if name else self.activation()

    def has_encoding(self, name: str) -> bool:
        """Return whether an encoding is part of the node encoder."""
        dataset = self.settings.dataset
        return dataset.node_encoder and name in dataset.node_encoder_name.split("+")


register("activation", "relu", nn.ReLU)
register("activation", "gelu", nn.GELU)
register("activation", "silu", nn.SiLU, aliases=("swish",))
register("activation", "elu", nn.ELU)
register("activation", "selu", nn.SELU)
register("activation", "prelu", nn.PReLU)
for _name, _slope in (("lrelu_01", 0.1), ("lrelu_025", 0.25), ("lrelu_05", 0.5)):
    register("activation", _name, partial(nn.LeakyReLU, _slope), summary=f"LeakyReLU of negative slope {_slope}")
