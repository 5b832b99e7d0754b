"""What GPS models can tell apart, and what k-MIP transformers can learn (k-MIP paper, section 4; thesis, chapter 5).

  python run/expressivity.py pairs       1-WL and SEG-WL with encodings on pairs of graphs
  python run/expressivity.py theorem1    models on pairs that SEG-WL leaves equal: random ones of every kind
  python run/expressivity.py hardmax     top-k softmax of scaled scores against hardmax
  python run/expressivity.py fit         k-MIP transformers of narrow blocks fitted to a fixed function

Each writes JSON below --out and prints what it found. The exit code of theorem1 is 1 if the theorem fails somewhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from graphgps_kmip.common.atomic_write import replace_file  # noqa: E402
from graphgps_kmip.expressivity import wl_picture as picture  # noqa: E402
from graphgps_kmip.expressivity.graph_pairs import Pair, standard_pairs  # noqa: E402
from graphgps_kmip.expressivity.seg_wl import (  # noqa: E402
    Colouring,
    seg_wl,
    theorem_scheme,  # noqa: E402
    wl,
)
from graphgps_kmip.expressivity.toy_fit import TARGETS, fit, hardmax_bound, hardmax_error, linear_error  # noqa: E402  # noqa: E402
from graphgps_kmip.expressivity.wl_encodings import DECIMALS, ENCODINGS, INVARIANT, encode  # noqa: E402
from run.expressivity_trials import conclusion, lines, results  # noqa: E402

LAMBDAS = (0.5, 1, 2, 4, 8, 16, 32, 64)


def main(words: list[str]) -> int:
    """Run one part; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name in ("pairs", "theorem1", "hardmax", "fit"):
        part = parts.add_parser(name)
        part.add_argument("--out", type=Path, default=Path("results/expressivity"), help="where results go")
        if name == "theorem1":
            part.add_argument("--trials", type=int, default=60, help="random models for each component (default 60)")
        if name == "fit":
            part.add_argument("--target", choices=list(TARGETS), default="transformer", help="what is learned")
            part.add_argument("--blocks", type=int, nargs="+", default=[1, 2, 4, 8], help="numbers of blocks")
            part.add_argument("--k", type=int, default=2, help="keys that a query keeps (default 2, of 8 tokens)")
            part.add_argument("--steps", type=int, default=600, help="steps of Adam (default 600)")
            part.add_argument("--seeds", type=int, default=4, help="initial weights (default 4)")
    args = parser.parse_args(words)
    for name in ("trials", "k", "steps", "seeds", "blocks"):
        given = getattr(args, name, 1)
        if min(given if isinstance(given, list) else [given]) < 1:
            parser.error(f"--{name}: got {given}, at least 1 is needed")
    args.out.mkdir(parents=True, exist_ok=True)
    return {"pairs": _pairs, "theorem1": _theorem1, "hardmax": _hardmax, "fit": _fit}[args.part](args)


def _pairs(args: argparse.Namespace) -> int:
    rows = [_tests(pair) for pair in standard_pairs()]
    names = list(rows[0]["tests"])
    _write(args.out / "pairs.json", {"decimals": DECIMALS, "tests": names, "pairs": rows})
    _write(args.out / "colourings.json", {"iteration": picture.iteration(), "pair": picture.pair()})
    print(
        "After how many rounds the colours differ; =: never. SEG-WL has the scheme of theorem 1 and these encodings.\n"
    )
    heads = [name.removeprefix("SEG-WL, ").replace("Laplacian ", "") for name in names]
    print(f"{'':<28}{'1-WL':>6}   SEG-WL:" + "".join(f"{head:>{len(head) + 2}}" for head in heads[1:]))
    for row in rows:
        marks = ["=" if (after := one["separated_after"]) is None else str(after) for one in row["tests"].values()]
        marks = [f"{mark}!" if row["isomorphic"] and mark != "=" else mark for mark in marks]
        cells = "".join(f"{mark:>{len(head) + 2}}" for mark, head in zip(marks[1:], heads[1:], strict=True))
        print(f"{row['name']:<28}{marks[0]:>6}{'':>10}{cells}")
    print(
        "\n!  A graph told from itself with its nodes in another order. Eigenvectors are the solver's: their signs and"
    )
    print("   the bases of repeated eigenvalues follow that order. A difference by them alone proves nothing.")
    print("   Shortest paths are those of all pairs, which Graphormer reads, and no GPS model.")
    return 0


