"""The table of positional and structural encodings: keys, what is computed of each graph, encoder modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch_geometric.graphgym.config import cfg
from yacs.config import CfgNode

from graphgps_kmip.encoding.degree import NUM_STATISTICS as NUM_PROFILE
from graphgps_kmip.encoding.electrostatic import NUM_STATISTICS
from graphgps_kmip.encoding.laplacian import EIGVEC_NORMS, LAPLACIAN_NORMS, LapPEEncoder
from graphgps_kmip.encoding.signnet import SignNetEncoder
from graphgps_kmip.gym import posenc_build as build
from graphgps_kmip.gym import statistics as compute
from graphgps_kmip.gym.posenc_build import Build, Settings, TimesFunction
from graphgps_kmip.ranges import (
    FLAG,
    FRACTION,
    HEADS,
    NATURAL,
    SOME_LAYERS,
    WIDTH,
    Choice,
    Default,
    Each,
    Range,
    Registered,
    optional,
    whole,
)
from graphgps_kmip.registry import register

# Key -> default, with the rule for other values. What every public block has, used or not.
COMMON: dict[str, Any] = {
    "enable": False,
    "model": Default("none", Registered("of the encoder")),
    "dim_pe": Default(16, NATURAL),
    "layers": Default(3, SOME_LAYERS),
    "n_heads": Default(4, HEADS),
    "post_layers": Default(0, SOME_LAYERS),
    "raw_norm_type": Default("none", Registered("BatchNorm or none")),
    "pass_as_var": False,
}
LINEAR = COMMON | {"model": Default("Linear", Registered("of the encoder"))}
EIGEN = {
    "eigen": {
        "laplacian_norm": Default("sym", Choice(LAPLACIAN_NORMS)),
        "eigvec_norm": Default("L2", Choice(EIGVEC_NORMS)),
        "max_freqs": Default(10, whole(1, 10_000)),
    }
}
TIMES = Each(Range(0, 1e6))
ACCURACY = Range(0, 1e6, above=True)
KERNEL = {"kernel": {"times": Default([], TIMES), "times_func": Default("", TimesFunction())}}
STEPS = {"kernel": {"times": Default([], TIMES), "times_func": Default("range(1, 21)", TimesFunction())}}
# public, and without influence
POTENTIALS = {"kernel": {"times": Default([], TIMES), "times_func": Default("range(10)", TimesFunction())}}
HUBS = {
    "num_global": Default(2, NATURAL),
    "global_edge_dropout": Default(0.2, FRACTION),
}  # public, and without influence: see encoding/edge_walk.py
GRAPHORMER = {
    "enable": False,
    "node_degrees_only": False,
    "dim_pe": Default(0, NATURAL),
    **dict.fromkeys(
        ("num_spatial_types", "num_in_degrees", "num_out_degrees"), Default(None, optional(whole(1, 1_000_000)))
    ),
    "edge_types": Default(
        None, optional(FLAG)
    ),  # ours: the bias reads those of edges on shortest paths; None: if the config says their number
    "unread_tables": False,  # ours: the tables for edges on paths are there even if nothing reads them
    "pad_paths": False,  # ours: a fault of the public code, see encoding/graphormer_encoder.py
    "move_edges": True,  # ours: False is a fault of the public code, see encoding/graph_token.py
}


@dataclass(frozen=True)
class PosEnc:
    """One encoding under its name, which is also that of its config group ``posenc_<name>``.

    Args:
        name: part of ``dataset.node_encoder_name`` or ``dataset.edge_encoder_name``.
        summary: one line for ``--list``.
        compute: graphs and settings -> attributes of each graph.
        settings: config group -> everything that decides the numbers, beside the graph.
        build: (config group, width, columns of x or None) -> encoder module.
        inner: config groups inside the group.
        keys: the other keys of the group.
        edges: it encodes edges.
        random: it draws, by the settings' seed.
    """

    name: str
    summary: str
    compute: compute.Compute
    settings: Callable[[CfgNode], Settings]
    build: Build
    inner: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=lambda: COMMON)
    edges: bool = False
    random: bool = False

    @property
    def group(self) -> str:
        """Name of its config group."""
        return f"posenc_{self.name}"

    @property
    def width(self) -> int:
        """Columns that it takes."""
        return cfg[self.group].get("dim_pe", 0)

    def encoder(self, dim: int, dim_x: int | None) -> nn.Module:
        """Return its module, of the settings in ``cfg``; arguments as of the modules."""
        return self.build(cfg[self.group], dim, dim_x)


POSENC: dict[str, PosEnc] = {
    row.name: row
    for row in (
        PosEnc(
            "LapPE",
            "eigenvectors of the Laplacian",
            compute.eigenpairs("EigVecs", "EigVals"),
            build.eigen_settings,
            build.spectral(LapPEEncoder),
            EIGEN,
        ),
        PosEnc(
            "EquivStableLapPE",
            "eigenvectors of the Laplacian, for the gates of message passing; takes no columns",
            compute.eigenpairs(build.STABLE_VECTORS),
            build.stable_settings,
            build.stable,
            EIGEN,
            {"enable": False, "raw_norm_type": Default("none", Registered("BatchNorm or none"))},
        ),
        PosEnc(
            "SignNet",
            "eigenvectors of the Laplacian, invariant to their signs",
            compute.eigenpairs("eigvecs_sn", "eigvals_sn"),
            build.eigen_settings,
            build.spectral(SignNetEncoder),
            EIGEN,
            COMMON | {"phi_out_dim": Default(4, WIDTH), "phi_hidden_dim": Default(64, WIDTH)},
        ),
        PosEnc(
            "RWSE",
            "return probabilities of random walks",
            compute.node_walks,
            build.times_settings("RWSE"),
            build.kernel("RWSE"),
            KERNEL,
        ),
        PosEnc(
            "HKdiagSE",
            "diagonals of heat kernels",
            compute.heat,
            build.times_settings("HKdiagSE"),
            build.kernel("HKdiagSE"),
            KERNEL,
        ),
        PosEnc(
            "ElstaticSE",
            "statistics of electrostatic potentials",
            compute.potentials,
            lambda _: {},
            build.kernel("ElstaticSE", lambda _: NUM_STATISTICS),
            POTENTIALS,
        ),
        PosEnc(
            "ERN",
            "random embedding whose distances are effective resistances",
            compute.resistance_embeddings,
            build.resistance_settings,
            build.kernel("ERN", build.er_dim),
            keys=COMMON
            | {"accuracy": Default(0.1, ACCURACY), "er_dim": Default("none", Registered("a number, or none"))},
            random=True,
        ),
        PosEnc(
            "ERE",
            "effective resistances of edges",
            compute.resistances,
            lambda node: {"accuracy": node.accuracy},
            build.on_edges("ERE", build.kernel("ERE", lambda _: 1)),
            keys=COMMON | {"accuracy": Default(0.1, ACCURACY)},
            edges=True,
        ),
        PosEnc(
            "RWSEEdge",
            "probabilities of random walks from one end of an edge to the other",
            compute.edge_walks,
            build.times_settings("RWSEEdge"),
            build.on_edges("RWSEEdge", build.kernel("RWSEEdge"), norm=True),
            STEPS,
            COMMON | HUBS,
            edges=True,
        ),
        PosEnc(
            "GraphormerBias",
            "embeddings of degrees, an attention bias of shortest paths, a graph token; takes no columns",
            compute.graphormer,
            build.graphormer_settings,
            build.graphormer,
            keys=GRAPHORMER,
        ),
        PosEnc(
            "Degree",
            "embedding of the degree (ours)",
            compute.degrees,
            lambda _: {},
            build.degree,
            keys={"enable": False, "dim_pe": Default(16, WIDTH), "max_degree": Default(63, whole(0, 1_000_000))},
        ),
        PosEnc(
            "LDP",
            "degree, and statistics of the neighbours' degrees (ours; Cai and Wang 2018)",
            compute.degree_profiles,
            lambda _: {},
            build.kernel("LDP", lambda _: NUM_PROFILE),
            keys=LINEAR,
        ),
    )
}
for _row in POSENC.values():
    register("encoding", _row.name, _row, summary=_row.summary)
NODE_PARTS = {name: row for name, row in POSENC.items() if not row.edges}
EDGE_PARTS = {name: row for name, row in POSENC.items() if row.edges} | {"ER": POSENC["ERE"]}  # its other public name
