"""Layer-wise batches: predictions of the whole graph with the same drawn edges, whatever the batches."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch_geometric.data import Data

from graphgps_kmip.data import edge_sampling, layer_loader
from graphgps_kmip.data.edge_sampling import KERNEL, draw_edges
from graphgps_kmip.data.layer_loader import LAYER_SAMPLERS, LayerLoader, LayerSampling
from graphgps_kmip.data.score_file import AttentionScores, read_scores, write_scores
from graphgps_kmip.ops.native import unavailable_reason
from tests.data.scored import graph_of, scores_of

N = 90
DEGREES = torch.randint(0, 9, (N,), generator=torch.Generator().manual_seed(2))
GRAPH_SAMPLERS = [name for name in LAYER_SAMPLERS if name.startswith("graph_")]


def loader(split: str = "train", scores: AttentionScores | None = None, **options: object) -> LayerLoader:
    loader_options = {"seed", "shuffle", "num_workers", "rank", "world_size"}
    sampling = {"degrees": (3, 2), "batch_size": 7} | {key: options[key] for key in options.keys() - loader_options}
    arguments = {"seed": 5, "shuffle": True} | {key: options[key] for key in options.keys() & loader_options}
    return LayerLoader(graph_of(N), split, scores or scores_of(DEGREES), LayerSampling(**sampling), **arguments)


class SparseNetwork(nn.Module):
    """Sums over drawn edges with weights of their kinds; what a row gets depends on its own edges only."""

    def __init__(self, dim: int, num_layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.other = (
            nn.ModuleList(nn.Linear(dim, dim, dtype=torch.float64) for _ in range(num_layers)) for _ in range(2)
        )
        self.kinds = nn.Embedding(3, dim, dtype=torch.float64)

    def forward(self, x: Tensor, edges: list[Tensor], sizes: list[int]) -> Tensor:
        for number, (source, target, kind) in enumerate(edges):
            message = self.other[number](x)[source] * self.kinds(kind)
            sums = x.new_zeros(sizes[number + 1], x.size(1)).index_add(0, target, message)
            x = torch.tanh(self.inner[number](x[: sizes[number + 1]]) + sums)
        return x


def on_the_whole_graph(load: LayerLoader, network: SparseNetwork, epoch: int, draw: int = 0) -> Tensor:
    edges = []
    for number, layer in enumerate(load.layers):
        seed = load.sampling.seed(load.seed, epoch, 0, draw, number)
        ids, counts = draw_edges(
            layer, load.sampling.degrees[number], load.sampling.how, seed, None, load.sampling.repeat
        )
        target = torch.arange(N).repeat_interleave(counts)
        edges.append(torch.stack([layer.source[ids].long(), target, layer.kind[ids].long()]))
    return network(load.graph.x, edges, [N] * (len(edges) + 1))


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("batch_size", [1, 7, 1000])
@pytest.mark.parametrize("sampler", GRAPH_SAMPLERS)
def test_predictions_of_batches_are_those_of_the_whole_graph_with_the_same_edges(
    sampler: str, batch_size: int, repeat: bool
) -> None:
    degrees = (3, 2, 4)
    load = loader(
        scores=scores_of(DEGREES, 3), degrees=degrees, sampler=sampler, batch_size=batch_size, repeat=repeat, seed=8
    )
    network = SparseNetwork(6, 3)
    load.set_epoch(4)
    whole = on_the_whole_graph(load, network, 4)
    for batch in load:
        nodes = batch.n_id[: batch.layer_sizes[-1]]
        torch.testing.assert_close(
            network(batch.x, batch.layer_edges, batch.layer_sizes), whole[nodes], rtol=1e-12, atol=1e-12
        )


def test_several_draws_are_several_samples_of_the_whole_graph_and_the_first_is_that_of_a_single_draw() -> None:
    load, network, differ = loader(num_draws=3), SparseNetwork(6, 2), 0
    for batch in load:
        core = batch.layer_sizes[-1] // 3
        nodes = batch.n_id[: 3 * core].view(3, core)
        assert (nodes == nodes[0]).all()
        predicted = network(batch.x, batch.layer_edges, batch.layer_sizes).view(3, core, -1)
        for draw in range(3):
            whole = on_the_whole_graph(load, network, 0, draw)
            torch.testing.assert_close(predicted[draw], whole[nodes[draw]], rtol=1e-12, atol=1e-12)
        differ += int((predicted[0] != predicted[1]).any(dim=1).sum())
    assert differ > 5  # nodes of 30, of which many keep all of their few edges


@pytest.mark.parametrize("num_draws", [1, 2])
@pytest.mark.parametrize("sampler", LAYER_SAMPLERS)
def test_a_batch_has_the_form_that_networks_read(sampler: str, num_draws: int) -> None:
    load = loader("val", sampler=sampler, num_draws=num_draws)
    graph = load.graph
    for batch in load:
        sizes = batch.layer_sizes
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] == len(batch.x) == len(batch.n_id)
        torch.testing.assert_close(batch.x, graph.x[batch.n_id], rtol=0, atol=0)
        core = batch.n_id[: sizes[-1]]
        assert torch.equal(batch.y, graph.y[core])
        assert batch.val_mask.all()
        assert torch.equal(batch.train_mask, graph.train_mask[core])
        assert batch.num_draws == num_draws
        for number, edges in enumerate(batch.layer_edges):
            source, target, _ = edges
            assert edges.dtype == torch.long
            assert int(source.max()) < sizes[number]
            assert int(target.max()) < sizes[number + 1]
            assert (target.diff() >= 0).all()
            read = torch.cat([source, torch.arange(sizes[number + 1])]).unique()
            assert len(read) == sizes[number]  # no row that the layer does not need
            counts = target.bincount(minlength=sizes[number + 1])
            expected = DEGREES[batch.n_id[: sizes[number + 1]]].clamp(max=load.sampling.degrees[number])
            assert torch.equal(counts, expected)


def cores(load: LayerLoader) -> list[list[int]]:
    return [batch.n_id[: batch.layer_sizes[-1]].tolist() for batch in load if "filler" not in batch]


@pytest.mark.parametrize("shuffle", [False, True])
def test_every_node_of_the_split_counts_once_an_epoch(shuffle: bool) -> None:
    load = loader("test", shuffle=shuffle)
    assert len(list(load)) == len(load) == 5
    nodes = load.graph.test_mask.nonzero().squeeze(1).tolist()
    assert Counter(sum(cores(load), [])) == Counter(nodes)
    first = cores(load)
    load.set_epoch(1)
    assert (cores(load) == first) == (not shuffle)


def same(left: list[Data], right: list[Data]) -> bool:
    return len(left) == len(right) and all(
        torch.equal(a.n_id, b.n_id)
        and torch.equal(a.x, b.x)
        and a.layer_sizes == b.layer_sizes
        and all(map(torch.equal, a.layer_edges, b.layer_edges))
        for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("sampler", ["graph_reservoir", "batch_reservoir"])
def test_draws_depend_on_seed_and_epoch_only_not_on_workers_or_what_was_drawn_before(sampler: str) -> None:
    load = loader(sampler=sampler)
    load.set_epoch(3)
    third = list(load)
    load.set_epoch(4)
    assert not same(list(load), third)
    torch.manual_seed(9)
    for workers in (0, 2):
        again = loader(sampler=sampler, num_workers=workers)
        again.set_epoch(3)
        assert same(list(again), third)
    other = loader(sampler=sampler, seed=6)
    other.set_epoch(3)
    assert not same(list(other), third)


def test_epochs_that_share_a_draw_have_the_same_edges() -> None:
    load = loader("val", shuffle=False, resampling_epochs=3)
    drawn = []
    for epoch in range(7):
        load.set_epoch(epoch)
        drawn.append(list(load))
    assert [same(drawn[0], item) for item in drawn] == [True, True, True, False, False, False, False]
    assert same(drawn[3], drawn[5])
    assert not same(drawn[3], drawn[6])


@pytest.mark.parametrize(("sampler", "expected"), [("graph_reservoir", True), ("batch_reservoir", False)])
def test_splits_and_batches_share_the_edges_of_a_node_only_where_the_graph_is_drawn(
    sampler: str, expected: bool
) -> None:
    edges: dict[int, set[tuple]] = {}
    for split in ("train", "val"):
        for batch in loader(split, sampler=sampler):
            source, target, _ = batch.layer_edges[0]
            for row in range(batch.layer_sizes[1]):
                drawn = tuple(sorted(batch.n_id[source[target == row]].tolist()))
                edges.setdefault(int(batch.n_id[row]), set()).add(drawn)
    assert all(len(drawn) == 1 for drawn in edges.values()) == expected


def test_a_graph_of_one_node_and_one_without_edges_make_batches() -> None:
    for degrees in ([0], [1], [0] * 5):
        graph = graph_of(len(degrees))
        load = LayerLoader(graph, "train", scores_of(degrees), LayerSampling((2, 2), repeat=True))
        (batch,) = load
        nodes = graph.train_mask.nonzero().squeeze(1)
        assert torch.equal(batch.n_id[: len(nodes)], nodes)
        assert batch.layer_edges[1].shape == (3, 2 * sum(degrees))


def test_other_attributes_of_nodes_come_along_and_those_of_edges_do_not() -> None:
    load = loader()
    load.graph.pestat_LapPE = load.graph.x[:, :2].float()
    load.graph.edge_attr, load.graph.num_nodes = torch.ones(N, 3), N
    batch = next(iter(load))
    torch.testing.assert_close(batch.pestat_LapPE, load.graph.pestat_LapPE[batch.n_id], rtol=0, atol=0)
    assert "edge_attr" not in batch
    assert "edge_index" not in batch
    assert batch.num_nodes == batch.layer_sizes[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "max"}, r"spexphormer\.sampler: choose one of graph_reservoir, .*, got 'max'"),
        ({"degrees": (3, 0)}, r"spexphormer\.degree: numbers of in-edges above 0, got \[3, 0\]"),
        ({"degrees": ()}, r"spexphormer\.degree: numbers of in-edges above 0, got \[\]"),
        ({"batch_size": 0}, r"train\.batch_size must be 1 or more, got 0"),
        ({"resampling_epochs": 0}, r"spexphormer\.resampling_epochs must be 1 or more, got 0"),
        ({"num_draws": 0}, r"spexphormer\.eval_draws must be 1 or more, got 0"),
    ],
)
def test_wrong_settings_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loader(**options)


KIB = 2**10
IMPLEMENTATIONS = [
    pytest.param(None, marks=pytest.mark.skipif(bool(unavailable_reason(*KERNEL)), reason="no C compiler"), id="C"),
    pytest.param("no compiler", id="numpy"),
]


class NewStorages(TorchDispatchMode):
    """Adds up the bytes of all storages that operations made, whether or not they live on."""

    def __init__(self, graph: Data) -> None:
        super().__init__()
        self.seen = {value.untyped_storage().data_ptr() for _, value in graph if isinstance(value, Tensor)}
        self.bytes = 0
        self.keep: list[Tensor] = []  # so that no address comes twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ARG002
        out = func(*args, **(kwargs or {}))
        for tensor in (value for value in tree_iter(out) if isinstance(value, Tensor)):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.seen:
                self.seen.add(storage.data_ptr())
                self.keep.append(tensor)
                self.bytes += storage.nbytes()
        return out


def bytes_of_a_batch(load: LayerLoader) -> int:
    """Return the bytes of the tensors and the largest sum of arrays while a batch is made."""
    nodes = torch.from_numpy(load.nodes[:4].copy())
    load.batch(nodes, 0)  # compiles the kernel
    structure = Data(**{name: getattr(load.layers[0], name) for name in ("ptr", "source", "kind", "score")})
    structure.update({f"graph_{key}": value for key, value in load.graph})
    structure.second = load.layers[1].score
    tracemalloc.start()
    try:
        with NewStorages(structure) as new:
            load.batch(nodes, 1)
        return new.bytes + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("reason", IMPLEMENTATIONS)
@pytest.mark.parametrize("sampler", LAYER_SAMPLERS)
def test_a_batch_needs_no_memory_of_the_size_of_the_graph(
    sampler: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (edge_sampling, layer_loader):
        monkeypatch.setattr(module, "unavailable_reason", lambda *_: reason)
    sizes = {}
    for num_nodes in (2_000, 200_000):
        graph, scores = graph_of(num_nodes, 16), scores_of(torch.full((num_nodes,), 8))
        sizes[num_nodes] = bytes_of_a_batch(LayerLoader(graph, "train", scores, LayerSampling((3, 3), sampler, 4)))
    # two bits a node mark the nodes of a layer, and their numbers; a float a node would be 800,000 bytes
    assert sizes[200_000] < sizes[2_000] + 2 * 2 * 200_000 // 8 + 20 * KIB
    assert sizes[200_000] < 300 * KIB


def test_batches_of_a_graph_that_is_mapped_from_disk_are_the_same_and_read_rows_only(tmp_path: Path) -> None:
    graph, scores = graph_of(3000), scores_of(torch.full((3000,), 8))
    torch.save(graph.to_dict(), tmp_path / "graph.pt")
    write_scores(tmp_path / "scores.pt", scores)
    mapped = Data.from_dict(torch.load(tmp_path / "graph.pt", mmap=True, weights_only=True))
    sampling = LayerSampling((3, 2), batch_size=100)
    batches = zip(
        LayerLoader(graph, "train", scores, sampling),
        LayerLoader(mapped, "train", read_scores(tmp_path / "scores.pt"), sampling, num_workers=1),
        strict=True,
    )
    for plain, mapped_batch in batches:
        assert torch.equal(plain.x, mapped_batch.x)
        assert torch.equal(plain.y, mapped_batch.y)
        assert all(map(torch.equal, plain.layer_edges, mapped_batch.layer_edges))
        assert mapped_batch.x.untyped_storage().nbytes() == mapped_batch.x.nbytes  # a copy of its rows
