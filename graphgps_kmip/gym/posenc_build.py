"""What a config group says of an encoding: the settings that decide its numbers, and its encoder module."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg
from yacs.config import CfgNode

from graphgps_kmip.encoding.degree import DegreeEncoder
from graphgps_kmip.encoding.feature_encoders import LinearNodeEncoder, OnEdges
from graphgps_kmip.encoding.graphormer_bias import GraphormerEncoder, GraphToken
from graphgps_kmip.encoding.kernel_encoder import KernelEncoder
from graphgps_kmip.encoding.laplacian import EquivStableLapPEEncoder
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.statistics import widest_embedding
from graphgps_kmip.signatures import options

Settings = dict[str, Any]
Build = Callable[[CfgNode, int, int | None], nn.Module]  # (group, width, columns of x or None: as wide as needed)

STABLE_VECTORS = "eigvecs_es"  # apart from those of LapPE, of which a node may have another number
RANGE = re.compile(r"range\(\s*(\d{1,15})\s*(?:,\s*(\d{1,15})\s*)?\)")
MAX_TIMES = 10_000  # far more steps than any walk needs; each is a column of the encoding


@dataclass(frozen=True)
class TimesFunction:
    """Rule for ``kernel.times_func``: an empty text, or a range that is neither empty nor longer than `MAX_TIMES`."""

    def allows(self, value: Any) -> bool:
        """Return whether the value is such a text."""
        if not isinstance(value, str) or (value.strip() and not RANGE.fullmatch(value.strip())):
            return False
        return not value.strip() or 0 < len(_range_of(value)) and _range_of(value)[-1] <= MAX_TIMES

    def __str__(self) -> str:
        """Return the rule in words."""
        return f"range(end) or range(start, end) of at least one number, up to {MAX_TIMES}"


def _range_of(text: str) -> range:
    return range(*(int(number) for number in RANGE.fullmatch(text.strip()).groups() if number))


def times(node: CfgNode, where: str) -> list[int]:
    """Return the numbers of a kernel block: ``kernel.times``, or those of ``kernel.times_func``, as range(1, 21).

    Raises:
        ConfigError: neither gives a number, or the function is not a range.
    """
    text = node.kernel.times_func
    if not TimesFunction().allows(text):
        raise ConfigError(f"{where}.kernel.times_func: expected {TimesFunction()}, got {text[:100]!r}")
    numbers = list(_range_of(text)) if text.strip() else list(node.kernel.times)
    if not numbers:
        raise ConfigError(f"{where}.kernel: it names no times: set times_func to range(1, 21), or times to a list")
    return numbers


def eigen_settings(node: CfgNode) -> Settings:
    """Return number and norms of eigenvectors."""
    return dict(node.eigen)


def times_settings(name: str) -> Callable[[CfgNode], Settings]:
    """Return the function that reads the times of an encoding."""
    return lambda node: {"times": times(node, f"posenc_{name}")}


def stable_settings(node: CfgNode) -> Settings:
    """Return those of EquivStableLapPE, whose Laplacian is that of LapPE, as in the public code."""
    norm = cfg.posenc_LapPE.eigen.laplacian_norm
    if node.eigen.laplacian_norm != norm:
        logging.info("EquivStableLapPE takes posenc_LapPE.eigen.laplacian_norm (%s) instead of its own", norm)
    return {**node.eigen, "laplacian_norm": norm}


def resistance_settings(node: CfgNode) -> Settings:
    """Return what decides the random embedding of effective resistances.

    Raises:
        ConfigError: ``er_dim`` is no number.
    """
    return {"accuracy": node.accuracy, "er_dim": er_dim(node), "seed": cfg.seed}


def graphormer_settings(node: CfgNode) -> Settings:
    """Return whether pairs of nodes have distances, and of how many edges of a path the types are kept."""
    read = node.edge_types is not False and not node.node_degrees_only and cfg.dataset.edge_encoder_num_types > 0
    return {
        "node_degrees_only": node.node_degrees_only,
        "longest": max((node.num_spatial_types or 1) - 1, 0) if read else 0,
    }


def enter_width(graphs: Sequence[Data]) -> None:
    """Enter into ``cfg.share.dim_er`` the width that holds the resistance embedding of every graph.

    Graphs that validate and test count, too: a number of columns scales nothing and tells nothing about them, and with
    fewer columns their embeddings would lose rows. It is derived from the data, so it stands among what the share
    keeps and not in ``posenc_ERN.er_dim``: a run would not be found again under a config that it has changed.
    """
    if cfg.posenc_ERN.enable and cfg.posenc_ERN.er_dim == "none" and len(graphs):
        cfg.share.dim_er = widest_embedding(graphs, cfg.posenc_ERN.accuracy)


def spectral(component: Callable[..., nn.Module]) -> Build:
    """Build an encoder of eigenvectors."""

    def build(node: CfgNode, dim: int, dim_x: int | None) -> nn.Module:
        return component(dim, dim_x, **_given(component, node), max_freqs=node.eigen.max_freqs)

    return build


def kernel(name: str, num_stats: Callable[[CfgNode], int] | None = None) -> Build:
    """Build the encoder of so many statistics; None: one of each time."""

    def build(node: CfgNode, dim: int, dim_x: int | None) -> nn.Module:
        columns = num_stats(node) if num_stats else len(times(node, f"posenc_{name}"))
        return KernelEncoder(name, columns, dim, dim_x, **_given(KernelEncoder, node))

    return build


def on_edges(name: str, build: Build, norm: bool = False) -> Build:
    """Build an encoder of ``pestat_<name>`` on edges; norm: a BatchNorm between the encoder before it and it."""

    def build_on_edges(node: CfgNode, dim: int, dim_x: int | None) -> nn.Module:
        return OnEdges(build(node, dim, dim_x), f"pestat_{name}", dim - node.dim_pe if norm else None)

    return build_on_edges


def degree(node: CfgNode, dim: int, dim_x: int | None) -> nn.Module:
    """Build the embedding of degrees."""
    return DegreeEncoder(dim, dim_x, **_given(DegreeEncoder, node))


def stable(node: CfgNode, dim: int, dim_x: int | None) -> nn.Module:
    """Build EquivStableLapPE, which is as wide as the layers and passes x; alone, raw features are mapped first."""
    module = EquivStableLapPEEncoder(
        cfg.gnn.dim_inner,
        vectors=STABLE_VECTORS,
        max_freqs=node.eigen.max_freqs,
        raw_norm_type=node.raw_norm_type,
    )
    return module if dim_x is None else nn.Sequential(LinearNodeEncoder(dim_x, dim), module)


def graphormer(node: CfgNode, dim: int, dim_x: int | None) -> nn.Module:
    """Build Graphormer's degree embeddings and attention bias, one for each head, and its graph token.

    Raises:
        ConfigError: columns of x are asked for, edge types of an unknown number, or a token before other encodings.
    """
    if node.dim_pe:
        raise ConfigError(f"posenc_GraphormerBias.dim_pe must be 0, got {node.dim_pe}: it is added to the features")
    if node.edge_types and cfg.dataset.edge_encoder_num_types < 1:
        raise ConfigError(
            "posenc_GraphormerBias.edge_types needs dataset.edge_encoder_num_types, the number of edge types: set it"
        )
    heads = cfg.graphormer.num_heads if cfg.model.type == "Graphormer" else cfg.gt.n_heads
    dropout, given = cfg.graphormer.input_dropout, _given(GraphormerEncoder, node)
    types = None if node.edge_types is False else cfg.dataset.edge_encoder_num_types or None
    if types is None and node.get("unread_tables", False):
        types = 0
    encoder = GraphormerEncoder(dim, dim_x, heads, **given, num_edge_types=types, input_dropout=dropout)
    if not cfg.graphormer.use_graph_token:
        return encoder
    name = cfg.dataset.node_encoder_name
    if name.split("+")[-1] != "GraphormerBias":
        raise ConfigError(
            f"graphormer.use_graph_token: in dataset.node_encoder_name {name}, parts after GraphormerBias have nothing "
            "for the token: put it last, or set graphormer.use_graph_token False"
        )
    heads = None if node.node_degrees_only else heads
    return nn.Sequential(encoder, GraphToken(dim, heads, dropout, move_edges=node.get("move_edges", True)))


def in_node_encoder(name: str) -> bool:
    """Return whether an encoding is part of the node encoder."""
    return cfg.dataset.node_encoder and name in cfg.dataset.node_encoder_name.split("+")


def er_dim(node: CfgNode) -> int:
    """Return the columns of an embedding of effective resistances.

    Raises:
        ConfigError: ``er_dim`` is no number, or says none before the data was seen.
    """
    given = str(cfg.share.get("dim_er", "")) if node.er_dim == "none" else node.er_dim
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(
            f"posenc_ERN.er_dim: expected a number, or none to take the width of the loaded data, got {node.er_dim!r}"
        )
    return int(given)


def _given(component: Callable[..., nn.Module], node: CfgNode) -> dict[str, Any]:
    return {name: node[name] for name in options(component) if name in node}
