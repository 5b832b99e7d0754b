"""`create_model`: any registered network from keyword arguments, without YAML or GraphGym; `batch_of` for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.networks.gps_networks import GPS, branch_rows, refuse_unread_recipe
from graphgps_kmip.networks.network_settings import NetworkPlan, network_keys, network_settings
from graphgps_kmip.registry import lookup

# Networks whose layers are counted and named by other keys than gt.layers and gt.layer_type.
NUM_LAYERS = {
    **dict.fromkeys(("custom_gnn", "gnn", "GCN", "GAT", "APPNP"), "gnn.layers_mp"),
    "Graphormer": "graphormer.num_layers",
}
WITHOUT_LAYER_TYPE = ("GCN", "GAT", "APPNP", "Graphormer", "Performer", "BigBird", "PPGT", "Polynormer", "SGFormer")
LAYER_TYPE = dict.fromkeys(("custom_gnn", "gnn"), "gnn.layer_type")
WITHOUT_ENCODERS = ("GCN", "GAT", "APPNP")
OF_NODES = (*WITHOUT_ENCODERS, "Polynormer", "SGFormer")  # without heads for graphs
# Keyword argument -> keys, where it is not the last part of one.
SHORT = {
    "dim": ("gnn.dim_inner", "gt.dim_hidden", "graphormer.embed_dim"),
    "num_heads": ("gt.n_heads", "graphormer.num_heads"),
    "dropout": ("gt.dropout", "gnn.dropout", "graphormer.dropout"),
    "pooling": ("model.graph_pooling",),
    "node_encoder": ("dataset.node_encoder_name",),
    "edge_encoder": ("dataset.edge_encoder_name",),
}
# where a bare option is looked for, in order
GROUPS = ("ppgt", "gt", "gnn", "graphormer", "model", "prep", "dataset", "share", "recipe")


def create_model(
    layer_type: str,
    in_dim: int,
    out_dim: int,
    *,
    network: str = "GPSModel",
    num_layers: int | None = None,
    edge_dim: int = 0,
    settings: Mapping[str, Any] = {},  # noqa: B006
    **options: Any,
) -> nn.Module:
    """Return a new network, ``model(batch) -> (prediction, labels)`` on any batch of torch_geometric, or a plain Data.

    Example::

        model = create_model("GatedGCN+kMIP", in_dim=9, out_dim=10, num_layers=4, dim=64, k=10)

    Args:
        layer_type (str): Branches of a layer joined by a plus, as ``gt.layer_type``.
        in_dim (int): Columns of ``batch.x``.
        out_dim (int): Columns of the prediction.
        network (str, optional): Its name, as ``model.type``. (default: ``"GPSModel"``)
        num_layers (int, optional): Number of layers. (default: that of the network's key)
        edge_dim (int, optional): Columns of ``batch.edge_attr``; 0: edges get one learned vector. (default: ``0``)
        settings (Mapping, optional): Dotted keys as in YAML files -> values. (default: none)
        **options: Last parts of such keys, of the network and the components in ``layer_type`` first (``k=10``
            is ``gt.kmip.k``), and the names of `SHORT`.

    Raises:
        ConfigError: an unknown name or option, with near misses; a value that is not allowed.
    """
    values: dict[str, Any] = {"model.type": network}
    if network not in WITHOUT_LAYER_TYPE:
        values[LAYER_TYPE.get(network, "gt.layer_type")] = layer_type
    if num_layers is not None:
        values[NUM_LAYERS.get(network, "gt.layers")] = num_layers
    if network in WITHOUT_ENCODERS:
        values |= {"dataset.node_encoder": False, "dataset.edge_encoder": False}
    elif not edge_dim:
        values["dataset.edge_encoder_name"] = "DummyEdge"
    if network in OF_NODES:
        values["gnn.head"] = "inductive_node"
    for name, value in options.items():
        values |= dict.fromkeys(_find_keys(name, network, layer_type), value)
    plan = NetworkPlan(network_settings(values | dict(settings)), in_dim, edge_dim)
    refuse_unread_recipe(plan)
    return plan.build(lookup("network", network), in_dim, out_dim)


def batch_of(graphs: Sequence[Data], split: str | None = None) -> Batch:
    """Return graphs as the batch of a trained model: schedules at their end; for ``split`` see `GPSModel.forward`."""
    batch = Batch.from_data_list(list(graphs))
    batch.progress = 1.0
    if split is not None:
        batch.split = split
    return batch


def _find_keys(name: str, network: str, layer_type: str) -> tuple[str, ...]:
    if name in SHORT:
        return SHORT[name]
    all_keys = network_keys()
    plan = NetworkPlan(network_settings({"gt.layer_type": layer_type}), 0, 0)
    branches = branch_rows(plan) if network in GPS else ()
    specs = [lookup("network", network), *(row.spec for row in branches)]
    keys = sorted({f"{spec.group}.{name}" for spec in specs if name in spec.options})
    if len(keys) > 1:
        raise ConfigError(f"create_model: {name} may be {' or '.join(keys)}: give settings={{{keys[0]!r}: ...}}")
    keys = keys or [f"{group}.{name}" for group in GROUPS if f"{group}.{name}" in all_keys]
    if not keys:
        names = {key.rsplit(".", 1)[-1] for key in all_keys} | set(SHORT)
        raise ConfigError(f"create_model: unknown option {name!r}.{suggest(name, names)}")
    return (keys[0],)
