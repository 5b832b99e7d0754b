"""Loader of mini-batches of the nodes of one large graph: sampled neighbours, clusters, or random subsets of nodes.

Batches depend on (seed, epoch) only. The model sees one subgraph at a time: results differ from full-batch training.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch_geometric.data import Batch, Data

from graphgps_kmip.data.dataset import SPLITS, GraphDataset
from graphgps_kmip.data.dataset_info import summarize
from graphgps_kmip.data.dataset_record import LEVELS, DatasetRecord
from graphgps_kmip.data.graph_changes import InEdges, edges_among, partition, select_part
from graphgps_kmip.errors import InputError, UserError

FULL_BATCH = "full_batch"
NODE2SUBGRAPH = "node2subgraph"  # not of these: nodes become graphs before there are loaders, see `NodeSubgraphs`


@dataclass(frozen=True)
class Sampling:
    """How one graph is divided into batches; config keys in parentheses.

    Args:
        sampler: "full_batch", or a key of `SAMPLERS` (`train.sampler`).
        val_sampler: the same for validation and test (`val.sampler`).
        batch_size: seed nodes ("neighbor") or clusters ("cluster") in a batch (`train.batch_size`).
        neighbor_sizes: in-neighbours that are drawn of each node, hop by hop; -1: all (`train.neighbor_sizes`).
        parts: clusters, or random subsets, of the graph (`train.train_parts`).
    """

    sampler: str = FULL_BATCH
    val_sampler: str = FULL_BATCH
    batch_size: int = 16
    neighbor_sizes: tuple[int, ...] = (20, 15, 10, 5)
    parts: int = 192

    def __post_init__(self) -> None:
        names = (FULL_BATCH, *SAMPLERS)
        for key, name in (("train.sampler", self.sampler), ("val.sampler", self.val_sampler)):
            if name not in names:
                raise InputError(f"{key}: choose one of {', '.join(names)}, {NODE2SUBGRAPH}, got {name!r}")
        if self.batch_size < 1 or self.parts < 1:
            raise InputError(f"train.batch_size and train.train_parts: 1 or more, got {self.batch_size}, {self.parts}")
        if not all(isinstance(size, int) and (size > 0 or size == -1) for size in self.neighbor_sizes):
            raise InputError(f"train.neighbor_sizes: numbers above 0, or -1 for all, got {list(self.neighbor_sizes)}")


class Source:
    """One graph, the nodes ``mask`` (N,) of the split at hand, and sizes: what samplers draw from."""

    def __init__(self, graph: Data, mask: Tensor, sampling: Sampling) -> None:
        self.graph, self.mask, self.sampling = graph, mask, sampling
        self.edges = InEdges(graph.edge_index, graph.num_nodes)

    @cached_property
    def clusters(self) -> list[np.ndarray]:
        """The nodes of each cluster."""
        return partition(self.graph.edge_index, self.graph.num_nodes, min(self.sampling.parts, self.graph.num_nodes))


def _plan_nodes(source: Source, rng: np.random.Generator | None) -> list[np.ndarray]:
    nodes, size = source.mask.nonzero().squeeze(1).numpy(), source.sampling.batch_size
    nodes = nodes if rng is None else rng.permutation(nodes)
    return np.split(nodes, range(size, len(nodes), size))


def _plan_clusters(source: Source, rng: np.random.Generator | None) -> list[np.ndarray]:
    count, size = len(source.clusters), source.sampling.batch_size
    order = np.arange(count) if rng is None else rng.permutation(count)
    return [np.concatenate([source.clusters[i] for i in order[at : at + size]]) for at in range(0, count, size)]


def _plan_random_subsets(source: Source, rng: np.random.Generator | None) -> list[np.ndarray]:
    count = source.graph.num_nodes
    order = (rng or np.random.default_rng(0)).permutation(count)
    return [np.sort(part) for part in np.array_split(order, min(source.sampling.parts, count))]


def take_induced(source: Source, nodes: np.ndarray, rng: np.random.Generator) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    """Take the nodes and all edges among them."""
    nodes = torch.from_numpy(nodes)
    return nodes, edges_among(source.edges, nodes, source.graph.num_nodes)


def draw_neighbors(source: Source, nodes: np.ndarray, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Add in-neighbours of the newest nodes, hop by hop, drawn without replacement, and the edges that were drawn."""
    reached = newest = torch.from_numpy(nodes)
    member = torch.zeros(source.graph.num_nodes, dtype=torch.bool)
    member[reached] = True
    drawn = []
    for size in source.sampling.neighbor_sizes:
        ids, count = source.edges.of(newest)
        drawn.append(ids if size < 0 else ids[_draw_from_each(count, size, rng)])
        sources = source.edges.source[drawn[-1]]
        newest = sources[~member[sources]].unique()
        member[newest] = True
        reached = torch.cat([reached, newest])
    return reached, torch.cat(drawn)


