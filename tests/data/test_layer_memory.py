"""Memory of layer-wise batches: bounded by the batch, not by the graph, whose tensors may be mapped from disk."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch_geometric.data import Data

from graphgps_kmip.data import edge_sampling, layer_loader
from graphgps_kmip.data.edge_sampling import KERNEL
from graphgps_kmip.data.layer_loader import LAYER_SAMPLERS, LayerLoader, LayerSampling
from graphgps_kmip.data.score_file import read_scores, write_scores
from graphgps_kmip.native import unavailable_reason
from tests.data.scored import graph_of, scores_of

KIB = 2**10
IMPLEMENTATIONS = [
    pytest.param(None, marks=pytest.mark.skipif(bool(unavailable_reason(*KERNEL)), reason="no C compiler"), id="C"),
    pytest.param("no compiler", id="numpy"),
]


class NewStorages(TorchDispatchMode):
    """Adds up the bytes of all storages that operations made, whether or not they live on."""

    def __init__(self, graph: Data) -> None:
        super().__init__()
        self.known = {value.untyped_storage().data_ptr() for _, value in graph if isinstance(value, Tensor)}
        self.bytes = 0
        self.keep: list[Tensor] = []  # so that no address comes twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ARG002
        out = func(*args, **(kwargs or {}))
        for tensor in (value for value in tree_iter(out) if isinstance(value, Tensor)):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.known:
                self.known.add(storage.data_ptr())
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
    for one, other in batches:
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)
        assert all(map(torch.equal, one.layer_edges, other.layer_edges))
        assert other.x.untyped_storage().nbytes() == other.x.nbytes  # a copy of its rows
