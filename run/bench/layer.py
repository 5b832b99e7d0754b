"""GPS layer benchmark: GatedGCN with each registered attention, forward and backward.

  python -m run.bench.layer                         32 graphs of 480 nodes, and single graphs of 10^3 to 10^5 nodes
  python -m run.bench.layer --n 1e3:1e6 --device cuda --methods 'kMIP,Transformer'

"sparse Exphormer" is the attention of the low-width method's second stage. Performer, BigBird and Exphormer are also
measured by their formulas in plain form (tests/reference). A paired benchmark, see harness.py.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import graphgps_kmip.networks  # noqa: F401  (registers attentions)
from graphgps_kmip.attention import GraphContext, SampledEdgeAttention
from graphgps_kmip.errors import report_mistakes
from graphgps_kmip.model.gps import GPSLayer, initial_states
from graphgps_kmip.mpnn import GatedGCN
from graphgps_kmip.registry import entries
from graphgps_kmip.signatures import options
from tests.reference.attention_formulas import PREFIX, REFERENCES

from . import bench_records
from .attention_inputs import make_inputs, parse_shape
from .harness import Bounds, Facts, NotSupported, Pass, Row, Stopwatch, measure

NO_ATTENTION = "no attention"
SPARSE = "sparse Exphormer"
ALL_PAIRS = ("GRIT", "sL2")  # read features of all pairs
IN_DEGREE = 8  # edges a node, as in the k-nearest-neighbour graphs of the digits and of ShapeNet
SMALL = 64  # nodes of the first graph, which loads and compiles
TIMES = "total_ms total_min_ms total_max_ms repeats forward_ms backward_ms"
COLUMNS = f"data n method {TIMES} memory_mib status".split()


@report_mistakes
def main(argv: list[str]) -> int:
    """Measure, write, print; return the exit code."""
    args = bench_records.parse(
        argv,
        __doc__,
        paired=True,
        n=(bench_records.sizes, "1e3:1e5", "nodes of single graphs: 1e3:1e5 (half powers of ten) or 1000,5000"),
        batch=(str, "32x480", "GRAPHSxNODES of a further batch (NODES: 480, or sizes such as 9-41), or none"),
        dims=(bench_records.positive, 64, "width of the layer"),
        heads=(bench_records.positive, 4, "attention heads"),
    )
    places = [("single", n) for n in args.n]
    if args.batch != "none":
        batch = f"batch:{args.batch}x{args.heads}"
        places.insert(0, (batch, parse_shape(batch)[0]))
    common = {key: getattr(args, key) for key in ("k", "heads", "device", "threads")}
    common |= {"bench": "layer", "setting": "layer", "dim": args.dims}
    picked = bench_records.pick(names(), args.methods)
    cells = [[common | {"method": name, "data": data, "n": n} for name in picked] for data, n in places]
    report = lambda done: print(bench_records.table(done, COLUMNS), flush=True)  # noqa: E731
    rows = measure(cells, Bounds(args.repeats, args.limit), report)
    return bench_records.save(args, rows, COLUMNS)


def names() -> list[str]:
    """Return the layers: without attention, sparse Exphormer, registered attentions, reference forms."""
    return [NO_ATTENTION, SPARSE, *entries("attention"), *(PREFIX + name for name in REFERENCES)]


class SparseExphormer(nn.Module):
    """Attention of the low-width method's sparse network along the edge set "sampled" of the context."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.attention = SampledEdgeAttention(dim, num_heads)
        self.kinds = nn.Parameter(torch.randn(2, dim))  # a graph's edge, an expander's

    def forward(self, x: Tensor, context: GraphContext) -> Tensor:
        """Attend along the sampled edges: x (N, dim) -> (N, dim)."""
        return self.attention(x, context.edge_sets["sampled"][0], len(x), self.kinds)


def make(cell: Row, small: bool) -> tuple[Pass, Facts]:
    """Return a pass, forward and backward, of a layer with default options in training mode, and its facts."""
    dim, heads, device = cell["dim"], cell["heads"], cell["device"]
    data, n = ("single", SMALL) if small else (cell["data"], cell["n"])
    ptr = make_inputs(data, n, 1, 1).ptr if data != "single" else torch.tensor([0, n])
    torch.manual_seed(0)
    layer = GPSLayer(dim, GatedGCN(dim), _build_attention(cell["method"], dim, heads, cell["k"])).to(device)
    edge_index, expander = (_draw_edges(ptr).to(device) for _ in range(2))
    pairs = _draw_pairs(cell["method"], ptr, edge_index, dim, heads)
    context = GraphContext(
        torch.arange(len(ptr) - 1).repeat_interleave(ptr.diff()).to(device),
        ptr.to(device),
        edge_index,
        torch.randn(n * IN_DEGREE, dim).to(device),
        edge_sets={"expander": (expander, None), "sampled": (_sample_edges(edge_index, expander), None)},
        **pairs,
    )
    x, grad = (torch.randn(n, dim).to(device) for _ in range(2))
    x.requires_grad_()

    def run() -> dict[str, float]:
        layer.zero_grad()
        x.grad = context.pair_attr.grad = None
        watch = Stopwatch(device)
        out, _, _ = layer(x, context, initial_states(layer.attention, context))
        forward = watch.lap()
        out.backward(grad)
        backward = watch.lap()
        return {"forward": forward, "backward": backward, "total": forward + backward}

    return run, lambda: {"graphs": len(ptr) - 1}


def _draw_edges(ptr: Tensor) -> Tensor:
    sizes = ptr.diff().repeat_interleave(ptr.diff() * IN_DEGREE)
    first = ptr[:-1].repeat_interleave(ptr.diff() * IN_DEGREE)
    source = first + (torch.rand(len(sizes)) * sizes).long().clamp(max=sizes - 1)
    return torch.stack([source, torch.arange(int(ptr[-1])).repeat_interleave(IN_DEGREE)])


def _draw_pairs(name: str, ptr: Tensor, edge_index: Tensor, dim: int, heads: int) -> dict[str, Tensor | None]:
    device = edge_index.device
    if name in ALL_PAIRS:
        num_pairs = int(ptr.diff().square().sum())
        return {"pair_index": None, "pair_attr": torch.randn(num_pairs, dim, device=device, requires_grad=True)}
    return {"pair_index": edge_index, "pair_attr": torch.randn(edge_index.size(1), heads, device=device)}


def _sample_edges(edge_index: Tensor, expander: Tensor) -> Tensor:
    sampled = [edges[:, ::2] for edges in (edge_index, expander)]
    return torch.cat([torch.cat([edges, torch.full_like(edges[:1], kind)]) for kind, edges in enumerate(sampled)], 1)


def _build_attention(name: str, dim: int, heads: int, k: int) -> nn.Module | None:
    if name == NO_ATTENTION:
        return None
    if name == SPARSE:
        return SparseExphormer(dim, heads)
    if name.startswith(PREFIX):
        name = name.removeprefix(PREFIX)
        return REFERENCES[name](_build_attention(name, dim, heads, k))
    if name not in entries("attention"):
        raise NotSupported(f"no attention of the name {name!r} is registered")
    component = entries("attention")[name].component
    return component(dim, heads, 0.0, **({"k": k} if name == "kMIP" and "k" in options(component) else {}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