# Name -> plan of an epoch: (source, generator or None) -> nodes of each batch that count; and how a batch is made:
# (source, these nodes, generator) -> all its nodes, these first, and ids of its edges.
Plan = Callable[[Source, np.random.Generator | None], list[np.ndarray]]
Grow = Callable[[Source, np.ndarray, np.random.Generator], tuple[Tensor, Tensor]]
SAMPLERS: dict[str, tuple[Plan, Grow]] = {
    "neighbor": (_plan_nodes, draw_neighbors),  # Hamilton et al. 2017
    "cluster": (_plan_clusters, take_induced),  # Chiang et al. 2019
    "random_node": (_plan_random_subsets, take_induced),
}


def _draw_from_each(count: Tensor, size: int, rng: np.random.Generator) -> Tensor:
    group = torch.arange(len(count)).repeat_interleave(count)
    order = torch.from_numpy(np.lexsort((rng.random(len(group)), group.numpy())))  # shuffled inside each group
    rank = torch.arange(len(group)) - (count.cumsum(0) - count)[group]
    return order[rank < size].sort().values


def batches(loader: DataLoader) -> Iterator[Batch]:
    """Iterate over a loader; DataError where graphs cannot be read or joined."""
    for batch in loader:
        if isinstance(batch, UserError):
            raise batch
        yield batch


Job = tuple[int, int, np.ndarray, bool]  # epoch, number of the batch, nodes, filler


