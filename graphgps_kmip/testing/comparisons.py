"""Search backends, operators and layers on a device against plain forms in float64 on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from graphgps_kmip.attention.full import full_attention
from graphgps_kmip.ops.clamped_attention import clamped_attention
from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.ops.gated_mean import gated_mean
from graphgps_kmip.ops.host_copies import on_device
from graphgps_kmip.ops.native import without_kernels
from graphgps_kmip.ops.pair_attention import pair_attention, plain_pair_attention
from graphgps_kmip.ops.sparse_attention import sparse_attention
from graphgps_kmip.registry import Spec
from graphgps_kmip.search import SearchProblem, topk_inner_product
from graphgps_kmip.testing import references
from graphgps_kmip.testing.laws import NUM_HEADS, Trial, attend

ROUNDING, GRADIENT = 1e-5, 1e-4  # of a search and of an operator in float32, relative to the largest number
OUTPUT_OF_LAYERS, GRADIENT_OF_LAYERS = 1e-4, 5e-3  # likewise of a layer (GRIT has roots near 0: 1e-3)
FLOOR = 1e-3  # of the largest gradient: smaller ones, such as those that are 0 by mathematics, are compared with this
PROBLEMS = [(10, 10), (3, 1), (16, 32), (64, 10)]  # (D, K) of searches
NODES = torch.tensor([0, 1100, 1370, 1373, 1373, 1374, 1438])  # several tiles, fewer keys than K, a graph without nodes


class NotHere(Exception):
    """A check is impossible on this machine, for the reason in the message."""


def largest_error(out: Tensor, expected: Tensor, floor: float = 1e-30) -> float:
    """Return the largest difference, relative to the largest expected number or a floor above it."""
    if out.shape != expected.shape:
        raise AssertionError(f"shape {tuple(out.shape)}, not {tuple(expected.shape)}")
    if not expected.numel():
        return 0.0
    return float((out.detach().cpu().double() - expected).abs().max()) / max(float(expected.abs().max()), floor)


def draw_search(device: torch.device, dim: int, num_keys: int) -> SearchProblem:
    """Return a search problem of graphs of several sizes."""
    generator, ptr = torch.Generator().manual_seed(dim), NODES.to(device)
    q, k = (torch.randn(NUM_HEADS, int(NODES[-1]), dim, generator=generator).to(device) for _ in range(2))
    return SearchProblem.of(q, k, ptr, ptr, num_keys)


def compare_search(backend: Spec, problem: SearchProblem) -> str:
    """Search with a backend, and return the largest relative error of its scores; see `NotHere`."""
    if reasons := backend.traits.not_supported_reasons(problem):
        raise NotHere("; ".join(reasons))
    q, k, ptr, num_keys = problem.q, problem.k, problem.ptr_q, problem.num_keys
    index, score = (out.cpu() for out in topk_inner_product(q, k, ptr, problem.ptr_k, num_keys, backend.name))
    q, k = q.cpu().double(), k.cpu().double()
    _, best = references.best_keys(q, k, ptr.tolist(), ptr.tolist(), num_keys)
    empty = index < 0
    if not torch.equal(empty, best.isinf()):
        raise AssertionError("slots that must be empty are filled, or the reverse")
    heads = torch.arange(len(k))[:, None, None]
    key_scores = (q[:, :, None] * k[heads, index.clamp(min=0)]).sum(-1)
    best, score, key_scores = (scores.masked_fill(empty, 0.0) for scores in (best, score, key_scores))
    error = max(largest_error(score, best), largest_error(key_scores, best))
    if not error <= ROUNDING:
        raise AssertionError(f"scores are off by {error:.1e} of the largest")
    if any(len(set(row)) < len(row) for row in index[0, :50].tolist() if -1 not in row):
        raise AssertionError("a key is found twice")
    return f"{error:.0e}"


Operator = tuple[dict[str, Tensor], Callable[..., Tensor], Callable[..., Tensor]]  # inputs, fused form, plain form


def compare_operator(inputs: dict[str, Tensor], fused: Callable[..., Tensor], plain: Callable[..., Tensor]) -> str:
    """Compare output and gradients on a device with those of the plain form in float64 on the CPU, up to `GRADIENT`."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs.values()]
    exact = [leaf.detach().cpu().double().requires_grad_() for leaf in leaves]
    out, expected = fused(*leaves), plain(*exact)
    for result in (out, expected):
        result.square().sum().backward()
    errors = [largest_error(out, expected.detach())]
    errors += [largest_error(leaf.grad, other.grad) for leaf, other in zip(leaves, exact, strict=True)]
    if not max(errors) <= GRADIENT:
        each = ", ".join(f"{error:.1e}" for error in errors)
        raise AssertionError(f"output and gradients of {', '.join(inputs)} are off by {each}")
    return f"{errors[0]:.0e}, gradients {max(errors[1:]):.0e}"


def _draw(device: torch.device, seed: int, **shapes: tuple[int, ...]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(device) for name, shape in shapes.items()}


