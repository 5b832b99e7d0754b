"""One training step of GPS with k-MIP on a graph sharded over gloo processes: bytes counted at the sockets and held."""

from __future__ import annotations

import os
import socket
import struct
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Batch, Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.data.partition import shard_of
from graphgps_kmip.gym.building.network_building import build_network
from graphgps_kmip.gym.config.config_loading import load_config
from graphgps_kmip.train.distributed import share_batch_norms

from .harness import Row
from .large_graph import CLASSES, FEATURES, StageLog
from .synthetic_graphs import erdos_renyi, road_graph

TCP_INFO_BYTES_SENT = 200  # offset in struct tcp_info of Linux (include/uapi/linux/tcp.h, since 4.19)
LIMIT = timedelta(minutes=20)


def graph_of(kind: str, num_nodes: int, degree: float) -> Data:
    """Return a graph of so many directed edges for each node, "road" (plane) or "random", with features and labels."""
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    if kind == "road":
        graph = road_graph(rng, num_nodes, int(num_nodes * degree / 2))
    else:
        graph = erdos_renyi(rng, num_nodes, degree)
    graph.x = torch.randn(num_nodes, FEATURES, generator=generator)
    graph.y = torch.randint(CLASSES, (num_nodes,), generator=generator)
    graph.train_mask = torch.ones(num_nodes, dtype=torch.bool)
    return graph


def sent_bytes() -> int:
    """Return how many bytes this process has sent through its TCP connections, as the kernel counts them."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += struct.unpack_from("Q", info, TCP_INFO_BYTES_SENT)[0]
        except OSError:  # the descriptor of the listing itself is closed by now
            continue
    return total


class Payloads:
    """Context manager that counts, by collective, the bytes which this process gives to torch.distributed."""

    def __init__(self) -> None:
        self.bytes = {"all_to_all": 0, "all_reduce": 0, "all_gather": 0}
        self.originals: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> Payloads:
        """Take the place of the three functions."""
        for name in ("all_to_all_single", "all_reduce", "all_gather"):
            self.originals[name] = getattr(dist, name)
        dist.all_to_all_single, dist.all_reduce, dist.all_gather = self._exchange, self._reduce, self._gather
        return self

    def __exit__(self, *_: object) -> None:
        """Put them back."""
        for name, function in self.originals.items():
            setattr(dist, name, function)

    def _exchange(self, out: Tensor, rows: Tensor, received: list[int], sent: list[int], group: Any = None) -> Any:
        others = sum(sent) - sent[dist.get_rank(group)]
        self.bytes["all_to_all"] += others * rows[:1].nbytes
        return self.originals["all_to_all_single"](out, rows, received, sent, group=group)

    def _reduce(self, tensor: Tensor, *given: Any, **named: Any) -> Any:
        self.bytes["all_reduce"] += tensor.nbytes
        return self.originals["all_reduce"](tensor, *given, **named)

    def _gather(self, tensors: list[Tensor], tensor: Tensor, *given: Any, **named: Any) -> Any:
        self.bytes["all_gather"] += tensor.nbytes
        return self.originals["all_gather"](tensors, tensor, *given, **named)


def network(config: Path, settings: list[str]) -> torch.nn.Module:
    """Return the network of a YAML file, for the features and classes of `graph_of`."""
    load_config(cfg, config, ["gt.kmip.shard", "True", *settings])
    cfg.share.dim_in = FEATURES
    torch.manual_seed(0)
    return build_network("GPSModel", FEATURES, CLASSES)


def facts_of(model: torch.nn.Module) -> Row:
    """Return what the cost model needs to know of a network: parameters, and widths of its batch norms together."""
    norms = [one.num_features for one in model.modules() if isinstance(one, _BatchNorm)]
    attention = next(one for one in model.modules() if type(one).__name__ == "KMIPAttention")
    return {
        "parameters": sum(one.numel() for one in model.parameters()),
        "norms": len(norms),
        "norm_channels": sum(norms),
        "width": cfg.gt.dim_hidden,
        "layers": len(model.layers),
        "heads": attention.num_heads,
        "dim_kq": cfg.gt.kmip.dim_kq,
        "keys": cfg.gt.kmip.k,
    }


def _process(rank: int, world: int, folder: str, graph: Data, config: Path, settings: list[str]) -> None:
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world, timeout=LIMIT)
    model = network(config, settings)
    found = facts_of(model)
    batch = Batch.from_data_list([shard_of(graph, rank, world)])
    batch.split = "train"
    parallel = DistributedDataParallel(share_batch_norms(model), find_unused_parameters=True)
    dist.barrier()
    before = sent_bytes()
    with Payloads() as payloads, StageLog() as log:
        loss = cross_entropy(*parallel(batch), reduction="sum")
        loss.backward()
    found |= payloads.bytes | {"sockets": sent_bytes() - before, "peak": log.peak, "made": log.made}
    found |= {"nodes": batch.num_nodes, "edges": batch.num_edges, "halo": int(batch.halo_receive.sum())}
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def measure(graph: Data, world: int, config: Path, settings: list[str]) -> list[Row]:
    """Run one step in so many processes and return what each counted."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_process, (world, folder, graph, config, settings), world, start_method="fork")
        return [torch.load(f"{folder}/{rank}.pt") for rank in range(world)]
