"""Loader of layer-wise mini-batches of the nodes of one large graph: sampled in-edges, from the last layer back.

A batch holds the nodes whose predictions count and, layer by layer from the last to the first, those that its drawn
edges come from: a prediction is that of the whole graph with the same drawn edges, in memory of the batch's size. What
is drawn depends on (seed, epoch, layer, node) only; with the ``batch_*`` samplers on the batch, too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data.edge_sampling import KERNEL, draw_edges
from graphgps_kmip.data.score_file import AttentionScores
from graphgps_kmip.data.worker_processes import Job, made_of, own_jobs
from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.native import load, pointer, unavailable_reason

LAYER_SAMPLERS = ("graph_reservoir", "graph_uniform", "graph_max", "batch_reservoir", "batch_uniform")


@dataclass(frozen=True)
class LayerSampling:
    """How many in-edges are drawn in each layer, and when; config keys behind the names.

    Args:
        degrees: in-edges of each node, for each layer (`spexphormer.degree`).
        sampler: one of `LAYER_SAMPLERS` (`spexphormer.sampler`): ``graph_*`` draw once for all batches of an epoch,
            ``batch_*`` for each batch.
        batch_size: nodes whose predictions count, in a batch (`train.batch_size`).
        resampling_epochs: epochs that share a draw of ``graph_*`` (`spexphormer.resampling_epochs`).
        num_draws: independent draws of a batch, whose predictions a network averages (`spexphormer.eval_draws`).
        repeat: draw again among the edges of nodes that have too few (`spexphormer.repeat_missing`).

    Raises:
        ValueError: a value that is not allowed; names the key.
    """

    degrees: tuple[int, ...] = (5,)
    sampler: str = "graph_reservoir"
    batch_size: int = 16
    resampling_epochs: int = 1
    num_draws: int = 1
    repeat: bool = False

    def __post_init__(self) -> None:
        if self.sampler not in LAYER_SAMPLERS:
            raise InputError(f"spexphormer.sampler: choose one of {', '.join(LAYER_SAMPLERS)}, got {self.sampler!r}")
        if not self.degrees or not all(isinstance(k, int) and k > 0 for k in self.degrees):
            raise InputError(f"spexphormer.degree: numbers of in-edges above 0, got {list(self.degrees)}")
        sizes = {
            "train.batch_size": self.batch_size,
            "spexphormer.resampling_epochs": self.resampling_epochs,
            "spexphormer.eval_draws": self.num_draws,
        }
        for key, value in sizes.items():
            if value < 1:
                raise InputError(f"{key} must be 1 or more, got {value}")

    @property
    def how(self) -> str:
        """The ``how`` of `draw_edges`."""
        return self.sampler.partition("_")[2]

    def seed(self, seed: int, epoch: int, batch: int, draw: int, layer: int) -> tuple[int, ...]:
        """Return the seed of one draw."""
        if self.sampler.startswith("graph_"):
            return (seed, epoch // self.resampling_epochs, 0, draw, layer)
        return (seed, epoch, batch + 1, draw, layer)


class LayerLoader:
    """Batches of a split's nodes with the in-edges that are drawn for them, layer by layer.

    A batch is a ``Data`` with

    * ``x`` (n_0, F) and other attributes of nodes (encodings): those of the nodes that the first layer reads; ``n_id``
      (n_0,) are their numbers in the graph.
    * ``layer_sizes``, list [n_0, ..., n_L], decreasing: layer l reads n_l nodes and writes the first n_{l+1} of them.
    * ``layer_edges``, list of L tensors (3, E_l): source row, target row and kind of each edge, sorted by target.
    * ``y`` and ``<split>_mask`` of the n_L rows of the last layer.
    * ``num_draws`` D: the nodes whose predictions count come D times, draw by draw, each with its own edges.

    Process r of W takes batches r, r + W, ...; where they run out, one marked ``batch.filler = True``, which must not
    count.

    Args:
        graph: one graph with x, y and ``<split>_mask`` (N,), which may be mapped from disk.
        split: "train", "val" or "test".
        scores: of an estimator, for at least as many layers as are sampled.
        sampling: what is drawn.
        seed: of draws and order.
        shuffle: a new order of the nodes for each epoch; edges are drawn anew in either case.
        num_workers: processes that make batches in advance.
        rank: number r of this process.
        world_size: number W of processes.

    Raises:
        ValueError: the scores have too few layers, or are of another number of nodes.
    """

    sharded = True  # yields this process's share only

    def __init__(
        self,
        graph: Data,
        split: str,
        scores: AttentionScores,
        sampling: LayerSampling,
        seed: int = 0,
        shuffle: bool = False,
        num_workers: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        layers = scores.layers[: len(sampling.degrees)]
        if len(layers) < len(sampling.degrees):
            raise InputError(f"spexphormer.degree: {len(sampling.degrees)} layers, and scores of {len(layers)} only")
        if layers[0].num_nodes != graph.num_nodes:
            raise InputError(
                f"scores of {layers[0].num_nodes} nodes for a graph of {graph.num_nodes}: give those of this graph"
            )
        self.graph, self.split, self.layers, self.sampling = graph, split, layers, sampling
        self.nodes = graph[f"{split}_mask"].nonzero().squeeze(1).numpy()
        self.seed, self.shuffle, self.epoch = seed, shuffle, 0
        self.rank, self.world_size, self.num_workers = rank, world_size, num_workers
        self.generator = torch.Generator().manual_seed(seed)  # making an iterator draws a seed, not from the model's

    def set_epoch(self, epoch: int) -> None:
        """Choose what is drawn in this epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self._num_batches() // self.world_size)

    def __iter__(self) -> Iterator[Data]:
        return made_of(self._jobs(), self._made, self.num_workers, self.generator)

    def _num_batches(self) -> int:
        return -(-len(self.nodes) // self.sampling.batch_size)

    def _jobs(self) -> list[Job]:
        nodes, size = self.nodes, self.sampling.batch_size
        if self.shuffle:
            nodes = np.random.default_rng((self.seed, self.epoch)).permutation(nodes)
        plan = [nodes[at : at + size] for at in range(0, len(nodes), size)]
        return own_jobs(plan, self.epoch, self.rank, self.world_size)

    def _made(self, epoch: int, number: int, nodes: np.ndarray) -> Data:
        return self.batch(torch.from_numpy(nodes), epoch, number)

    def batch(self, nodes: Tensor, epoch: int, number: int = 0) -> Data:
        """Return the batch of these nodes, each given once, as batch ``number`` of an epoch.

        Shapes: nodes (n,) int64.
        """
        draws = [_expanded(self, nodes, epoch, number, draw) for draw in range(self.sampling.num_draws)]
        rows, sizes, edges = _joined(draws, len(self.layers))
        batch = _rows_of(self.graph, rows, sizes[-1])
        batch.n_id, batch.layer_sizes, batch.layer_edges = rows, sizes, edges
        batch.num_draws = self.sampling.num_draws
        return batch


def _expanded(
    loader: LayerLoader, nodes: Tensor, epoch: int, number: int, draw: int
) -> tuple[Tensor, list[int], list[Tensor]]:
    """Return the nodes that the first layer reads, targets first, `layer_sizes` and `layer_edges` of one draw."""
    sampling, rows, sizes, edges = loader.sampling, nodes, [len(nodes)], []
    for number_of, layer in reversed(list(enumerate(loader.layers))):
        rng_seed = sampling.seed(loader.seed, epoch, number, draw, number_of)
        ids, counts = draw_edges(layer, sampling.degrees[number_of], sampling.how, rng_seed, rows, sampling.repeat)
        target = torch.repeat_interleave(counts)
        rows, source = with_sources(rows, layer.source[ids].long(), layer.num_nodes)
        sizes.insert(0, len(rows))
        edges.insert(0, torch.stack([source, target, layer.kind[ids].long()]))
    return rows, sizes, edges


def _joined(
    draws: Sequence[tuple[Tensor, list[int], list[Tensor]]], num_layers: int
) -> tuple[Tensor, list[int], list[Tensor]]:
    """Put the draws of one batch beside each other, so that the targets of each layer still are its first rows."""
    if len(draws) == 1:
        return draws[0]
    sizes = [sum(one[1][level] for one in draws) for level in range(num_layers + 1)]
    places = [torch.empty(one[1][0], dtype=torch.long) for one in draws]  # of each draw's rows among all
    for level in range(num_layers, -1, -1):
        after = 0 if level == num_layers else sizes[level + 1]
        for place, (_, own, _) in zip(places, draws, strict=True):
            begin = 0 if level == num_layers else own[level + 1]
            place[begin : own[level]] = torch.arange(after, after + own[level] - begin)
            after += own[level] - begin
    rows = torch.empty(sizes[0], dtype=torch.long)
    for place, (nodes, _, _) in zip(places, draws, strict=True):
        rows[place] = nodes
    edges = []
    for level in range(num_layers):
        parts = [
            torch.stack([place[one[0]], place[one[1]], one[2]])
            for place, one in ((place, draw[2][level]) for place, draw in zip(places, draws, strict=True))
        ]
        together = torch.cat(parts, dim=1)
        edges.append(together[:, together[1].argsort(stable=True)])
    return rows, sizes, edges


def _rows_of(graph: Data, rows: Tensor, num_core: int) -> Data:
    """Return a batch with what it needs of the graph's attributes, a copy of these rows only."""
    batch = Data()
    for key, value in graph:
        if key == "y" or key.endswith("_mask"):
            batch[key] = value[rows[:num_core]]
        elif key != "num_nodes" and isinstance(value, Tensor) and graph.is_node_attr(key):
            batch[key] = value[rows]
    return batch


WORD = 64  # nodes that the C loop marks in one number


def with_sources(rows: Tensor, source: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Append the sources that are not among the rows, in increasing order, and return the row of each source.

    A C loop marks nodes in N bits and counts them (``ops/native/edge_sampling.c``), without a compiler they are sorted.

    Args:
        rows: nodes, each once.
        source: nodes, in any order.
        num_nodes: N; all nodes are below.

    Shapes: rows (n,), source (E,) -> rows (m,), row of each source (E,), all int64.
    """
    if unavailable_reason(*KERNEL):
        return _by_sorting(rows, source)
    words, most = -(-num_nodes // WORD), len(rows) + len(source)
    bits, rank = torch.zeros(words, dtype=torch.long), torch.empty(words, dtype=torch.long)
    row_of, found, place = rows.new_empty(most), rows.new_empty(most), torch.empty_like(source)
    count_rows = load(*KERNEL).layer_rows
    count_rows.restype, long = ctypes.c_int64, ctypes.c_int64
    count = count_rows(
        *(pointer(rows), long(len(rows)), pointer(source), long(len(source)), long(words)),
        *map(pointer, (bits, rank, row_of, found, place)),
    )
    return found[:count].clone(), place


def _by_sorting(rows: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    nodes, inverse = torch.cat([rows, source]).unique(return_inverse=True)
    row_of = torch.full_like(nodes, -1)
    row_of[inverse[: len(rows)]] = torch.arange(len(rows))
    new = row_of < 0
    row_of[new] = torch.arange(len(rows), len(nodes))
    return torch.cat([rows, nodes[new]]), row_of[inverse[len(rows) :]]
