"""What the benchmark of encodings compares: its graphs, and ours and torch_geometric's way to encode them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg, set_cfg
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE, BaseTransform

import graphgps_kmip.gym  # noqa: F401  (registers the config groups)
from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.parallel_chunks import in_order
from graphgps_kmip.data.precomputed_encodings import encoded
from graphgps_kmip.gym.posenc import enabled_encodings
from run.bench.roads import road_map, triangulated, undirected

PAIRS, STEPS = 10, 20  # eigenvectors beside the trivial one; steps of the walks
CHUNK = 10  # graphs that a process of torch_geometric's loop is handed at a time
TREE_NODES, PLANAR_NODES = 151, 479  # mean sizes of Peptides and of PascalVOC-SP
RINGS = 8  # of a tree, as rings of six nodes

Values = list[np.ndarray]


def tree(rng: np.random.Generator) -> Data:
    """Return a tree with short branches and a few rings, as molecules of Peptides are."""
    child = np.arange(1, TREE_NODES)
    parent = child - 1 - rng.integers(0, np.minimum(child, 4))
    end = rng.integers(0, TREE_NODES - 5, RINGS)
    return undirected(np.hstack([[parent, child], [end, end + 5]]), TREE_NODES)


def planar(rng: np.random.Generator) -> Data:
    """Return a triangulation of random points, as superpixels that touch are."""
    return undirected(triangulated(rng.random((PLANAR_NODES, 2))), PLANAR_NODES)


# data -> (generator, number of graphs, nodes of the one large graph) -> graphs
DATA: dict[str, Callable[[np.random.Generator, int, int], list[Data]]] = {
    "graphs": lambda rng, count, _: [(tree if i % 2 else planar)(rng) for i in range(count)],
    "trees": lambda rng, count, _: [tree(rng) for _ in range(count)],
    "planar": lambda rng, count, _: [planar(rng) for _ in range(count)],
    "road": lambda rng, _, nodes: [road_map(rng, nodes, nodes * 3 // 2)],
}
TRANSFORMS: dict[str, Callable[[], BaseTransform]] = {
    "LapPE": lambda: AddLaplacianEigenvectorPE(PAIRS, attr_name="found", is_undirected=True),
    "RWSE": lambda: AddRandomWalkPE(STEPS, attr_name="found"),
}
OUR_ATTRIBUTES = {"LapPE": "EigVecs", "RWSE": "pestat_RWSE"}
ENCODINGS = tuple(TRANSFORMS)


def ours(encoding: str, graphs: Sequence[Data], processes: int, folder: Path | None = None) -> Values:
    """Return what a run computes, and keeps below a folder if there is one, of each graph (N, 10 or 20)."""
    set_cfg(cfg)
    cfg.posenc_LapPE.enable, cfg.posenc_RWSE.enable = encoding == "LapPE", encoding == "RWSE"
    cfg.posenc_LapPE.eigen.max_freqs = PAIRS + 1
    cfg.posenc_RWSE.kernel.times_func = f"range(1, {STEPS + 1})"
    found = encoded(GraphDataset(graphs), enabled_encodings(graphs), folder, processes).graphs
    return [graph[OUR_ATTRIBUTES[encoding]][:, encoding == "LapPE" :].numpy() for graph in found]


def theirs(encoding: str, graphs: Sequence[Data], processes: int) -> Values:
    """Return what torch_geometric's transform gives for each graph (N, 10 or 20); it leaves the graphs as they are."""
    transform = TRANSFORMS[encoding]()
    if processes == 1:
        return _transformed(transform, graphs, range(len(graphs)))
    chunks = [range(first, min(first + CHUNK, len(graphs))) for first in range(0, len(graphs), CHUNK)]
    results = in_order(encoding, partial(_transformed, transform, graphs), chunks, processes)
    return [values for chunk in results for values in chunk]


def _transformed(transform: BaseTransform, graphs: Sequence[Data], chunk: range) -> Values:
    return [transform(graphs[number]).found.numpy() for number in chunk]


# Each: (encoding, graphs, processes, folder to keep results in) -> values. "kept" computes in its first turn only.
WAYS: dict[str, Callable[[str, Sequence[Data], int, Path], Values]] = {
    "ours": lambda encoding, graphs, processes, _: ours(encoding, graphs, processes),
    "kept": ours,
    "pyg": lambda encoding, graphs, processes, _: theirs(encoding, graphs, processes),
}
