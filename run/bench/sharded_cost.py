"""Cost model of one training step on a graph of 10^8 nodes over 8 and 64 GPUs: bytes held and sent per card, and time.

  python -m run.bench.sharded_cost
  python -m run.bench.sharded_cost --layer GCN --width 32 --total 1e7 --cards 8,16

The network is GPS with k-MIP of a YAML file (default: London's), with batch norm and gradient checkpointing. Nothing of
this size is run. What the numbers come from, all of it in this run:

- "check": steps on small graphs over gloo processes. `value` are the bytes that all of them send by formula (`sent`),
  `counted` those that they give to the collectives (all_to_all), or that leave their sockets, as the kernel counts them
  (sockets: everything, gradients and headers too).
- "halo": small graphs are partitioned into as many parts as there are cards; halos are scaled with N on random graphs,
  with its root on road graphs (parts of a plane have borders).
- "fit": bytes of tensors at the peak of the check's steps, and of all tensors that were made, by least squares as a sum
  over nodes, edges, halo rows and visits of queries to other processes; its largest error on a process is given.
- "projection": all of this at the size asked for, and the times that follow with the rates of `CARDS`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from graphgps_kmip.data.partition import partition

from . import bench_records
from .harness import Row
from .large_graph import LONDON
from .sharded_step import graph_of, measure

COLUMNS = ["part", "graph", "cards", "of", "nodes", "value", "counted", "ratio"]
FIXED = ["share.gradient_checkpointing", "True", "gt.layer_norm", "False", "gt.batch_norm", "True"]
DEGREE = {"road": 2.67, "random": 10.0}  # directed edges for each node; road: of London
GIGA = 1e9
MACHINE = 8  # cards joined by NVLink
E = 4  # bytes of a float32
I = 4  # bytes of an index below 2^31 rows  # noqa: E741


@dataclass(frozen=True)
class Card:
    """Rates of one GPU, in one direction, per second.

    Args:
        nvlink (float): bytes to the cards of the same machine; vendor's figure.
        network (float): bytes to other machines: one adapter of 400 Gbit/s for each card.
        memory (float): bytes read or written; vendor's figure.
        pairs (float): pairs of query and key that the exact search gets through: 10^14 in the predicted least time of
            docs/benchmarks.md (unit-norm keys, 10 channels), which no kernel reaches.
        printed (float): the same from a printed time; 0 where none is (k-MIP paper, tables 15 and 16: 208.3 s).
    """

    nvlink: float
    network: float
    memory: float
    pairs: float
    printed: float = 0.0


CARDS = {
    "A100": Card(300e9, 50e9, 2.04e12, 1e14 / 27.6, 1e14 / 208.3),
    "H100": Card(450e9, 50e9, 3.35e12, 1e14 / 15.2),
}


@dataclass(frozen=True)
class Shard:
    """What one card has of a graph: n nodes, edges that end in them, halo rows; and the number of cards R."""

    nodes: float
    edges: float
    halo: float
    cards: int


def remote(keys: int, cards: int) -> tuple[float, float]:
    """Return pairs s and visits p of a query at other cards, with keys spread evenly (docs/sharded.md)."""
    return keys * (cards - 1) / cards, (cards - 1) * (1 - (1 - 1 / cards) ** keys)


def sent(net: Row, shard: Shard) -> dict[str, float]:
    """Return the bytes that a card sends in one step, by part; gradient checkpointing repeats forward, not the search.

    Args:
        net: of `facts_of`, and `degrees`: numbers that a layer exchanges for each halo row beside the features.
        shard: of the card.
    """
    others, (pairs, visits) = shard.cards - 1, remote(net["keys"], shard.cards)
    queries = net["layers"] * net["heads"] * shard.nodes
    dim, channels = net["dim_kq"], net["width"] // net["heads"]
    ring = 2 * others / shard.cards
    norms = 3 * (2 * net["norm_channels"] + net["norms"]) * E
    # forward twice, backward once; GCN's degrees have no gradient
    halo_channels = 3 * net["width"] + 2 * net["degrees"]
    return {
        "halo": net["layers"] * shard.halo * halo_channels * E,
        "search": queries * others * (dim * E + net["keys"] * (E + I)),
        "forward": 2 * queries * (pairs * (E + I) + visits * (channels * E + I)),
        "backward": queries * (3 * pairs * E + visits * (2 * dim + channels) * E),
        "norms": ring * norms,
        "gradients": ring * net["parameters"] * E,
    }


def load_of(net: Row, shard: Shard) -> list[float]:
    """Return what held and made bytes are a sum over: nodes, edges, halo rows, visits of queries at other cards."""
    return [shard.nodes, shard.edges, shard.halo, shard.nodes * net["heads"] * remote(net["keys"], shard.cards)[1]]


def fitted(loads: list[list[float]], values: list[float]) -> tuple[np.ndarray, float]:
    """Return coefficients, none below 0, of the least relative squares, and the largest relative error."""
    from scipy.optimize import nnls

    scaled = np.array(loads) / np.array(values)[:, None]
    coefficients, _ = nnls(scaled, np.ones(len(values)))
    return coefficients, float(np.abs(scaled @ coefficients - 1).max())


def halo_fraction(kind: str, num_nodes: int, cards: int) -> float:
    """Return the mean number of halo rows of a part of a small graph, divided by its nodes."""
    graph = graph_of(kind, num_nodes, DEGREE[kind])
    owner = torch.empty(num_nodes, dtype=torch.long)
    for number, nodes in enumerate(partition(graph.edge_index, num_nodes, cards)):
        owner[torch.from_numpy(nodes)] = number
    source, target = graph.edge_index
    away = owner[source] != owner[target]
    return len((owner[target] * num_nodes + source)[away].unique()) / num_nodes


def projected_shard(kind: str, total: int, small: int, cards: int, measured: float) -> Shard:
    """Return the shard of a card in a graph of `total` nodes, from the halo fraction of one of `small` nodes."""
    nodes = total / cards
    fraction = measured * (math.sqrt(small / total) if kind == "road" else 1)
    return Shard(nodes, nodes * DEGREE[kind], nodes * fraction, cards)


def seconds(net: Row, shard: Shard, total: int, card: Card, made: float) -> dict[str, float]:
    """Return the seconds of a step: links (peers evenly spread), memory (each byte written and read), search."""
    given = sum(sent(net, shard).values())
    near = min(shard.cards, MACHINE) - 1
    far = shard.cards - 1 - near
    pairs = net["layers"] * net["heads"] * total * shard.nodes
    return {
        "links": given * (near / card.nvlink + far / card.network) / (shard.cards - 1),
        "memory": 2 * made / card.memory,
        "search, least": pairs / card.pairs,
        **({"search, printed": pairs / card.printed} if card.printed else {}),
    }


Say = Callable[..., None]


def check(args: argparse.Namespace, say: Say) -> tuple[Row, dict[str, tuple[np.ndarray, float]]]:
    """Run small steps, compare, and return the facts of the network and the fits of held and made bytes."""
    loads, values, net = [], {"held": [], "made": []}, {}
    for kind in DEGREE:
        graph = graph_of(kind, args.nodes, DEGREE[kind])
        for world in args.processes:
            ranks = measure(graph, world, args.cfg, args.settings)
            net = ranks[0] | {"degrees": int(args.layer == "GCN")}
            shards = [Shard(one["nodes"], one["edges"], one["halo"], world) for one in ranks]
            parts = [sent(net, shard) for shard in shards]
            exchanged = sum(one[key] for one in parts for key in ("halo", "search", "forward", "backward"))
            where = {"graph": kind, "cards": world, "nodes": args.nodes}
            say("check", of="all_to_all", value=exchanged, counted=sum(one["all_to_all"] for one in ranks), **where)
            whole = sum(sum(one.values()) for one in parts)
            say("check", of="sockets", value=whole, counted=sum(one["sockets"] for one in ranks), **where)
            loads += [load_of(net, shard) for shard in shards]
            values["held"] += [one["peak"] for one in ranks]
            values["made"] += [one["made"] for one in ranks]
    return net, {key: fitted(loads, one) for key, one in values.items()}


def project(args: argparse.Namespace, net: Row, fits: dict[str, tuple[np.ndarray, float]], say: Say) -> None:
    """Say what a card holds, sends and needs for a step at full size."""
    for kind in DEGREE:
        for cards in args.cards:
            where = {"graph": kind, "cards": cards, "nodes": args.total}
            fraction = halo_fraction(kind, args.halo_nodes, cards)
            say("halo", of="rows for each node", value=fraction, graph=kind, cards=cards, nodes=args.halo_nodes)
            shard = projected_shard(kind, args.total, args.halo_nodes, cards, fraction)
            load = np.array(load_of(net, shard))
            held, made = (float(load @ fits[key][0]) for key in ("held", "made"))
            say("projection", of="held, GB", value=held / GIGA, **where)
            for name, amount in sent(net, shard).items():
                say("projection", of=f"sent, {name}, GB", value=amount / GIGA, **where)
            say("projection", of="sent, GB", value=sum(sent(net, shard).values()) / GIGA, **where)
            for name, card in CARDS.items():
                for part, time in seconds(net, shard, args.total, card, made).items():
                    say("projection", of=f"{name}: {part}, s", value=time, **where)


def main(words: list[str]) -> int:
    """Measure, print, write; return the exit code."""
    args = bench_records.parse(
        words,
        __doc__,
        nodes=(bench_records.positive, 8000, "nodes of the checked graphs"),
        processes=(bench_records.sizes, [2, 4, 8], "gloo processes of the checks"),
        total=(bench_records.positive, 100_000_000, "nodes of the projected graph"),
        cards=(bench_records.sizes, [8, 64], "cards of the projection"),
        halo_nodes=(bench_records.positive, 200_000, "nodes of the graphs that are partitioned"),
        layer=(("GatedGCN", "GCN", "GATv2"), "GatedGCN", "message passing beside k-MIP"),
        layers=(bench_records.positive, 8, "layers"),
        width=(bench_records.positive, 64, "channels of the layers; 4 heads"),
        cfg=(Path, LONDON, "YAML file of the model"),
    )
    args.settings = [*FIXED, "gt.layer_type", f"{args.layer}+kMIP", "gt.layers", str(args.layers), "gt.n_heads", "4"]
    args.settings += [word for key in ("gt.dim_hidden", "gnn.dim_inner") for word in (key, str(args.width))]
    args.settings += ["gt.kmip.dim_val", str(args.width // 4)]
    rows: list[Row] = []

    def say(part: str, **columns: str | float) -> None:
        row = {"part": part, **columns}
        if "counted" in row:
            row["ratio"] = row["counted"] / row["value"]
        rows.append({key: row[key] for key in COLUMNS if key in row})
        print(*(bench_records.number(row[key]) for key in COLUMNS if key in row), flush=True)

    net, fits = check(args, say)
    for key, (coefficients, error) in fits.items():
        for name, value in zip(("node", "edge", "halo row", "visit"), coefficients, strict=True):
            say("fit", of=f"{key}, bytes for each {name}", value=float(value))
        say("fit", of=f"{key}, largest relative error", value=error)
    project(args, net, fits, say)
    args.cfg = args.cfg.name
    return bench_records.save("sharded_cost", args, rows, COLUMNS)


if __name__ == "__main__":
    bench_records.run(main)