class NodeBatchLoader:
    """Loader of batches that are planned as lists of nodes of one graph: by `_plan` and `_make` of subclasses.

    Process r of W takes batches r, r + W, ...; where they run out, a first one again, with ``batch.filler = True``.
    """

    sharded = True  # yields this process's share only

    def __init__(self, seed: int, shuffle: bool, num_workers: int, rank: int, world_size: int) -> None:
        self.seed, self.shuffle, self.epoch = seed, shuffle, 0
        self.num_workers, self.rank, self.world_size = num_workers, rank, world_size
        self.generator = torch.Generator().manual_seed(seed)  # making an iterator draws a seed, not from the model's

    def set_epoch(self, epoch: int) -> None:
        """Choose what is drawn in this epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._jobs())

    def __iter__(self) -> Iterator[Data]:
        loader = DataLoader(
            self,
            batch_size=None,
            sampler=self._jobs(),
            num_workers=self.num_workers,
            pin_memory=torch.cuda.is_available(),
            generator=self.generator,
        )
        return batches(loader)

    def __getitem__(self, job: Job) -> Data:
        """Return the batch of a job, in whichever process."""
        *arguments, is_filler = job
        batch = self._make(*arguments)
        if is_filler:
            batch.filler = True
        return batch

    def _jobs(self) -> list[Job]:
        plan = self._plan()
        jobs = [(self.epoch, number, plan[number], False) for number in range(self.rank, len(plan), self.world_size)]
        missing = -(-len(plan) // self.world_size) - len(jobs)
        return jobs + [(self.epoch, number, plan[number], True) for number in range(missing)]

    def _plan(self) -> list[np.ndarray]:
        """Return the nodes of each batch of the epoch."""
        raise NotImplementedError

    def _make(self, epoch: int, number: int, nodes: np.ndarray) -> Data:
        """Return a batch; what is drawn must not depend on the process."""
        raise NotImplementedError


class NodeLoader(NodeBatchLoader):
    """Subgraphs of one graph, in which ``<split>_mask`` holds the nodes that count in this batch.

    Args:
        graph: one graph with ``<split>_mask`` (N,).
        split: "train", "val" or "test".
        name: key of `SAMPLERS`.
        sampling: sizes.
        seed: of what is drawn.
        shuffle: a new plan for each epoch; False: the same always.
        num_workers, rank, world_size: as of `GraphLoader`.
    """

    def __init__(
        self,
        graph: Data,
        split: str,
        name: str,
        sampling: Sampling,
        seed: int = 0,
        shuffle: bool = False,
        num_workers: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(seed, shuffle, num_workers, rank, world_size)
        self.graph, self.mask = graph, f"{split}_mask"
        (self.plan, self.grow), self.source = SAMPLERS[name], Source(graph, graph[self.mask], sampling)

    def set_epoch(self, epoch: int) -> None:
        """Choose what is drawn in this epoch."""
        self.epoch = epoch if self.shuffle else 0

    def _plan(self) -> list[np.ndarray]:
        rng = np.random.default_rng((self.seed, self.epoch)) if self.shuffle else None
        mask = self.graph[self.mask].numpy()
        return [nodes for nodes in self.plan(self.source, rng) if mask[nodes].any()]

    def _make(self, epoch: int, number: int, nodes: np.ndarray) -> Data:
        reached, edges = self.grow(self.source, nodes, np.random.default_rng((self.seed, epoch, number)))
        part = select_part(self.graph, reached, edges)
        part[self.mask] = part[self.mask].clone()
        part[self.mask][len(nodes) :] = False
        return Batch.from_data_list([part])


class NodeSubgraphs(Sequence[Data]):
    """The subgraph around each node of one graph: the nodes within some hops of it, and all edges among them.

    Hops go along the edges and against them, and are added whole while there is room; of the first that does not fit,
    as many nodes as do are drawn.

    Args:
        graph (Data): One graph with ``y``; is not changed, and not copied.
        num_hops (int, optional): Hops around the node, at least 1 (`train.subgraph_hops`). (default: 2)
        max_nodes (int, optional): Nodes of a subgraph at most (`train.subgraph_nodes`). (default: 250)
        seed (int, optional): Of the draws. (default: 0)

    Shapes:
        Subgraph i of n nodes, in increasing order: their rows of all attributes of nodes, ``edge_index`` (2, e) and
        those of edges; ``y`` (1,) or (1, columns), the label of node i; ``target_mask`` (n,), True at node i.
    """

    drawn_when_read = True  # what is computed of them is not stored

    def __init__(self, graph: Data, num_hops: int = 2, max_nodes: int = 250, seed: int = 0) -> None:
        if num_hops < 1 or max_nodes < 1:
            raise InputError(f"train.subgraph_hops and train.subgraph_nodes: 1 or more, got {num_hops}, {max_nodes}")
        self.num_hops, self.max_nodes, self.seed, self.y = num_hops, max_nodes, seed, graph.y
        self.graph = copy.copy(graph)
        for key in {"y", *(f"{split}_mask" for split in SPLITS)} & set(graph.keys()):
            del self.graph[key]
        # the second by their sources: what it calls sources are targets
        self.edges = [InEdges(index, graph.num_nodes) for index in (graph.edge_index, graph.edge_index.flip(0))]

    def __len__(self) -> int:
        return self.graph.num_nodes

    def __getitem__(self, index: int) -> Data:
        node = range(len(self))[index]  # counts from the end, too
        nodes = self._ball(node)
        fewest = min(self.edges, key=lambda edges: int((edges.first[nodes + 1] - edges.first[nodes]).sum()))
        part = select_part(self.graph, nodes, edges_among(fewest, nodes, len(self)))
        part.y, part.target_mask = self.y[node : node + 1], nodes == node
        return part

    def _ball(self, node: int) -> Tensor:
        ball = newest = torch.tensor([node])
        for _ in range(self.num_hops):
            around = torch.cat([edges.source[edges.of(newest)[0]] for edges in self.edges]).unique()
            newest = around[~torch.isin(around, ball)]
            room = self.max_nodes - len(ball)
            if len(newest) > room:
                rng = np.random.default_rng((self.seed, node))
                newest = newest[torch.from_numpy(rng.choice(len(newest), room, replace=False))]
            ball = torch.cat([ball, newest])
            if len(newest) == 0 or len(ball) == self.max_nodes:
                break
        return ball.sort().values


def around_nodes(
    dataset: GraphDataset, record: DatasetRecord, num_hops: int = 2, max_nodes: int = 250, seed: int = 0
) -> GraphDataset:
    """Return the subgraphs (`NodeSubgraphs`) around all nodes of a data set of one graph, whose summary stays."""
    if record.level != "node":
        raise InputError(
            f"train.sampler: {NODE2SUBGRAPH} takes the subgraph around each node of one graph, and of {record.title} "
            f"{LEVELS[record.level]} have labels: set full_batch"
        )
    graph = dataset.graphs[0]
    splits = [graph[f"{split}_mask"].nonzero().squeeze(1) for split in SPLITS]
    summary = dataset.summary or summarize(dataset, record)
    return GraphDataset(NodeSubgraphs(graph, num_hops, max_nodes, seed), splits, summary)
