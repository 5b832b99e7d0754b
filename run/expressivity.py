"""What GPS models can tell apart, and what k-MIP transformers can learn (k-MIP paper, section 4; thesis, chapter 5).

  python run/expressivity.py pairs       1-WL and SEG-WL with encodings on pairs of graphs
  python run/expressivity.py theorem1    models on pairs that SEG-WL leaves equal: random ones of every kind
  python run/expressivity.py hardmax     top-k softmax of scaled scores against hardmax
  python run/expressivity.py fit         k-MIP transformers of narrow blocks fitted to a fixed function
  python run/expressivity.py brec        pairs of BREC that 1-WL and 3-WL tell apart (rows of PPGT's table 1)

Each prints and writes JSON below --out. The exit code of theorem1 is 1 if the theorem fails somewhere.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import BatchNorm

from graphgps_kmip import attention as attentions
from graphgps_kmip.attention import ExphormerAttention, GraphContext, KMIPAttention
from graphgps_kmip.common.atomic_write import write_json
from graphgps_kmip.compat.public_faults import FirstKeyAgain
from graphgps_kmip.data import find, open_dataset, sampled
from graphgps_kmip.data.sets.brec import BLOCK, CATEGORIES, select_pairs
from graphgps_kmip.encoding.expander_graph import expander_edges, expander_generator
from graphgps_kmip.errors import report_mistakes
from graphgps_kmip.expressivity import theorem
from graphgps_kmip.expressivity.brec_protocol import category_rows, table_text
from graphgps_kmip.expressivity.seg_wl import (
    TESTS,
    Colouring,
    Encoding,
    Graph,
    seg_wl,
    separated_by,
    theorem_scheme,
    wl,
)
from graphgps_kmip.expressivity.theorem import ENCODINGS, REACH, Outcome, Pair, encode, try_model
from graphgps_kmip.expressivity.toy_fit import TARGETS, fit, hardmax_bound, hardmax_error, linear_error
from graphgps_kmip.model.gps import GPSLayer, initial_states
from graphgps_kmip.mpnn import APPNP, GAT, GCN, GIN, GINE, PNA, GatedGCN, GATv2, GENConv, GraphSAGE

LAMBDAS = (0.5, 1, 2, 4, 8, 16, 32, 64)  # hardmax
DIM, HEADS = 8, 2
EXPANDER_DEGREE = 4
TOLERANCE = 1e-9  # relative; sums in another order differ by 1e-15
ENCODED = ("none", "RWSE", "Laplacian eigenvectors")  # of the same width for all graphs, as models have them
MAX_LAYERS = 3


@report_mistakes
def main(argv: list[str]) -> int:
    """Run one part; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    work = {"pairs": show_pairs, "theorem1": show_theorem1, "hardmax": show_hardmax, "fit": show_fit, "brec": show_brec}
    add = {name: parts.add_parser(name).add_argument for name in work}
    for add_argument in add.values():
        add_argument("--out", type=Path, default=Path("results/expressivity"), help="where results go")
    add["theorem1"]("--trials", type=int, default=60, help="random models for each component (default 60)")
    add["fit"]("--target", choices=list(TARGETS), default="transformer", help="what is learned")
    add["fit"]("--blocks", type=int, nargs="+", default=[1, 2, 4, 8], help="numbers of blocks")
    add["fit"]("--k", type=int, default=2, help="keys that a query keeps (default 2, of 8 tokens)")
    add["fit"]("--steps", type=int, default=600, help="steps of Adam (default 600)")
    add["fit"]("--seeds", type=int, default=4, help="initial weights (default 4)")
    add["brec"]("--data", default="datasets", help="folder of the data sets, with BREC in it (default datasets)")
    add["brec"]("--pairs", default="", help="which pairs, as brec.pairs of a YAML file (default all)")
    add["brec"]("--sample", action="store_true", help="two made-up pairs instead of the data")
    args = parser.parse_args(argv)
    for name in ("trials", "k", "steps", "seeds", "blocks"):
        value = getattr(args, name, 1)
        if min(value if isinstance(value, list) else [value]) < 1:
            parser.error(f"--{name}: got {value}, at least 1 is needed")
    return work[args.part](args)


