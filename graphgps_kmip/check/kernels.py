"""Operators that have kernels of their own, on a device, against plain torch in float64 on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from graphgps_kmip.attention.clamped_attention import clamped_attention
from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.full import full_attention
from graphgps_kmip.attention.pair_attention import pair_attention, plain_pair_attention
from graphgps_kmip.attention.sparse_attention import sparse_attention
from graphgps_kmip.check.outcomes import NotHere
from graphgps_kmip.common.host_copies import on_device
from graphgps_kmip.mpnn.gated_mean import EPS, gated_mean
from graphgps_kmip.mpnn.gatedgcn import gated_sum
from graphgps_kmip.native import without_kernels
from graphgps_kmip.registry import Spec, entries
from graphgps_kmip.search import SearchProblem, topk_inner_product

SIZES = [1100, 270, 3, 0, 1, 64]  # several tiles, fewer keys than K, a graph without nodes
NUM_HEADS = 2
PROBLEMS = [(10, 10), (3, 1), (16, 32), (64, 10)]  # (D, K)
ROUNDING = 1e-5  # of float32 sums of products, relative to the largest score
GRADIENT = 1e-4


def problems(device: torch.device) -> Iterator[tuple[str, SearchProblem]]:
    """Yield a name and a search problem of ragged graphs for each of `PROBLEMS`."""
    ptr = torch.tensor([0, *SIZES]).cumsum(0).to(device)
    for dim, num_keys in PROBLEMS:
        generator = torch.Generator().manual_seed(dim)
        q, k = (torch.randn(NUM_HEADS, sum(SIZES), dim, generator=generator).to(device) for _ in range(2))
        yield f"D = {dim}, K = {num_keys}", SearchProblem.of(q, k, ptr, ptr, num_keys)


def backends() -> list[Spec]:
    """Return the search backends."""
    return list(entries("search_backend").values())


def compare_search(backend: Spec, problem: SearchProblem) -> str:
    """Search with one backend, and return the largest relative error of its scores.

    Raises:
        NotHere: the backend does not support the problem on this machine.
        AssertionError: a score is not among the K largest, or is not that of its key.
    """
    if reasons := backend.traits.not_supported_reasons(problem):
        raise NotHere("; ".join(reasons))
    q, k, ptr, num_keys = problem.q, problem.k, problem.ptr_q, problem.num_keys
    index, score = topk_inner_product(q, k, ptr, problem.ptr_k, num_keys, backend.name)
    expected = _brute_force(q, k, ptr, num_keys)
    present = index >= 0
    if not torch.equal(present.cpu(), expected.isfinite()):
        raise AssertionError("slots that must be empty are filled, or the reverse")
    own = (q.double()[:, :, None] * _rows(k.double(), index)).sum(-1).masked_fill(~present, 0.0).cpu()
    largest = float(expected.masked_fill(~present.cpu(), 0.0).abs().max())
    found, wanted = (one.cpu().double().masked_fill(~present.cpu(), 0.0) for one in (score, expected))
    error = max(float((found - wanted).abs().max()), float((own - wanted).abs().max())) / largest
    if not error <= ROUNDING:
        raise AssertionError(f"scores are off by {error:.1e} of the largest")
    if any(len(set(row)) < len(row) for row in index[0, :50].tolist() if -1 not in row):
        raise AssertionError("a key is found twice")
    return f"{error:.0e}"


def compare_sparse_attention(device: torch.device) -> str:
    """Attend to searched keys, forward and backward, and return the largest relative errors.

    Raises:
        AssertionError: output or gradients differ from gathers in float64 on the CPU.
    """
    _, problem = next(problems(device))
    index, score = topk_inner_product(problem.q, problem.k, problem.ptr_q, problem.ptr_k, problem.num_keys)
    v = torch.randn(NUM_HEADS, sum(SIZES), 24, generator=torch.Generator().manual_seed(9)).to(device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sparse_attention(*(one.transpose(0, 1) for one in (q, k, v)), index, score).transpose(0, 1)

    given = {"q": problem.q, "k": problem.k, "v": v}
    return _compared(given, attend, lambda *exact: _gathered(*exact, index.cpu()))


def compare_gated_means(device: torch.device) -> str:
    """Compute GatedGCN's gated means of a graph with a hub, forward and backward; see `compare_sparse_attention`."""
    generator = torch.Generator().manual_seed(3)
    num_nodes, num_edges, dim = 700, 4000, 40
    source, target = torch.randint(num_nodes - 1, (2, num_edges), generator=generator)
    target[::3] = 5
    shapes = {"own": (num_nodes, 2 * dim), "other": (num_nodes, 2 * dim), "edge": (num_edges, dim)}
    given = {name: torch.randn(shape, generator=generator).to(device) for name, shape in shapes.items()}
    given["factor"] = torch.rand(num_edges, 1, generator=generator).to(device)
    ends = source.to(device), target.to(device)

    def plain(own: Tensor, other: Tensor, edge: Tensor, factor: Tensor) -> Tensor:
        (a, d), (b, h) = own.chunk(2, 1), other.chunk(2, 1)
        gate = edge + d[target] + h[source]
        total, normaliser = gated_sum(gate, b, factor, source, target, len(a))
        return torch.cat([a + total / (normaliser + EPS), gate])

    return _compared(given, lambda *floats: torch.cat(gated_mean(*floats, *ends)), plain)


