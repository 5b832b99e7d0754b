"""Energy distances between the attention scores of narrow and of wide estimators (low-width paper, 5.1 and figure 2).

  python run/narrow_estimators.py --cfg configs/LowWidth/cora-estimator.yaml --out results/narrow/cora

Trains the estimator of a YAML file with each width and seed into FOLDER/<edges>/, as main.py would, and compares the
scores of each width with those of the widest (which is compared with itself by halves) in FOLDER/energy.json.
--edges all: graph edges, expander edges and self loops; graph: graph edges alone. The energy distance (Székely and
Rizzo 2013) is D(X, Y) = 2 E|X - Y| - E|X - X'| - E|Y - Y'|, with Euclidean norms, estimated by U-statistics, which can
be below 0. The paper does not define its samples; here one is the vector of weights on a node's incoming edges in one
trained network, and the distances of the nodes are averaged.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphgps_kmip.command_line import run as train
from graphgps_kmip.common.atomic_write import write_json
from graphgps_kmip.data.score_file import AttentionScores, read_scores
from graphgps_kmip.errors import InputError, ResultsError, report_mistakes

WIDTHS = [4, 8, 16, 32, 64]  # the drawing has values from 4 to 64, which ones is not said
SEEDS = 100
EDGES = {"all": (), "graph": ("prep.exp", "False", "gt.score_estimator.self_loops", "False")}
SAMPLE = ("dataset.sample", "True", "optim.max_epoch", "2", "num_workers", "0")
BASELINES = ("uniform", "random")  # equal weights; softmax of logits uniform on [-8, 8]
LOGIT_LIMIT = 8.0  # the paper's: logits of the estimator are clipped to it, those of the baseline uniform up to it
PAIRS = 2**22  # distances that are held at a time
Distances = dict[str, list[float]]  # width or baseline -> energy distance of each layer, mean over the nodes


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the checked command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cfg", type=Path, required=True, help="YAML file of an estimator")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, help="of the networks (default 4 8 16 32 64)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="trainings of each width (default 100)")
    parser.add_argument("--edges", choices=EDGES, nargs="+", default=list(EDGES), help="attention graph (default both)")
    parser.add_argument("--set", type=str.split, default=[], help="further settings, in quotes: 'KEY VALUE ...'")
    parser.add_argument("--dir", type=Path, help="folder of all data sets (default: dataset.dir of the YAML file)")
    parser.add_argument("--sample", action="store_true", help="two epochs on synthetic data, no result")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and of energy.json")
    args = parser.parse_args(argv)
    args.widths = sorted(set(args.widths))
    if args.seeds < 2 or len(args.widths) < 2:
        parser.error("--seeds and --widths: distances between distributions need 2 seeds and 2 widths, or more")
    return args


@report_mistakes
def main(argv: list[str]) -> int:
    """Train, compare, print and write; return the exit code."""
    args = parse(argv)
    by_edges = {edges: _measure_edges(args, edges) for edges in dict.fromkeys(args.edges)}
    content = {"measure": "energy distance", "config": args.cfg.stem, "sample": args.sample, "seeds": args.seeds}
    content |= {"reference": args.widths[-1], "edges": by_edges, "cells": _make_cells(by_edges)}
    write_json(args.out / "energy.json", content)
    for row, cells in content["cells"].items():
        print(f"{row:<10}", "  ".join(f"{edges} edges: {value:.4f}" for edges, (value,) in cells.items()))
    return 0


def _measure_edges(args: argparse.Namespace, edges: str) -> dict[str, Any]:
    runs = {width: _train_width(args, edges, width) for width in args.widths}
    first = read_scores(runs[args.widths[0]][0])
    _check_same(first, runs, args.cfg)
    layers = [_layer_distances(runs, number) for number in range(len(first.layers))]
    distances: Distances = {name: [layer[name] for layer in layers] for name in layers[0]}
    ptr = first.layers[0].ptr
    return {"distances": distances, "nodes": int((ptr.diff() > 0).sum()), "num_edges": int(ptr[-1])}


def _train_width(args: argparse.Namespace, edges: str, width: int) -> list[Path]:
    root = args.out / edges
    argv = ["--cfg", str(args.cfg), "--repeat", str(args.seeds), "out_dir", str(root), "name_tag", f"width{width}"]
    argv += ["seed", "0", "gt.dim_hidden", str(width), "gnn.dim_inner", str(width), "prep.exp_seed", "0"]
    argv += [*EDGES[edges], "train.auto_resume", "True", *(("dataset.dir", str(args.dir)) if args.dir else ())]
    if code := train([*argv, *args.set, *(SAMPLE if args.sample else ())]):
        raise ResultsError(f"{args.cfg}: the training of width {width} ended with exit code {code}, see above")
    root = root.with_name(f"{root.name}-sample") if args.sample else root
    folder = root / f"{args.cfg.stem}-width{width}"
    return [folder / str(seed) / "scores.pt" for seed in range(args.seeds)]


def _check_same(first: AttentionScores, runs: dict[int, list[Path]], cfg: Path) -> None:
    for path in (path for paths in runs.values() for path in paths):
        other = read_scores(path)
        same = all(other.facts[key] == first.facts[key] for key in ("data", "split")) and all(
            torch.equal(getattr(layer, name), getattr(expected, name))
            for layer, expected in zip(other.layers, first.layers, strict=True)
            for name in ("ptr", "source", "kind")
        )
        if not same:
            raise ResultsError(f"{path}: its data, split or edges are not those of the other runs of {cfg}: remove it")


def _layer_distances(runs: dict[int, list[Path]], number: int) -> dict[str, float]:
    reference = max(runs)
    wide, ptr = _stack_scores(runs[reference], number)
    spread, has_edges = mean_spread(wide, ptr), ptr.diff() > 0
    distances = {}
    for width, paths in runs.items():
        if width != reference:
            distances[str(width)] = energy_distances(_stack_scores(paths, number)[0], wide, ptr, spread)
        elif len(wide) > 3:  # each half needs two
            half = len(wide) // 2
            distances[str(width)] = energy_distances(wide[:half], wide[half:], ptr)
    distances["uniform"] = energy_distances_of_point(uniform_weights(ptr), wide, ptr, spread)
    distances["random"] = energy_distances(random_weights(ptr, len(wide)), wide, ptr, spread)
    return {name: float(values[has_edges].mean()) for name, values in distances.items()}


def _stack_scores(paths: Sequence[Path], number: int) -> tuple[Tensor, Tensor]:
    """Return the scores of one layer of all runs, (R, E), and where the edges of each node begin, (N+1,)."""
    layers = [read_scores(path).layers[number] for path in paths]
    return torch.stack([layer.score for layer in layers]), layers[0].ptr.clone()


def _make_cells(by_edges: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    cells: dict[str, dict[str, list[float]]] = {}
    for edges, content in by_edges.items():
        for name, layers in content["distances"].items():
            row = name if name in BASELINES else f"width {name}"
            cells.setdefault(row, {})[edges] = [sum(layers) / len(layers)]
    return cells


def energy_distances(x: Tensor, y: Tensor, ptr: Tensor, spread_of_y: Tensor | None = None) -> Tensor:
    """Return the energy distance of each node between two samples of weights, in float64.

    Args:
        x (Tensor): Weights of R trainings on the incoming edges of all nodes, those of a node in a row.
        y (Tensor): Weights of S other trainings on the same edges.
        ptr (Tensor): Edges of node i are ``ptr[i]:ptr[i + 1]``.
        spread_of_y (Tensor, optional): ``mean_spread(y, ptr)``, where it is known. (default: ``None``)

    Shapes: x (R, E), y (S, E), ptr (N+1,), returns (N,); 0 of a node without edges.
    """
    spread = mean_spread(y, ptr) if spread_of_y is None else spread_of_y
    return 2 * mean_distance(x, y, ptr) - mean_spread(x, ptr) - spread


def energy_distances_of_point(point: Tensor, y: Tensor, ptr: Tensor, spread_of_y: Tensor | None = None) -> Tensor:
    """Return the energy distance of each node between a constant (E,) and a sample; see `energy_distances`."""
    spread = mean_spread(y, ptr) if spread_of_y is None else spread_of_y
    return 2 * mean_distance(point[None], y, ptr) - spread


def mean_distance(x: Tensor, y: Tensor, ptr: Tensor) -> Tensor:
    """Return the mean of |x - y| over all pairs, for each node: x (R, E), y (S, E), ptr (N+1,) -> (N,), float64."""
    return _sums(x, y, ptr) / (len(x) * len(y))


def mean_spread(x: Tensor, ptr: Tensor) -> Tensor:
    """Return the mean of |x - x'| over all pairs of different trainings, for each node: the U-statistic.

    Shapes: x (R, E), ptr (N+1,), returns (N,), float64.
    """
    if len(x) < 2:
        raise InputError(
            f"energy distance: {len(x)} sample has no spread, which a U-statistic needs: give the weights of 2 or more "
            "trainings (--seeds 2)"
        )
    return _sums(x, x, ptr) / (len(x) * (len(x) - 1))  # a sample is at distance 0 of itself


def uniform_weights(ptr: Tensor) -> Tensor:
    """Return the baseline of equal weights, 1 / degree on every incoming edge; (E,), float64."""
    degree = ptr.diff()
    return torch.repeat_interleave(1 / degree.double(), degree)


def random_weights(ptr: Tensor, num: int, seed: int = 0, limit: float = LOGIT_LIMIT) -> Tensor:
    """Return the baseline of random weights: softmax, over the edges of each node, of uniform logits.

    Args:
        ptr (Tensor): First incoming edge of each node, and E at the end.
        num (int): Number of samples.
        seed (int, optional): Of the draw. (default: ``0``)
        limit (float, optional): Logits are uniform on [-limit, limit]. (default: ``8.0``)

    Shapes: returns (num, E), float64.
    """
    draw = torch.Generator().manual_seed(seed)
    num_edges, degree = int(ptr[-1]), ptr.diff()
    weight = torch.empty(num, num_edges, dtype=torch.float64).uniform_(-limit, limit, generator=draw).exp_()
    node = torch.repeat_interleave(torch.arange(len(degree)), degree)
    total = weight.new_zeros(num, len(degree)).index_add_(1, node, weight)
    return weight.div_(total[:, node])


@torch.no_grad()
def _sums(x: Tensor, y: Tensor, ptr: Tensor) -> Tensor:
    for weights in (x, y):
        if weights.dim() != 2 or weights.size(1) != int(ptr[-1]):
            raise InputError(
                f"energy distance: expected weights of (trainings, {int(ptr[-1])} edges), got {tuple(weights.shape)}: "
                "give those of one attention graph for every training"
            )
    sums = x.new_zeros(len(ptr) - 1, dtype=torch.float64)
    for nodes, edges in _group_by_degree(ptr, max(1, PAIRS // (len(x) * len(y)))):
        x_weights, y_weights = (weights[:, edges].transpose(0, 1).double() for weights in (x, y))  # (n, R, degree)
        # by differences: with products, equal vectors would be 1e-8 apart
        sums[nodes] = torch.cdist(x_weights, y_weights, compute_mode="donot_use_mm_for_euclid_dist").sum((1, 2))
    return sums


def _group_by_degree(ptr: Tensor, max_nodes: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield at most `max_nodes` nodes of one degree, (n,), and their incoming edges, (n, degree)."""
    degree = ptr.diff()
    for value in degree.unique().tolist():
        if value:
            for nodes in (degree == value).nonzero().flatten().split(max_nodes):
                yield nodes, ptr[nodes][:, None] + torch.arange(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