def show_pairs(args: argparse.Namespace) -> int:
    """Write and print after how many rounds each test separates the standard pairs."""
    rows = [_test_pair(pair) for pair in theorem.standard_pairs()]
    names = list(rows[0]["tests"])
    write_json(args.out / "pairs.json", {"decimals": theorem.DECIMALS, "tests": names, "pairs": rows})
    write_json(args.out / "colourings.json", {"iteration": theorem.draw_iteration(), "pair": theorem.draw_pair()})
    print("After how many rounds the colours differ (=: never). SEG-WL: scheme of theorem 1 and these encodings.\n")
    heads = [name.removeprefix("SEG-WL, ").replace("Laplacian ", "") for name in names]
    print(f"{'':<28}{'1-WL':>6}   SEG-WL:" + "".join(f"{head:>{len(head) + 2}}" for head in heads[1:]))
    for row in rows:
        marks = ["=" if (after := test["separated_after"]) is None else str(after) for test in row["tests"].values()]
        marks = [f"{mark}!" if row["isomorphic"] and mark != "=" else mark for mark in marks]
        cells = "".join(f"{mark:>{len(head) + 2}}" for mark, head in zip(marks[1:], heads[1:], strict=True))
        print(f"{row['name']:<28}{marks[0]:>6}{'':>10}{cells}")
    print(
        "\n!  A graph differs from itself with its nodes in another order, which signs and bases of the solver's\n"
        "   eigenvectors depend on. A difference by them alone proves nothing.\n"
        "   Shortest paths are those of all pairs, which Graphormer reads, and no GPS model."
    )
    return 0