def compare_clamped_attention(device: torch.device) -> str:
    """Attend along edges as Exphormer does, expander edges sharing one kind; see `compare_sparse_attention`."""
    generator = torch.Generator().manual_seed(4)
    num_nodes, num_edges, num_kinds = 500, 5000, 1500
    sizes = num_nodes, num_nodes - 1, 1
    edges = torch.stack([torch.randint(size, (num_edges,), generator=generator) for size in sizes])
    edges[2, :num_kinds] = torch.arange(num_kinds)  # edges of the graph: a kind of its own each
    edges[1, ::4] = 5
    given = {name: torch.randn(num_nodes, 2, 12, generator=generator).to(device) for name in "qkv"}
    given["e"] = torch.randn(num_kinds, 2, 12, generator=generator).to(device)
    there = edges.to(device)

    def plain(*heads: Tensor) -> Tensor:
        with without_kernels():
            return clamped_attention(*heads, edges)

    return _compared(given, lambda *heads: clamped_attention(*heads, there), plain)


def compare_full_attention(device: torch.device) -> str:
    """Attend to all nodes of graphs of different sizes, see `compare_sparse_attention`."""
    context, there, generator = *_graphs(device), torch.Generator().manual_seed(5)
    qkv = torch.randn(len(context.batch), 3 * NUM_HEADS * 12, generator=generator).to(device)

    options = {"num_heads": NUM_HEADS, "scale": 12**-0.5, "thin": lambda weight: weight}

    def plain(qkv: Tensor) -> Tensor:
        return plain_pair_attention(qkv, None, None, None, context=context, **options)

    return _compared({"qkv": qkv}, lambda qkv: full_attention(qkv, there, NUM_HEADS), plain)


def compare_pair_attention(device: torch.device) -> str:
    """Attend with biases of keys and pairs, and factors of pairs, as PPGT does; see `compare_sparse_attention`."""
    context, there, generator = *_graphs(device), torch.Generator().manual_seed(7)
    pairs = NUM_HEADS, context.num_pairs
    shapes = {"qkv": (len(context.batch), 3 * NUM_HEADS * 12), "key_bias": (len(context.batch), NUM_HEADS)}
    shapes |= {"theta": pairs, "phi": pairs}
    given = {name: torch.randn(shape, generator=generator).to(device) for name, shape in shapes.items()}

    def attend(qkv: Tensor, key_bias: Tensor, theta: Tensor, phi: Tensor) -> Tensor:
        return pair_attention(qkv, there, NUM_HEADS, scale=0.3, key_bias=key_bias, theta=theta, phi=phi)

    plain = partial(plain_pair_attention, context=context, num_heads=NUM_HEADS, scale=0.3, thin=lambda weight: weight)
    return _compared(given, attend, plain)


def _graphs(device: torch.device) -> tuple[GraphContext, GraphContext]:
    """Graphs of several tiles, of one node and of none, on the CPU and on a device."""
    ptr = torch.tensor([0, 150, 157, 157, 158, 240])
    context = GraphContext(torch.repeat_interleave(ptr.diff()), ptr)
    return context, GraphContext(context.batch.to(device), on_device(ptr, device))


def _compared(given: dict[str, Tensor], compute: Callable[..., Tensor], plain: Callable[..., Tensor]) -> str:
    """Compare output and gradients of what is computed on a device with those of a plain form in float64 on the CPU."""
    found = [one.clone().requires_grad_() for one in given.values()]
    out = compute(*found)
    out.square().sum().backward()
    exact = [one.detach().cpu().double().requires_grad_() for one in found]
    expected = plain(*exact)
    expected.square().sum().backward()
    errors = [_error(out, expected)] + [_error(a.grad, b.grad) for a, b in zip(found, exact, strict=True)]
    if not max(errors) <= GRADIENT:
        each = ", ".join(f"{one:.1e}" for one in errors)
        raise AssertionError(f"output and gradients of {', '.join(given)} are off by {each}")
    return f"{errors[0]:.0e}, gradients {max(errors[1:]):.0e}"


OPERATORS: dict[str, Callable[[torch.device], str]] = {
    "sparse attention": compare_sparse_attention,
    "gated means": compare_gated_means,
    "clamped attention": compare_clamped_attention,
    "full attention": compare_full_attention,
    "pair attention": compare_pair_attention,
}


def _brute_force(q: Tensor, k: Tensor, ptr: Tensor, num_keys: int) -> Tensor:
    """The K largest inner products of each query in its graph, float64 on the CPU, -inf in empty slots."""
    best = torch.full((*q.shape[:2], num_keys), -math.inf, dtype=torch.float64)
    bounds = ptr.tolist()
    for start, end in zip(bounds[:-1], bounds[1:], strict=True):
        queries, keys = (one[:, start:end].cpu().double() for one in (q, k))
        found = min(num_keys, end - start)
        best[:, start:end, :found] = (queries @ keys.mT).topk(found).values
    return best


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Rows (H, N, K, C) of values (H, M, C); row 0 in empty slots."""
    heads = torch.arange(len(values), device=values.device)[:, None, None]
    return values[heads, index.clamp(min=0)]


def _gathered(q: Tensor, k: Tensor, v: Tensor, index: Tensor) -> Tensor:
    empty = index < 0
    logit = (q[:, :, None] * _rows(k, index)).sum(-1) / math.sqrt(q.size(-1))
    weight = logit.masked_fill(empty, -math.inf).softmax(-1)
    return (weight[..., None] * _rows(v, index)).sum(2)


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().cpu().double() - expected.detach()).abs().max() / expected.detach().abs().max())
