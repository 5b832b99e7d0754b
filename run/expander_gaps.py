"""Spectral gaps of expanders of Hamiltonian cycles (low-width paper, section 3 and figure 1).

python run/expander_gaps.py --out cells.json [--nodes 7600 18333] [--degree 15] [--seeds 5] [--sample]

Writes the second smallest eigenvalue of the Laplacians, and the bound below which an expander is drawn again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from graphgps_kmip.common.atomic_write import write_json
from graphgps_kmip.encoding.expander_graph import (
    COMPLETE_AT_MOST,
    TEST_AT_MOST,
    Expansion,
    expander_edges,
    expander_generator,
    spectral_bound,
    spectral_value,
)

NODES = {"Photo": 7487, "Actor": 7600, "Computer": 13381, "CS": 18333, "Physics": 34493}  # printed in table 3
SMALL = {"100 nodes": 100, "400 nodes": 400}  # below and above the use of Lanczos: for --sample
MAX_DRAWS = 100  # prep.exp_max_num_iters


def row(num_nodes: int, degree: int, seeds: int) -> dict[str, list[float]]:
    """Return a row of the table: the values of every seed, by column."""
    bound, columns = spectral_bound(degree), {"eigenvalue": [], "bound": [], "draws": []}
    for seed in range(seeds):
        values: list[float] = []

        def compute_value(edges: np.ndarray, nodes: int, values: list[float] = values) -> float:
            values.append(spectral_value(edges, nodes))
            return values[-1]

        draw = {"rng": expander_generator(seed, 0), "max_num_iters": MAX_DRAWS, "expansion": Expansion(compute_value)}
        expander_edges(num_nodes, degree, "Hamiltonian", **draw)
        for name, value in (("eigenvalue", max(values)), ("bound", bound), ("draws", len(values))):
            columns[name].append(value)
    return columns


def main(argv: list[str]) -> int:
    """Draw, print and write; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file: cells, row -> column -> values")
    parser.add_argument("--nodes", type=int, nargs="+", help="numbers of nodes (default: those of the paper's graphs)")
    parser.add_argument("--degree", type=int, default=15, help="cycles of an expander (default 15: degree 30)")
    parser.add_argument("--seeds", type=int, default=5, help="expanders of each size (default 5)")
    parser.add_argument("--sample", action="store_true", help="two small sizes in a second, no result")
    args = parser.parse_args(argv)
    if args.degree < 2 or args.seeds < 1:
        parser.error("--degree must be 2 or more (with 1 everything passes), and --seeds 1 or more")
    for nodes in args.nodes or ():
        if not max(args.degree, COMPLETE_AT_MOST) < nodes <= TEST_AT_MOST:
            parser.error(
                f"--nodes {nodes}: expanders of more than {max(args.degree, COMPLETE_AT_MOST)} and at most "
                f"{TEST_AT_MOST} nodes are tested, choose such a number"
            )
    sizes = {f"{nodes} nodes": nodes for nodes in args.nodes} if args.nodes else SMALL if args.sample else NODES
    cells = {}
    for name, nodes in sizes.items():
        cells[name] = row(nodes, args.degree, args.seeds)
        value, draws = (np.mean(cells[name][column]) for column in ("eigenvalue", "draws"))
        print(f"{name}: {value:.4f}, bound {cells[name]['bound'][0]:.4f}, {draws:g} draws", flush=True)
    write_json(args.out, {"cells": cells})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
