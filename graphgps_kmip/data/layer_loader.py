"""Loader of layer-wise mini-batches of the nodes of one large graph: sampled in-edges, from the last layer back.

A prediction is that of the whole graph with the same drawn edges, in memory of the batch's size. What is drawn depends
on (seed, epoch, layer, node) only; with the ``batch_*`` samplers on the batch, too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data.edge_sampling import KERNEL, draw_edges
from graphgps_kmip.data.node_loader import NodeBatchLoader
from graphgps_kmip.data.score_file import AttentionScores
from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.native import load, pointer, unavailable_reason

LAYER_SAMPLERS = ("graph_reservoir", "graph_uniform", "graph_max", "batch_reservoir", "batch_uniform")


@dataclass(frozen=True)
class LayerSampling:
    """How many in-edges are drawn in each layer, and when; config keys in parentheses.

    Args:
        degrees: in-edges of each node, for each layer (`spexphormer.degree`).
        sampler: of `LAYER_SAMPLERS` (`spexphormer.sampler`): ``graph_*`` draw once an epoch, ``batch_*`` each batch.
        batch_size: nodes whose predictions count, in a batch (`train.batch_size`).
        resampling_epochs: epochs that share a draw of ``graph_*`` (`spexphormer.resampling_epochs`).
        num_draws: independent draws of a batch, whose predictions a network averages (`spexphormer.eval_draws`).
        repeat: draw again among the edges of nodes that have too few (`spexphormer.repeat_missing`).
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


class LayerLoader(NodeBatchLoader):
    """Batches of a split's nodes with the in-edges that are drawn for them, layer by layer.

    A batch is a ``Data`` with

    * ``x`` (n_0, F) and other attributes (encodings) of the nodes that the first layer reads, ``n_id`` (n_0,).
    * ``layer_sizes``, list [n_0, ..., n_L], decreasing: layer l reads n_l nodes and writes the first n_{l+1} of them.
    * ``layer_edges``, list of L tensors (3, E_l): source row, target row and kind of each edge, sorted by target.
    * ``y`` and ``<split>_mask`` of the n_L rows of the last layer.
    * ``num_draws`` D: the nodes whose predictions count come D times, draw by draw, each with its own edges.

    Args:
        graph: one graph with x, y and ``<split>_mask`` (N,), which may be mapped from disk.
        split: "train", "val" or "test".
        scores: of an estimator, for at least as many layers as are sampled.
        sampling: what is drawn.
        seed: of draws and order.
        shuffle: a new order of the nodes for each epoch; edges are drawn anew in either case.
        num_workers, rank, world_size: as of `GraphLoader`.
    """

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
        super().__init__(seed, shuffle, num_workers, rank, world_size)
        layers = scores.layers[: len(sampling.degrees)]  # enough, and of this graph: see `check_scores`
        self.graph, self.split, self.layers, self.sampling = graph, split, layers, sampling
        self.nodes = graph[f"{split}_mask"].nonzero().squeeze(1).numpy()

    def _plan(self) -> list[np.ndarray]:
        nodes, size = self.nodes, self.sampling.batch_size
        if self.shuffle:
            nodes = np.random.default_rng((self.seed, self.epoch)).permutation(nodes)
        return [nodes[at : at + size] for at in range(0, len(nodes), size)]

    def _make(self, epoch: int, number: int, nodes: np.ndarray) -> Data:
        return self.batch(torch.from_numpy(nodes), epoch, number)

    def batch(self, nodes: Tensor, epoch: int, number: int = 0) -> Data:
        """Return the batch of these nodes (n,), each given once, as batch ``number`` of an epoch."""
        draws = [self._draw(nodes, epoch, number, draw) for draw in range(self.sampling.num_draws)]
        rows, sizes, edges = _join_draws(draws, len(self.layers))
        batch = _take_rows(self.graph, rows, sizes[-1])
        batch.n_id, batch.layer_sizes, batch.layer_edges = rows, sizes, edges
        batch.num_draws = self.sampling.num_draws
        return batch

    def _draw(self, nodes: Tensor, epoch: int, number: int, draw: int) -> LayerDraw:
        sampling, rows, sizes, edges = self.sampling, nodes, [len(nodes)], []
        for level, layer in reversed(list(enumerate(self.layers))):
            rng_seed = sampling.seed(self.seed, epoch, number, draw, level)
            ids, counts = draw_edges(layer, sampling.degrees[level], sampling.how, rng_seed, rows, sampling.repeat)
            target = torch.repeat_interleave(counts)
            rows, source = with_sources(rows, layer.source[ids].long(), layer.num_nodes)
            sizes.insert(0, len(rows))
            edges.insert(0, torch.stack([source, target, layer.kind[ids].long()]))
        return rows, sizes, edges