def _sparse_attention(device: torch.device) -> Operator:
    problem = draw_search(device, *PROBLEMS[0])
    index, score = topk_inner_product(problem.q, problem.k, problem.ptr_q, problem.ptr_k, problem.num_keys)
    inputs = {"q": problem.q.transpose(0, 1), "k": problem.k.transpose(0, 1)}
    inputs |= _draw(device, 9, v=(int(NODES[-1]), NUM_HEADS, 24))
    plain = partial(references.attention_to_keys, index=index.cpu())
    return inputs, partial(sparse_attention, index=index, score=score), plain


def _gated_means(device: torch.device) -> Operator:
    num_nodes, num_edges, dim = 700, 4000, 40
    source, target = torch.randint(num_nodes - 1, (2, num_edges), generator=torch.Generator().manual_seed(3))
    target[::3] = 5
    inputs = _draw(device, 3, own=(num_nodes, 2 * dim), other=(num_nodes, 2 * dim), edge=(num_edges, dim))
    inputs |= {"factor": _draw(device, 4, factor=(num_edges, 1))["factor"].sigmoid()}
    edges = source.to(device), target.to(device)
    plain = partial(references.gated_mean, source=source, target=target)
    return inputs, lambda *floats: torch.cat(gated_mean(*floats, *edges)), plain


def _clamped_attention(device: torch.device) -> Operator:
    generator, num_nodes, num_edges, num_kinds = torch.Generator().manual_seed(4), 500, 5000, 1500
    sizes = num_nodes, num_nodes - 1, 1
    edges = torch.stack([torch.randint(size, (num_edges,), generator=generator) for size in sizes])
    edges[2, :num_kinds] = torch.arange(num_kinds)  # edges of the graph: a kind of its own each
    edges[1, ::4] = 5
    heads = (num_nodes, NUM_HEADS, 12)
    inputs = _draw(device, 4, q=heads, k=heads, v=heads, e=(num_kinds, NUM_HEADS, 12))
    plain = partial(references.clamped_attention, edges=edges)
    return inputs, partial(clamped_attention, edges=edges.to(device)), plain


def _pair_attention(device: torch.device, with_pairs: bool) -> Operator:
    ptr = torch.tensor([0, 150, 157, 157, 158, 240])
    context = GraphContext(torch.repeat_interleave(ptr.diff()), ptr)
    there = GraphContext(context.batch.to(device), on_device(ptr, device))
    inputs = _draw(device, 7, qkv=(240, 3 * NUM_HEADS * 12))
    scale = 0.3 if with_pairs else 12**-0.5
    plain = partial(plain_pair_attention, context=context, num_heads=NUM_HEADS, scale=scale, thin=lambda weight: weight)
    if not with_pairs:
        return inputs, lambda qkv: full_attention(qkv, there, NUM_HEADS), lambda qkv: plain(qkv, None, None, None)
    pairs = NUM_HEADS, context.num_pairs
    inputs |= _draw(device, 8, key_bias=(240, NUM_HEADS), theta=pairs, phi=pairs)

    def fused(qkv: Tensor, key_bias: Tensor, theta: Tensor, phi: Tensor) -> Tensor:
        return pair_attention(qkv, there, NUM_HEADS, scale=scale, key_bias=key_bias, theta=theta, phi=phi)

    return inputs, fused, plain


OPERATORS: dict[str, Callable[[torch.device], Operator]] = {
    "sparse attention": _sparse_attention,
    "gated means": _gated_means,
    "clamped attention": _clamped_attention,
    "full attention": partial(_pair_attention, with_pairs=False),
    "pair attention": partial(_pair_attention, with_pairs=True),
}


def compare_layer(spec: Spec, device: torch.device) -> str:
    """Compare output and gradients of a registered attention or message passing layer in float32 on a device.

    They must be those of the weights in float64 on the CPU, up to `OUTPUT_OF_LAYERS` and `GRADIENT_OF_LAYERS`.
    """
    with without_kernels():
        expected, gradients = _run_layer(Trial(spec))
    out, others = _run_layer(Trial(spec, device, torch.float32))
    floor = FLOOR * max((float(grad.abs().max()) for grad in gradients.values()), default=0.0)
    errors = {name: largest_error(others[name], grad, floor) for name, grad in gradients.items()}
    off, worst = largest_error(out, expected), max(errors, key=errors.__getitem__)
    if not off <= OUTPUT_OF_LAYERS:  # NaN is no pass
        raise AssertionError(f"the output is off by {off:.1e} of its largest number (allowed {OUTPUT_OF_LAYERS:g})")
    if not errors[worst] <= GRADIENT_OF_LAYERS:
        raise AssertionError(f"the gradient of {worst} is off by {errors[worst]:.1e} (allowed {GRADIENT_OF_LAYERS:g})")
    return f"{off:.0e}, gradients {errors[worst]:.0e}"


def _run_layer(trial: Trial) -> tuple[Tensor, dict[str, Tensor]]:
    layer, (x, context) = trial.layer(), trial.batch([40, 1, 130, 7, 64])  # tiles of a kernel, fewer nodes than keys
    if trial.spec.kind == "attention":
        out = attend(layer, x, context)
    else:
        out = torch.cat(layer(x, context.edge_index, context.edge_attr))
    out.square().sum().backward()
    leaves = dict(layer.named_parameters())
    return out.detach(), {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None and leaf.numel()}
