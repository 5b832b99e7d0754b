"""The C kernels at the edges of their sizes and values; run by test_sanitizers.py with a checked build of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention.full import full_attention
from graphgps_kmip.ops.circular_convolution import SizeGroups, gated_convolutions
from graphgps_kmip.ops.clamped_attention import clamped_attention
from graphgps_kmip.ops.gated_mean import gated_mean
from graphgps_kmip.ops.pair_attention import pair_attention
from graphgps_kmip.ops.sparse_attention import sparse_attention
from graphgps_kmip.search import topk_inner_product

both_types = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
COUNTS = [0, 1, 2, 47, 48, 49, 1023, 1024, 1025]  # around a panel of keys, and the first graph that is sorted


@pytest.fixture(params=[1, 2], autouse=True)
def num_threads(request: pytest.FixtureRequest) -> int:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def check_finite(out: Tensor, inputs: list[Tensor]) -> None:
    assert all(x.isfinite().all() for x in (out, *torch.autograd.grad(out.sum(), inputs)))


def context_of(*sizes: int) -> GraphContext:
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    return GraphContext(torch.repeat_interleave(ptr.diff()), ptr)


def values(rows: int, dim: int, kind: str, dtype: torch.dtype) -> Tensor:
    x = torch.randn(2, rows, dim, dtype=dtype)
    tiny, large = (1e-40, 1e17) if dtype == torch.float32 else (1e-310, 1e150)
    return {
        "normal": x,
        "ties": x.round(),
        "zero": -torch.zeros_like(x),
        "subnormal": x * tiny,
        "large": x * large,
        "mixed": x * torch.logspace(-30, 15, rows, dtype=dtype)[torch.randperm(rows), None] if rows else x,
    }[kind]


@pytest.mark.parametrize("kind", ["normal", "ties", "zero", "subnormal", "large", "mixed"])
@both_types
@pytest.mark.parametrize("backend", ["cpu", "tree"])
@pytest.mark.parametrize("dim", [1, 3, 9])
def test_the_search_at_the_edges_of_its_sizes(backend: str, dtype: torch.dtype, kind: str, dim: int) -> None:
    sizes_k = torch.tensor([*COUNTS, 1500])
    sizes_q = torch.tensor([3, 0, 9, 8, 1, 7, 17, 0, 130, 5])
    q, k = values(int(sizes_q.sum()), dim, kind, dtype), values(int(sizes_k.sum()), dim, kind, dtype)
    ptr_q, ptr_k = (torch.cat([s.new_zeros(1), s.cumsum(0)]) for s in (sizes_q, sizes_k))
    for num_keys in (1, 16, 17, 200):
        index, score = topk_inner_product(q, k, ptr_q, ptr_k, num_keys, backend)
        for graph in range(len(sizes_k)):
            rows, keys = (slice(*ptr[graph : graph + 2].tolist()) for ptr in (ptr_q, ptr_k))
            exact = q[:, rows].double() @ k[:, keys].double().mT
            count = min(num_keys, exact.size(-1))
            expected = exact.topk(count).values
            largest = k[:, keys].double().norm(dim=-1).amax(1)[:, None, None] if count else 0.0
            bound = 16 * dim * torch.finfo(dtype).eps * q[:, rows].double().norm(dim=-1, keepdim=True) * largest
            bound = bound + (1e-37 if dtype == torch.float32 else 1e-300)
            assert ((score[:, rows, :count].double() - expected).abs() <= bound).all(), (graph, num_keys)
            assert ((index[:, rows, :count] >= keys.start) & (index[:, rows, :count] < keys.stop)).all()
            assert (index[:, rows, count:] == -1).all()
            assert (score[:, rows, count:] == -torch.inf).all()


@both_types
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("dim", [1, 5, 16])
def test_full_attention_at_the_edges_of_its_tiles(dim: int, dropout: float, dtype: torch.dtype) -> None:
    context = context_of(0, 1, 7, 8, 9, 31, 32, 33, 511, 512, 513, 0)
    for scale in (1.0, 1e-40, 300.0):
        qkv = (scale * torch.randn(len(context.batch), 3 * 2 * dim, dtype=dtype)).requires_grad_()
        check_finite(full_attention(qkv, context, 2, dropout), [qkv])


@both_types
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("parts", ["key_bias theta phi", "key_bias", "theta", "phi"])
def test_pair_attention_at_the_edges_of_its_tiles(parts: str, dropout: float, dtype: torch.dtype) -> None:
    context = context_of(0, 1, 7, 8, 9, 31, 32, 33, 511, 513, 0)
    nodes, pairs = len(context.batch), context.num_pairs
    shapes = {"key_bias": (nodes, 2), "theta": (2, pairs), "phi": (2, pairs)}
    biases = {name: torch.randn(shapes[name], dtype=dtype, requires_grad=True) for name in parts.split()}
    qkv = torch.randn(nodes, 3 * 2 * 5, dtype=dtype, requires_grad=True)
    check_finite(pair_attention(qkv, context, 2, scale=1.0, dropout=dropout, **biases), [qkv, *biases.values()])


@both_types
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_selected_keys_with_empty_slots_and_hubs(dropout: float, dtype: torch.dtype) -> None:
    for rows, keys, slots, dim, width in ((0, 3, 2, 1, 1), (1, 1, 1, 1, 1), (600, 5, 7, 3, 9), (9, 700, 20, 16, 33)):
        q, k, v = (
            torch.randn(n, 2, w, dtype=dtype, requires_grad=True) for n, w in ((rows, dim), (keys, dim), (keys, width))
        )
        index = torch.randint(-1, keys, (2, rows, slots))
        index[:, :1] = -1
        score = (q.detach().transpose(0, 1)[:, :, None] * k.detach()[index.clamp(min=0)][:, :, :, 0]).sum(-1)
        score = score.masked_fill(index < 0, -torch.inf)
        check_finite(sparse_attention(q, k, v, index, score, dropout), [q, k, v])
        if rows:
            index[0, 0, 0] = keys
            with pytest.raises(IndexError, match="names a key that is not there"):
                sparse_attention(q, k, v, index, score, dropout)


@both_types
@pytest.mark.parametrize("dim", [1, 7, 16, 33])
def test_gated_means_of_nodes_without_edges_and_hubs(dim: int, dtype: torch.dtype) -> None:
    for targets, sources, edges in ((0, 0, 0), (1, 1, 0), (1, 1, 5), (70, 130, 900)):
        shapes = (targets, 2 * dim), (sources, 2 * dim), (edges, dim), (edges, 1)
        x_target, x_source, edge, factor = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)
        source, target = (torch.randint(0, max(1, n), (edges,)) for n in (sources, targets))
        for weight in (factor, None):
            results = gated_mean(x_target, x_source, edge, weight, source, target)
            check_finite(torch.cat(results), [x for x in (x_target, x_source, edge, weight) if x is not None])
        if edges:
            with pytest.raises(IndexError):
                gated_mean(x_target, x_source, edge, factor, source + sources, target)


@both_types
@pytest.mark.parametrize(("heads", "dim"), [(1, 1), (3, 7), (8, 12)])
def test_attention_along_edges_with_features_of_their_own(heads: int, dim: int, dtype: torch.dtype) -> None:
    for targets, sources, rows, count in ((1, 1, 1, 1), (5, 3, 4, 0), (70, 130, 400, 300)):
        shapes = (targets, sources, sources, rows)
        q, k, v, e = (torch.randn(size, heads, dim, dtype=dtype, requires_grad=True) for size in shapes)
        source, target = (torch.randint(0, size, (count,)) for size in (sources, targets))
        row = torch.where(torch.arange(count) % 3 > 0, torch.randperm(rows)[:count], 0)
        bias = torch.randn(rows, heads, dtype=dtype, requires_grad=True)
        edges = torch.stack([source, target.sort().values, row])
        check_finite(clamped_attention(q, k, v, e, edges, bias=bias), [q, k, v, e, bias])


@both_types
@pytest.mark.parametrize("dim", [1, 7, 16, 33])
@pytest.mark.parametrize("gate_first", [False, True])
def test_convolutions_of_graphs_of_one_node_and_around_a_block(
    gate_first: bool, dim: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphgps_kmip.ops.circular_convolution.SUM_PAIRS", 10**9)
    for sizes in ([], [0], [1], [1, 2, 3, 4, 5, 0, 7, 8, 9, 5, 1, 31]):
        groups = SizeGroups.of(torch.tensor([0, *sizes]).cumsum(0))
        shapes = (sum(sizes), 4 * dim), (groups.num_rows, (3 - gate_first) * dim)
        inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
        check_finite(gated_convolutions(*inputs, groups, gate_first), inputs)
