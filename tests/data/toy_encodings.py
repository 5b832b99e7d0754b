"""Toy encodings, and what their tests share."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import degree

from graphgps_kmip.data import GraphDataset
from graphgps_kmip.data.precomputed_encodings import Encoding

Rings = Callable[[int], GraphDataset]


class Counted:
    """Toy encoding that writes down what it computes: degrees (N, k), the size (1,), and a matrix (N, N)."""

    def __init__(self, log: Path, **settings: Any) -> None:
        self.log, self.k = log, settings.get("k", 2)
        self.encoding = Encoding("Toy", {"k": self.k}, self, settings.get("version", 1))

    def __call__(self, graphs: list[Data]) -> list[dict[str, Tensor]]:
        with open(self.log, "a") as file:
            file.write("x" * len(graphs))
        return [self.of(graph) for graph in graphs]

    def of(self, graph: Data) -> dict[str, Tensor]:
        degrees = degree(graph.edge_index[0], graph.num_nodes).double()
        sizes = torch.tensor(graph.num_nodes)
        return {
            "toy": degrees[:, None] * torch.arange(1, self.k + 1),
            "toy_size": sizes,
            "toy_far": torch.arange(graph.num_nodes)[:, None] - torch.arange(graph.num_nodes),
        }

    @property
    def count(self) -> int:
        return len(self.log.read_text()) if self.log.exists() else 0


def draws(graphs: list[Data], seed: int) -> list[dict[str, Tensor]]:
    generators = [torch.Generator().manual_seed(1000 * seed + graph.graph_id) for graph in graphs]
    return [{"drawn": torch.rand(3, generator=generator)} for generator in generators]


def drawn(seed: int) -> Encoding:
    return Encoding("Random", {"seed": seed}, functools.partial(draws, seed=seed), random=True)


def ones(name: str, attribute: str) -> Encoding:
    return Encoding(name, {}, lambda graphs: [{attribute: torch.ones(graph.num_nodes, 1)} for graph in graphs])


def start(target: Callable[..., Any], *arguments: Any) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    return process


def folders(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if not path.name.endswith(".lock"))