# The nodes that the first layer reads, targets first, `layer_sizes` and `layer_edges`.
LayerDraw = tuple[Tensor, list[int], list[Tensor]]


def _join_draws(draws: Sequence[LayerDraw], num_layers: int) -> LayerDraw:
    """Put the draws of one batch side by side, so that the targets of each layer still are its first rows."""
    if len(draws) == 1:
        return draws[0]
    all_sizes = [sum(sizes[level] for _, sizes, _ in draws) for level in range(num_layers + 1)]
    places = [torch.empty(sizes[0], dtype=torch.long) for _, sizes, _ in draws]  # of each draw's rows among all
    for level in range(num_layers, -1, -1):
        after = 0 if level == num_layers else all_sizes[level + 1]
        for place, (_, sizes, _) in zip(places, draws, strict=True):
            begin = 0 if level == num_layers else sizes[level + 1]
            place[begin : sizes[level]] = torch.arange(after, after + sizes[level] - begin)
            after += sizes[level] - begin
    all_rows = torch.empty(all_sizes[0], dtype=torch.long)
    for place, (rows, _, _) in zip(places, draws, strict=True):
        all_rows[place] = rows
    all_edges = []
    for level in range(num_layers):
        parts = []
        for place, (_, _, edges) in zip(places, draws, strict=True):
            source, target, kind = edges[level]
            parts.append(torch.stack([place[source], place[target], kind]))
        together = torch.cat(parts, dim=1)
        all_edges.append(together[:, together[1].argsort(stable=True)])
    return all_rows, all_sizes, all_edges


def _take_rows(graph: Data, rows: Tensor, num_core: int) -> Data:
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

    Shapes: rows (n,) nodes, each once; source (E,) nodes -> rows (m,), row of each source (E,), all int64.
    """
    if unavailable_reason(*KERNEL):
        return _append_by_sorting(rows, source)
    num_words, most = -(-num_nodes // WORD), len(rows) + len(source)
    bits, rank = torch.zeros(num_words, dtype=torch.long), torch.empty(num_words, dtype=torch.long)
    row_numbers, all_rows, place = rows.new_empty(most), rows.new_empty(most), torch.empty_like(source)
    count_rows = load(*KERNEL).layer_rows
    count_rows.restype, long = ctypes.c_int64, ctypes.c_int64
    count = count_rows(
        *(pointer(rows), long(len(rows)), pointer(source), long(len(source)), long(num_words)),
        *map(pointer, (bits, rank, row_numbers, all_rows, place)),
    )
    return all_rows[:count].clone(), place


def _append_by_sorting(rows: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    nodes, inverse = torch.cat([rows, source]).unique(return_inverse=True)
    row_numbers = torch.full_like(nodes, -1)
    row_numbers[inverse[: len(rows)]] = torch.arange(len(rows))
    new = row_numbers < 0
    row_numbers[new] = torch.arange(len(rows), len(nodes))
    return torch.cat([rows, nodes[new]]), row_numbers[inverse[len(rows) :]]
