"""Attention benchmark: full, fused, naive k-MIP and k-MIP by every search; or the searches alone.

  python -m run.bench.attention --setting search --n 1e3:1e5
  python -m run.bench.attention --setting training --device cuda --n 1e2:1e6

A paired benchmark, see harness.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time

import torch

from graphgps_kmip.errors import ConfigError, report_mistakes
from graphgps_kmip.ops.sparse_attention import softmax_weight
from graphgps_kmip.search import SearchProblem
from graphgps_kmip.search.fused_cpu import instruction_set

from . import bench_records, search_methods
from .attention_inputs import DATA, Inputs, make_inputs, parse_shape
from .harness import Bounds, Facts, NotSupported, Pass, Row, Stopwatch, measure
from .search_methods import FullAttention, KMIPAttention, Search, attentions, eager_scores, searches

SMALL = 64  # nodes of the first problem, which loads and compiles
CHECKED_QUERIES = 256
ROUNDING = 1e-5  # scores of two exact searches differ by the order of summation in float32
TIMES = "total_ms total_min_ms total_max_ms repeats forward_ms search_ms softmax_ms gather_ms backward_ms cpu_ms"
COLUMNS = f"data n method {TIMES} memory_mib recall pairs_seen isa status".split()


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the checked command line."""
    sizes, positive = bench_records.sizes, bench_records.positive
    args = bench_records.parse(
        argv,
        __doc__,
        paired=True,
        setting=(("search", "inference", "training", "breakdown"), "inference", "what is timed"),
        data=(str, "gaussian", f"{', '.join(DATA)} or batch:32x480x4, see attention_inputs.py"),
        n=(sizes, None, "nodes: 1e2:1e6 (half powers of ten) or 100,5000"),
        dims=(positive, None, "channels of q, k and v in a head instead of 10 (batches: 16)"),
        heads=(positive, None, "attention heads instead of 1"),
        approximate=(bool, False, "faiss' approximate indices too, with their recall (search)"),
    )
    if args.approximate and importlib.util.find_spec("faiss") is None:
        raise ConfigError("--approximate: faiss, whose indices these are, is not installed: pip install faiss-cpu")
    n, heads = parse_shape(args.data)
    for option, value, fixed in (("n", args.n, n and [n]), ("heads", args.heads, heads)):
        if fixed is not None and value not in (None, fixed):
            raise ConfigError(f"--{option}: the data {args.data} has {fixed}, leave the option out")
    args.n = [n] if n else args.n or ([31623] if args.setting == "breakdown" else sizes("1e2:1e5"))  # paper's figure 3
    args.dims = args.dims or (16 if heads else 10)  # 16: the width of the k-MIP models
    args.heads = heads or args.heads or 1
    make_inputs(args.data, 2 if n is None else n, args.dims, args.heads)  # refuses what does not fit
    return args


@report_mistakes
def main(argv: list[str]) -> int:
    """Measure, write, print; return the exit code."""
    args = parse(argv)
    names = search_methods.names(args.setting, args.device, args.approximate)
    common = {key: getattr(args, key) for key in ("setting", "data", "k", "heads", "device", "threads")}
    common |= {"bench": "attention", "dim": args.dims}
    picked = bench_records.pick(names, args.methods)
    rows = measure(
        [[common | {"method": name, "n": n} for name in picked] for n in args.n],
        Bounds(args.repeats, args.limit),
        lambda done: print(bench_records.table(done, COLUMNS), flush=True),
        lambda cell: searches()[cell["method"]].environment if args.setting == "search" else {},
    )
    return bench_records.save(args, rows, COLUMNS)


def make(cell: Row, small: bool) -> tuple[Pass, Facts]:
    """Return one pass of a cell, or of a small problem that loads and compiles, and what gives the facts about it."""
    name, num_keys, setting = cell["method"], cell["k"], cell["setting"]
    data, n = ("gaussian", SMALL) if small else (cell["data"], cell["n"])
    inputs = make_inputs(data, n, cell["dim"], cell["heads"]).to(cell["device"])
    facts = {"graphs": inputs.context.num_graphs}
    search = setting == "search"
    measure_pass = search_pass(name, inputs, num_keys) if search else attention_pass(name, inputs, num_keys, setting)

    def run() -> dict[str, float]:
        start = time.process_time()  # of all threads: other work on the machine changes it less
        return measure_pass() | {"cpu": time.process_time() - start}

    def list_facts() -> Row:
        if not search:
            return facts
        return facts | {"recall": recall(name, inputs, num_keys)} | kernel_facts(name, inputs, num_keys)

    return run, list_facts


def search_pass(name: str, inputs: Inputs, num_keys: int) -> Pass:
    """Return a pass of the search alone."""
    problem, row = inputs.problem(num_keys), searches()[name]
    _check(row, problem)

    def run() -> dict[str, float]:
        watch = Stopwatch(problem.q.device.type)
        row.search(problem)
        return {"total": watch.lap()}

    return run


