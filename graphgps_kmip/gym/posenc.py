"""Positional and structural encodings by name: config groups, what is computed of each graph, encoder modules."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg
from yacs.config import CfgNode

from graphgps_kmip.data import Encoding
from graphgps_kmip.encoding.electrostatic import NUM_STATISTICS, electrostatic_statistics
from graphgps_kmip.encoding.heat_kernel import heat_kernel_diagonal
from graphgps_kmip.encoding.kernel_encoder import KernelEncoder
from graphgps_kmip.encoding.laplacian import laplacian_eigenpairs_of
from graphgps_kmip.encoding.laplacian_encoder import LapPEEncoder
from graphgps_kmip.encoding.random_walk import return_probabilities
from graphgps_kmip.encoding.signnet import SignNetEncoder
from graphgps_kmip.gym.binding import options
from graphgps_kmip.gym.errors import ConfigError

Attributes = list[dict[str, Tensor]]
Compute = Callable[[list[Data], CfgNode], Attributes]
Build = Callable[[CfgNode, int, int | None], nn.Module]

# What every public block has, used or not.
COMMON: dict[str, Any] = {
    "enable": False,
    "model": "none",
    "dim_pe": 16,
    "layers": 3,
    "n_heads": 4,
    "post_layers": 0,
    "raw_norm_type": "none",
    "pass_as_var": False,
}
EIGEN = {"eigen": {"laplacian_norm": "sym", "eigvec_norm": "L2", "max_freqs": 10}}
RANGE = re.compile(r"range\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")


@dataclass(frozen=True)
class PosEnc:
    """One encoding under its name, which is also that of its config group ``posenc_<name>``.

    Args:
        name: part of ``dataset.node_encoder_name``.
        summary: one line for ``--list``.
        compute: graphs and config group -> attributes of each graph.
        build: (config group, width, columns of x or None) -> encoder module.
        inner: config groups inside the group.
        own: further keys of the group.
    """

    name: str
    summary: str
    compute: Compute
    build: Build
    inner: dict[str, dict[str, Any]] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """Name of its config group."""
        return f"posenc_{self.name}"

    @property
    def width(self) -> int:
        """Columns that it takes."""
        return cfg[self.group].dim_pe

    def encoder(self, dim: int, dim_x: int | None) -> nn.Module:
        """Return its module, of the settings in ``cfg``; arguments as of the modules."""
        return self.build(cfg[self.group], dim, dim_x)


def times(node: CfgNode, where: str) -> list[int]:
    """Return the numbers of a kernel block: ``kernel.times``, or those of ``kernel.times_func``, as range(1, 21).

    Raises:
        ConfigError: neither gives a number, or the function is not a range.
    """
    text = node.kernel.times_func
    found = RANGE.fullmatch(text.strip())
    if text and not found:
        raise ConfigError(f"{where}.kernel.times_func: expected range(end) or range(start, end), got {text!r}")
    numbers = list(range(*(int(number) for number in found.groups() if number))) if found else list(node.kernel.times)
    if not numbers:
        raise ConfigError(f"{where}.kernel: it names no times: set times_func to range(1, 21), or times to a list")
    return numbers


def _eigenpairs(values_name: str, vectors_name: str) -> Compute:
    def compute(graphs: list[Data], node: CfgNode) -> Attributes:
        given = [(graph.edge_index, graph.num_nodes) for graph in graphs]
        eigen = node.eigen
        pairs = laplacian_eigenpairs_of(given, eigen.max_freqs, eigen.laplacian_norm, eigen.eigvec_norm)
        # Each node carries its graph's eigenvalues (N, K, 1), so that a batch needs to know nothing of them.
        return [
            {values_name: values.repeat(len(vectors), 1)[..., None], vectors_name: vectors} for values, vectors in pairs
        ]

    return compute


def _walks(graphs: list[Data], node: CfgNode) -> Attributes:
    sizes = [graph.num_nodes for graph in graphs]
    starts = torch.tensor([0, *sizes]).cumsum(0)
    edges = torch.cat([graph.edge_index + start for graph, start in zip(graphs, starts, strict=False)], dim=1)
    table = return_probabilities(edges, sizes, times(node, "posenc_RWSE"))
    return [{"pestat_RWSE": part} for part in table.split(sizes)]


def _heat(graphs: list[Data], node: CfgNode) -> Attributes:
    steps = times(node, "posenc_HKdiagSE")
    return [{"pestat_HKdiagSE": heat_kernel_diagonal(graph.edge_index, graph.num_nodes, steps)} for graph in graphs]


def _electrostatic(graphs: list[Data], _node: CfgNode) -> Attributes:
    return [{"pestat_ElstaticSE": electrostatic_statistics(graph.edge_index, graph.num_nodes)} for graph in graphs]


def _spectral(component: Callable[..., nn.Module]) -> Build:
    def build(node: CfgNode, dim: int, dim_x: int | None) -> nn.Module:
        given = {name: node[name] for name in options(component) if name in node}
        return component(dim, dim_x, **given, max_freqs=node.eigen.max_freqs)

    return build


def _kernel(name: str, num_stats: int | None = None) -> Build:
    """Build the encoder of so many statistics; None: one of each time."""

    def build(node: CfgNode, dim: int, dim_x: int | None) -> nn.Module:
        given = {option: node[option] for option in options(KernelEncoder) if option in node}
        return KernelEncoder(name, num_stats or len(times(node, f"posenc_{name}")), dim, dim_x, **given)

    return build


KERNEL = {"kernel": {"times": [], "times_func": ""}}
POTENTIALS = {"kernel": {"times": [], "times_func": "range(10)"}}  # public, and without influence
LAP, SIGN = "eigenvectors of the Laplacian", "eigenvectors of the Laplacian, invariant to their signs"
WALK, HEAT = "return probabilities of random walks", "diagonals of heat kernels"
PHI = {"phi_out_dim": 4, "phi_hidden_dim": 64}
POSENC: dict[str, PosEnc] = {
    row.name: row
    for row in (
        PosEnc("LapPE", LAP, _eigenpairs("EigVals", "EigVecs"), _spectral(LapPEEncoder), EIGEN),
        PosEnc("SignNet", SIGN, _eigenpairs("eigvals_sn", "eigvecs_sn"), _spectral(SignNetEncoder), EIGEN, PHI),
        PosEnc("RWSE", WALK, _walks, _kernel("RWSE"), KERNEL),
        PosEnc("HKdiagSE", HEAT, _heat, _kernel("HKdiagSE"), KERNEL),
        PosEnc(
            "ElstaticSE",
            "statistics of electrostatic potentials",
            _electrostatic,
            _kernel("ElstaticSE", NUM_STATISTICS),
            POTENTIALS,
        ),
    )
}


def posenc_group(row: PosEnc) -> CfgNode:
    """Return the config group of an encoding with the public defaults."""
    return CfgNode({**COMMON, **row.own, **{name: CfgNode(dict(keys)) for name, keys in row.inner.items()}})


def enabled_encodings() -> list[Encoding]:
    """Return what the config asks to be computed of each graph.

    Raises:
        ConfigError: a part of ``dataset.node_encoder_name`` is not enabled, or its block has a wrong value.
    """
    for name in cfg.dataset.node_encoder_name.split("+") if cfg.dataset.node_encoder else ():
        if name in POSENC and not cfg[f"posenc_{name}"].enable:
            raise ConfigError(f"dataset.node_encoder_name: {name} needs posenc_{name}.enable True")
    return [_encoding(row) for row in POSENC.values() if cfg[row.group].enable]


def _encoding(row: PosEnc) -> Encoding:
    node = cfg[row.group].clone()
    settings = {name: dict(node[name]) for name in row.inner}  # the others only shape the encoder
    if "kernel" in settings and row.name != "ElstaticSE":
        settings = {"times": times(node, row.group)}
    return Encoding(row.name, settings, lambda graphs: row.compute(graphs, node))