def _test_pair(pair: Pair) -> dict[str, Any]:
    graphs = (pair.first, pair.second)
    tests = {"1-WL": _summarise(wl(graphs), True)}
    for name in ENCODINGS:
        colouring = seg_wl(graphs, [theorem_scheme(graph, encode(name, graph)) for graph in graphs])
        tests[f"SEG-WL, {name}"] = _summarise(colouring, name in theorem.INVARIANT)
    sizes = {"nodes": pair.first.num_nodes, "edges": pair.first.edge_index.size(1) // 2}
    return {"name": pair.name, "isomorphic": pair.isomorphic, **sizes, "tests": tests}


def _summarise(colouring: Colouring, invariant: bool) -> dict[str, Any]:
    classes = [len(colouring.multiset(graph)) for graph in (0, 1)]
    after = colouring.separated_after()
    return {"separated_after": after, "rounds": colouring.rounds, "colours": classes, "invariant": invariant}


def show_theorem1(args: argparse.Namespace) -> int:
    """Write and print the trials of every component; return 1 if the theorem fails."""
    content = run_trials(args.trials)
    write_json(args.out / "theorem1.json", content)
    print("\n".join(list_lines(content)))
    print(f"\n{conclude(content)}")
    return 0 if content["holds"] else 1


def show_hardmax(args: argparse.Namespace) -> int:
    """Write and print the distance of top-k softmax to hardmax."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(50, generator=generator, dtype=torch.float64).sort(descending=True).values
    rows = []
    for maxima, k in ((1, 10), (1, 50), (3, 10), (3, 3), (3, 2)):
        row = z.clone()
        row[:maxima] = row[maxima] + 0.5  # the same gap for all
        errors, bounds = ([float(of(row, k, scale)) for scale in LAMBDAS] for of in (hardmax_error, hardmax_bound))
        rows.append({"maxima": maxima, "k": k, "gap": 0.5, "error": errors, "bound": bounds})
    write_json(args.out / "hardmax.json", {"entries": len(z), "lambdas": LAMBDAS, "rows": rows})
    print("L1 distance between top-k softmax of lambda Z and hardmax of Z, rows of 50 entries, gap 0.5\n")
    print(f"{'lambda':>16}" + "".join(f"{scale:>10g}" for scale in LAMBDAS))
    for row in rows:
        print(f"{row['maxima']} maxima, k = {row['k']:>2}" + "".join(f"{error:>10.1e}" for error in row["error"]))
    print("\nFewer keys than maxima: the even share cannot be reached, whatever lambda is.")
    return 0


def show_fit(args: argparse.Namespace) -> int:
    """Write and print the errors of k-MIP transformers fitted to a function."""
    torch.set_num_threads(1)  # the products are too small for more
    seeds = tuple(range(args.seeds))
    rows = []
    print(f"Test error of {args.seeds} fits to {args.target!r}; 1 is that of a constant. Mean (minimum, maximum)\n")
    for name, k in ((f"k-MIP, k = {args.k}", args.k), ("full attention", 0)):
        for blocks in args.blocks:
            errors = fit(args.target, blocks, k, args.steps, seeds)
            rows.append({"attention": name, "k": k, "blocks": blocks, "error": errors})
            print(f"{name:<16} {blocks:>3} blocks  {mean(errors):.3f} ({min(errors):.3f}, {max(errors):.3f})")
    linear = linear_error(args.target)
    print(f"{'an affine map of each token':<28} {linear:.3f}")
    print("\nBoth have 2 heads of width 1 and MLPs of width 4, as in theorem 2, which promises that enough blocks")
    print("exist for any error, not that training finds them.")
    record = {"target": args.target, "steps": args.steps, "seeds": seeds, "linear": linear, "rows": rows}
    write_json(args.out / "fit.json", record)
    return 0


def show_brec(args: argparse.Namespace) -> int:
    """Write and print the pairs of BREC that 1-WL and 3-WL separate."""
    torch.set_num_threads(1)
    record = find("BREC", "brec")
    dataset = select_pairs(open_dataset(sampled(record) if args.sample else record, args.data), args.pairs)
    rows: dict[str, Any] = {}
    for test in TESTS:
        began = time.perf_counter()
        after = {pair: _separated(test, dataset.graphs, place) for place, pair in enumerate(dataset.graphs.pairs)}
        seconds = time.perf_counter() - began
        verdicts = {pair: {"distinguished": rounds is not None} for pair, rounds in after.items()}
        counted = category_rows(verdicts, CATEGORIES)
        rows[test] = {
            "seconds": round(seconds, 3),
            "distinguished": {row.category: row.distinguished for row in counted},
            "tested": {row.category: row.tested for row in counted},
            "separated_after": {str(pair): rounds for pair, rounds in after.items()},
        }
        print(f"{'SAMPLE, made-up pairs: ' if args.sample else ''}{test}, {seconds:.1f} s\n{table_text(counted)}\n")
    write_json(args.out / "brec_wl.json", {"sample": args.sample, "pairs": args.pairs or "all", "tests": rows})
    return 0


def _separated(test: str, graphs: Sequence[Data], place: int) -> int | None:
    pair = (graphs[place * BLOCK + number] for number in (0, 1))  # one order of each graph: any other gives the same
    return separated_by(test, *(Graph(graph.num_nodes, graph.edge_index) for graph in pair))


def _build_kmip(dim: int, heads: int, k: int = 2, selection: nn.Module | None = None) -> KMIPAttention:
    return KMIPAttention(dim, heads, k=k, search="exact", selection=selection)


def _build_tied_kmip(dim: int, heads: int) -> KMIPAttention:
    attention = _build_kmip(dim, heads, 1)
    nn.init.zeros_(attention.key.weight)
    return attention


# By the names of `REACH`; small blocks and few keys, so that they matter on small graphs.
ATTENTIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "Transformer": attentions.FullAttention,
    "Performer": lambda dim, heads: attentions.PerformerAttention(dim, heads, dim_head=dim, num_features=16),
    "kMIP": _build_kmip,
    "kMIP, diversity": lambda dim, heads: _build_kmip(dim, heads, 2, attentions.DiverseKeys(0.5)),
    "Exphormer": lambda dim, heads: ExphormerAttention(dim, heads, use_exp_edges=False),
    "Exphormer, virtual nodes": lambda dim, heads: ExphormerAttention(dim, heads, num_virt_node=2, use_exp_edges=False),
    "kMIP, tied keys": _build_tied_kmip,
    "kMIP, repeat_first_key": lambda dim, heads: _build_kmip(dim, heads, 40, FirstKeyAgain()),
    "kMIP, random_attention": lambda dim, heads: _build_kmip(dim, heads, 2, attentions.RandomKeys(0.5)),
    "Exphormer, expander": ExphormerAttention,
    "BigBird": lambda dim, heads: attentions.BigBirdAttention(dim, heads, block_size=1, num_random_blocks=1),
    "BiasedTransformer": attentions.BiasedFullAttention,
}
MPNNS = {"GCN": GCN, "GAT": GAT, "GATv2": GATv2, "GraphSAGE": GraphSAGE, "GENConv": GENConv, "GIN": GIN, "GINE": GINE}
MPNNS |= {"APPNP": APPNP, "GatedGCN": GatedGCN, "PNA": PNA}


class GPS(nn.Module):
    """GPS layers of `MPNNS` and `ATTENTIONS` with random float64 weights in eval mode: graph, encoding -> (N, C)."""

    def __init__(self, mpnn: str | None, attention: str | None, layers: int, seed: int, norm: str = "none") -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.seed, self.reads_expander = seed, attention == "Exphormer, expander"
        self.nodes, self.edges, self.bias = nn.LazyLinear(DIM), nn.LazyLinear(DIM), nn.LazyLinear(HEADS)
        local = MPNNS[mpnn] if mpnn else lambda _: None
        other = ATTENTIONS[attention] if attention else lambda *_: None
        self.layers = nn.ModuleList(GPSLayer(DIM, local(DIM), other(DIM, HEADS), norm=norm) for _ in range(layers))
        for module in list(self.modules()):
            for name, child in module.named_children():
                if isinstance(child, BatchNorm):
                    setattr(module, name, nn.Identity())
        self.double().eval()

    def forward(self, graph: Graph, encoding: Encoding) -> Tensor:
        """Return the features of the nodes after the last layer."""
        x = self.nodes(_join_features(graph.num_nodes, graph.x, encoding.node))
        context = self._context(graph, encoding)
        states = initial_states(self.layers[0].attention, context)
        for layer in self.layers:
            x, edge_attr, states = layer(x, context, states)
            context = context.with_edge_attr(edge_attr)
        return x

    def _context(self, graph: Graph, encoding: Encoding) -> GraphContext:
        size, sets = graph.num_nodes, {}
        nodes = torch.arange(size)
        pair = encoding if encoding.pair is not None else theorem.hops(graph)
        if self.reads_expander:
            sets["expander"] = (expander_edges(size, EXPANDER_DEGREE, rng=expander_generator(self.seed, 0)), None)
        return GraphContext(
            torch.zeros(size, dtype=torch.long),
            torch.tensor([0, size]),
            edge_index=graph.edge_index,
            edge_attr=self.edges(_join_features(graph.edge_index.size(1), graph.edge_attr, encoding.edge)),
            edge_sets=sets,
            pair_index=torch.cartesian_prod(nodes, nodes).T,
            pair_attr=self.bias(pair.pair.flatten(0, 1).double()),
        )


def _join_features(count: int, *parts: Tensor | None) -> Tensor:
    columns = [part.double() for part in parts if part is not None]
    return torch.cat([torch.ones(count, 1, dtype=torch.float64), *columns], dim=1)


def trial(name: str, seed: int) -> Outcome:
    """Try a random model with one component of `REACH` on a random pair; its other branch is random, too."""
    inside = [other for other, reach in REACH.items() if reach.inside]
    choices = [None, *(other for other in inside if other in (ATTENTIONS if name in MPNNS else MPNNS))]
    other = choices[seed % len(choices)]
    local, attention = (name, other) if name in MPNNS else (other, name)
    layers, encoding, pair = 1 + seed % MAX_LAYERS, ENCODED[seed // 3 % 3], theorem.random_pair(seed)
    per_round = all(REACH[branch].per_round for branch in (local, attention) if branch)
    encodings = encode(encoding, pair.first), encode(encoding, pair.second)
    return try_model(GPS(local, attention, layers, seed), pair, encodings, layers if per_round else None)


def counterexample(name: str) -> tuple[str, float]:
    """Return the probe that SEG-WL leaves equal on which a component differs most (attentions after GINE), and how."""
    local, attention, layers = (name, None, 1) if name in MPNNS else ("GINE", name, 2)
    differences = {}
    for pair in theorem.probes():
        outcome = try_model(GPS(local, attention, layers, 0), pair, (Encoding(), Encoding()), layers)
        if outcome.equal:
            differences[pair.name] = outcome.difference
    worst = max(differences, key=differences.__getitem__)
    return worst, differences[worst]


def run_trials(count: int) -> dict[str, Any]:
    """Run ``count`` trials of every component, and its counterexample."""
    rows = []
    for number, (name, reach) in enumerate(REACH.items()):
        row: dict[str, Any] = {"name": name, "inside": reach.inside, "per_round": reach.per_round, "why": reach.why}
        if reach.inside:
            outcomes = [trial(name, number * count + index) for index in range(count)]
            equal = [outcome for outcome in outcomes if outcome.equal]
            others = [outcome for outcome in outcomes if not outcome.equal]
            row |= {"trials": count, "equal": len(equal), "error": max(outcome.error for outcome in outcomes)}
            row |= {"readout_error": max((outcome.readout for outcome in equal), default=None)}
            row |= {"separated": len(others)}
            row |= {"separated_by_model": sum(outcome.difference > TOLERANCE for outcome in others)}
        if not (reach.inside and reach.per_round):
            row["counterexample"], row["difference"] = counterexample(name)
        rows.append(row)
    untried = [row["name"] for row in rows if row["inside"] and not row["equal"]]  # SEG-WL left no pair equal
    return {"tolerance": TOLERANCE, "rows": rows, "holds": all(holds(row) for row in rows), "untried": untried}


def holds(row: dict[str, Any]) -> bool:
    """Return whether nothing was seen that contradicts `REACH`."""
    errors = [row[name] for name in ("error", "readout_error") if row.get(name) is not None]
    return max(errors, default=0.0) <= TOLERANCE and row.get("difference", 1.0) > TOLERANCE


def conclude(content: dict[str, Any]) -> str:
    """Return in a sentence whether the theorem was seen, and for which components."""
    rows, none = content["rows"], content["untried"]
    if not content["holds"]:
        return f"What theorem 1 says WAS NOT SEEN for {'; '.join(row['name'] for row in rows if not holds(row))}."
    if not none:
        return "What theorem 1 says was seen for every component."
    seen = f"What theorem 1 says was seen for {len(rows) - len(none)} of {len(rows)} components. For the others SEG-WL"
    return f"{seen} left no pair equal, so that it promises nothing ({'; '.join(none)}): give more --trials."


def list_lines(content: dict[str, Any]) -> list[str]:
    """Return the results as text."""
    head = f"{'component':<25} {'trials':>6} {'equal':>6} {'largest error':>14} {'separated':>10} {'by model':>9}"
    text = [head, "-" * len(head)]
    for row in content["rows"]:
        if row["inside"]:
            numbers = f"{row['trials']:>6} {row['equal']:>6} {row['error']:>14.1e} {row['separated']:>10}"
            text.append(f"{row['name']:<25} {numbers} {row['separated_by_model']:>9}")
    text += ["", "Outside the theorem (difference on a pair that SEG-WL leaves equal, of the largest output):"]
    for row in content["rows"]:
        if "counterexample" in row:
            scope = "" if not row["inside"] else " in one round; the stable colours bound it"
            text.append(f"  {row['name']:<25} {row['difference']:.1e} on {row['counterexample']}{scope}: {row['why']}")
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