def _tests(pair: Pair) -> dict[str, Any]:
    graphs = (pair.first, pair.second)
    found = {"1-WL": _summary(wl(graphs), True)}
    for name in ENCODINGS:
        colouring = seg_wl(graphs, [theorem_scheme(graph, encode(name, graph)) for graph in graphs])
        found[f"SEG-WL, {name}"] = _summary(colouring, name in INVARIANT)
    sizes = {"nodes": pair.first.num_nodes, "edges": pair.first.edge_index.size(1) // 2}
    return {"name": pair.name, "isomorphic": pair.isomorphic, **sizes, "tests": found}


def _summary(colouring: Colouring, invariant: bool) -> dict[str, Any]:
    classes = [len(colouring.multiset(graph)) for graph in (0, 1)]
    after = colouring.separated_after()
    return {"separated_after": after, "rounds": colouring.rounds, "colours": classes, "invariant": invariant}


def _theorem1(args: argparse.Namespace) -> int:
    found = results(args.trials)
    _write(args.out / "theorem1.json", found)
    print("\n".join(lines(found)))
    print(f"\n{conclusion(found)}")
    return 0 if found["holds"] else 1


def _hardmax(args: argparse.Namespace) -> int:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(50, generator=generator, dtype=torch.float64).sort(descending=True).values
    rows = []
    for maxima, k in ((1, 10), (1, 50), (3, 10), (3, 3), (3, 2)):
        row = z.clone()
        row[:maxima] = row[maxima] + 0.5  # the same gap for all
        errors, bounds = ([float(of(row, k, scale)) for scale in LAMBDAS] for of in (hardmax_error, hardmax_bound))
        rows.append({"maxima": maxima, "k": k, "gap": 0.5, "error": errors, "bound": bounds})
    _write(args.out / "hardmax.json", {"entries": len(z), "lambdas": LAMBDAS, "rows": rows})
    print("L1 distance between top-k softmax of lambda Z and hardmax of Z, rows of 50 entries, gap 0.5\n")
    print(f"{'lambda':>16}" + "".join(f"{scale:>10g}" for scale in LAMBDAS))
    for row in rows:
        print(f"{row['maxima']} maxima, k = {row['k']:>2}" + "".join(f"{error:>10.1e}" for error in row["error"]))
    print("\nFewer keys than maxima: the even share cannot be reached, whatever lambda is.")
    return 0


def _fit(args: argparse.Namespace) -> int:
    torch.set_num_threads(1)  # the products are too small for more
    seeds = tuple(range(args.seeds))
    rows = []
    print(f"Test error of {args.seeds} fits to {args.target!r}; 1 is that of a constant. Mean (least, most)\n")
    for name, k in ((f"k-MIP, k = {args.k}", args.k), ("full attention", 0)):
        for blocks in args.blocks:
            errors = fit(args.target, blocks, k, args.steps, seeds)
            rows.append({"attention": name, "k": k, "blocks": blocks, "error": errors})
            print(
                f"{name:<16} {blocks:>3} blocks  {mean(errors):.3f} ({min(errors):.3f}, {max(errors):.3f})", flush=True
            )
    linear = linear_error(args.target)
    print(f"{'an affine map of each token':<28} {linear:.3f}")
    print(
        "\nBoth have 2 heads of width 1 and MLPs of width 4, as in theorem 2. The theorem promises that enough blocks"
    )
    print("exist for any error; it does not promise that training finds them, nor anything at this number of blocks.")
    record = {"target": args.target, "steps": args.steps, "seeds": seeds, "linear": linear, "rows": rows}
    _write(args.out / "fit.json", record)
    return 0


def _write(path: Path, content: dict[str, Any]) -> None:
    replace_file(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