def attention_pass(name: str, inputs: Inputs, num_keys: int, setting: str) -> Pass:
    """Return a pass of whole attention on q, k, v as a layer's linear maps leave them, (N, H, D), by stage."""
    row = attentions(inputs.q.device.type)[name]
    if isinstance(row, KMIPAttention):
        _check(row.search, inputs.problem(num_keys))
    training = setting != "inference"
    leaves = [tensor.transpose(0, 1).to(row.dtype).contiguous() for tensor in (inputs.q, inputs.k, inputs.v)]
    leaves = [leaf.requires_grad_(training) for leaf in leaves]
    grad = torch.randn_like(leaves[2])
    full = isinstance(row, FullAttention)
    if setting == "breakdown":
        forward = _time_full_stages if full else _time_kmip_stages
    else:
        forward = _time_full if full else _time_kmip

    def run() -> dict[str, float]:
        for leaf in leaves:
            leaf.grad = None
        watch = Stopwatch(inputs.q.device.type)
        with torch.set_grad_enabled(training):
            out, seconds = forward(row, inputs, leaves, num_keys, watch)
        if training:
            watch.lap()
            out.backward(grad)
            seconds["backward"] = watch.lap()
        return seconds | {"total": sum(seconds.values())}

    return run


def _time_full(row: FullAttention, inputs: Inputs, leaves: list, _num_keys: int, watch: Stopwatch) -> tuple:
    return row.forward(inputs, *leaves), {"forward": watch.lap()}


def _time_kmip(row: KMIPAttention, inputs: Inputs, leaves: list, num_keys: int, watch: Stopwatch) -> tuple:
    out = row.search.attend(*leaves, *row.find(inputs, *leaves[:2], num_keys))
    return out, {"forward": watch.lap()}


def recall(name: str, inputs: Inputs, num_keys: int) -> float:
    """Return the share of the top-k scores in float64 that a search finds, over at most 256 queries; ties count."""
    index, _ = searches()[name].search(inputs.problem(num_keys))
    graph = inputs.context.batch
    at = torch.linspace(0, inputs.q.size(1) - 1, min(CHECKED_QUERIES, inputs.q.size(1))).long().to(graph.device)
    right = total = 0
    for head in range(inputs.q.size(0)):
        q, k = inputs.q[head, at].double(), inputs.k[head].double()
        score = (q @ k.T).masked_fill(graph[at, None] != graph, -torch.inf)
        scores = score.gather(1, index[head, at].clamp(min=0)).masked_fill(index[head, at] < 0, -torch.inf)
        best = score.topk(min(num_keys, k.size(0))).values
        slack = ROUNDING * (q.norm(dim=1) * k.norm(dim=1).max())[:, None]
        needed = best > -torch.inf
        scores = scores.sort(dim=1, descending=True).values[:, : best.size(1)]
        right += int(((scores >= best - slack) & needed).sum())
        total += int(needed.sum())
    return right / total


def kernel_facts(name: str, inputs: Inputs, num_keys: int) -> Row:
    """Return the instruction set of the kernel's searches, and their share of pairs that are scored or screened."""
    counts = searches()[name].counts
    if counts is None:
        return {}
    done = counts(inputs.problem(num_keys))
    num_pairs = int((inputs.ptr.diff() ** 2).sum()) * inputs.q.size(0)
    return {"pairs_seen": (done.scored + done.screened) / num_pairs, "isa": instruction_set()}


def _check(row: Search, problem: SearchProblem) -> None:
    if reasons := row.reasons(problem):
        raise NotSupported("; ".join(reasons))


def _time_kmip_stages(row: KMIPAttention, inputs: Inputs, leaves: list, num_keys: int, watch: Stopwatch) -> tuple:
    index, score = row.find(inputs, *leaves[:2], num_keys)
    seconds = {"search": watch.lap()}
    with torch.no_grad():
        softmax_weight(score, leaves[0].size(-1))
    seconds["softmax"] = watch.lap()
    out = row.search.attend(*leaves, index, score)
    seconds["gather"] = max(0.0, watch.lap() - seconds["softmax"])
    return out, seconds


def _time_full_stages(_row: FullAttention, inputs: Inputs, leaves: list, _num_keys: int, watch: Stopwatch) -> tuple:
    if inputs.context.num_graphs > 1:
        raise NotSupported("the stages of full attention are separated for one graph only")
    q, k, v = (leaf.transpose(0, 1) for leaf in leaves)
    score = eager_scores(q, k, None)
    seconds = {"search": watch.lap()}
    weight = score.softmax(-1)
    seconds["softmax"] = watch.lap()
    out = (weight @ v).transpose(0, 1)
    seconds["gather"] = watch.lap()
    return out, seconds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
