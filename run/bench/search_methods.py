"""Methods of the attention benchmark: searches (plain, other libraries, each backend) and the attentions on them.

KeOps and faiss are used as in their manuals; index builds are part of the time.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from graphgps_kmip.ops.dense import from_padded, to_padded
from graphgps_kmip.ops.native.compile_kernels import native_flag
from graphgps_kmip.ops.native.instruction_sets import VARIABLE, runnable
from graphgps_kmip.ops.sparse_attention import sparse_attention
from graphgps_kmip.registry import entries
from graphgps_kmip.search import SearchProblem, topk_inner_product
from graphgps_kmip.search.fused_cpu import ScanCounts, cpu_not_supported_reasons, scan
from graphgps_kmip.search.keops import keops_not_supported_reasons
from graphgps_kmip.testing.references import attention_to_keys

from .attention_inputs import Inputs

Found = tuple[Tensor, Tensor]  # index and score, (H, N, K)
BACKENDS = entries("search_backend")
OURS = "ours: "  # before the name of each backend
KMIP = "k-MIP "  # before the name of the search that the attention uses


class Search(NamedTuple):
    """A search."""

    name: str
    search: Callable[[SearchProblem], Found]  # for ours the public function with its checks, as a layer calls it
    reasons: Callable[[SearchProblem], list[str]] = lambda _: []  # why it cannot solve a problem
    exact: bool = True  # False: measured only on request, and no k-MIP attention
    environment: Mapping[str, str] = MappingProxyType({})  # variables of its process
    attend: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] = sparse_attention  # q, k, v, index, score
    in_attention: bool = False  # measured in the settings of whole attention too
    counts: Callable[[SearchProblem], ScanCounts] | None = None  # of scored and screened pairs


def searches() -> dict[str, Search]:
    """Return all searches by name: plain, of libraries, of the package's backends, and variants of its kernel."""
    keops_reasons = keops_not_supported_reasons
    plain = {"attend": lambda q, k, v, index, _: attention_to_keys(q, k, v, index), "in_attention": True}
    rows = [
        Search("matmul+topk", matmul_topk, **plain),
        Search("keops (as installed)", keops, keops_reasons),
        Search("keops (native, fast-math)", keops, keops_reasons, environment=native_keops()),
        *(Search(f"faiss {kind}", functools.partial(faiss, kind=kind), faiss_reasons, exact=kind == "flat")
          for kind in ("flat", "ivf", "pq", "lsh", "hnsw")),
        *(_make_ours(name) for name in (*BACKENDS, "auto")),
        *(_make_ours("cpu")._replace(name=f"{OURS}cpu ({isa})", environment={VARIABLE: isa}, in_attention=False)
          for isa in runnable()),
        _make_scan("fused brute force", "given"),
        _make_scan("fused brute force (no bytes)", "given", screen=False),
        _make_scan("fused norm order (no bytes)", "norm", screen=False),
    ]  # fmt: skip
    return {row.name: row for row in rows}


def native_keops() -> dict[str, str]:
    """Return the environment of KeOps with flags for the CPU, and with its own folder: it caches by formula alone."""
    flags = native_flag()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphgps_kmip"
    return {"CXXFLAGS": f"{flags} -ffast-math", "KEOPS_CACHE_FOLDER": str(cache / "keops-native")}


def _make_ours(name: str) -> Search:
    def search(problem: SearchProblem) -> Found:
        return topk_inner_product(problem.q, problem.k, problem.ptr_q, problem.ptr_k, problem.num_keys, name)

    more = {"reasons": BACKENDS[name].traits.not_supported_reasons} if name in BACKENDS else {}
    if order := {"cpu": "norm", "tree": "tree"}.get(name):
        more["counts"] = lambda problem: scan(problem, order)[2]
    return Search(OURS + name, search, in_attention=True, **more)


def _make_scan(name: str, order: str, screen: bool | None = None) -> Search:
    return Search(
        name,
        lambda problem: scan(problem, order, screen)[:2],
        cpu_not_supported_reasons,
        counts=lambda problem: scan(problem, order, screen)[2],
    )


def matmul_topk(problem: SearchProblem) -> Found:
    """All scores at once, then topk; graphs are padded to the longest one."""
    queries, _ = _list_rows(problem.ptr_q)
    keys, is_key = _list_rows(problem.ptr_k)
    score = problem.q[:, queries] @ problem.k[:, keys].mT  # (H, B, n, m)
    if not is_key.all():
        score = score.masked_fill(~is_key[:, None], -torch.inf)
    score, local = score.topk(min(problem.num_keys, score.size(-1)))
    padded = torch.where(score > -torch.inf, local + problem.ptr_k[:-1, None, None], -1)
    real = _list_rows(problem.ptr_q)[1]
    index, best = make_empty(problem)
    index[..., : padded.size(-1)], best[..., : padded.size(-1)] = padded[:, real], score[:, real]
    return index, best


def search_blocks(problem: SearchProblem, search: Callable[[Tensor, Tensor, int], Found]) -> Found:
    """Search graphs of one size at once, others graph by graph, by q (b, n, D), k (b, m, D), K -> (b, n, K)."""
    sizes_q, sizes_k = problem.ptr_q.diff().tolist(), problem.ptr_k.diff().tolist()
    if len(set(sizes_q)) == len(set(sizes_k)) == 1:
        blocks = [(0, problem.q.size(1), 0, problem.k.size(1), len(sizes_q))]
    else:
        bounds = zip(problem.bounds_q, problem.bounds_q[1:], problem.bounds_k, problem.bounds_k[1:], strict=False)
        blocks = [(*bound, 1) for bound in bounds if bound[0] < bound[1] and bound[2] < bound[3]]
    index, best = make_empty(problem)
    for start_q, end_q, start_k, end_k, graphs in blocks:
        q, k = (
            rows.unflatten(1, (graphs, -1)).flatten(0, 1)  # (H * graphs, n, D)
            for rows in (problem.q[:, start_q:end_q], problem.k[:, start_k:end_k])
        )
        local, score = search(q, k, min(problem.num_keys, k.size(1)))
        first = start_k + torch.arange(graphs, device=q.device) * k.size(1)
        local = local.unflatten(0, (-1, graphs)) + first[:, None, None]  # (H, graphs, n, K)
        index[:, start_q:end_q, : local.size(-1)] = local.flatten(1, 2)
        best[:, start_q:end_q, : local.size(-1)] = score.unflatten(0, (-1, graphs)).flatten(1, 2)
    return index, best


def make_empty(problem: SearchProblem) -> Found:
    """Return the answer without any key: index -1, score -inf."""
    shape = (*problem.q.shape[:2], problem.num_keys)
    return problem.ptr_q.new_full(shape, -1), problem.q.new_full(shape, -torch.inf)


def _list_rows(ptr: Tensor) -> tuple[Tensor, Tensor]:
    rows = ptr[:-1, None] + torch.arange(int(ptr.diff().max()), device=ptr.device)
    return rows.clamp(max=int(ptr[-1]) - 1), rows < ptr[1:, None]


def keops(problem: SearchProblem) -> Found:
    """``argKmin`` of the symbolic matrix of negative inner products, graphs and heads as batch dimensions."""
    from pykeops.torch import LazyTensor

    def block(q: Tensor, k: Tensor, num_keys: int) -> Found:
        distance = -(LazyTensor(q.contiguous()[:, :, None]) | LazyTensor(k.contiguous()[:, None]))  # (b, n, m)
        return _score_keys(q, k, distance.argKmin(num_keys, dim=2, backend="CPU" if q.device.type == "cpu" else "GPU"))

    with contextlib.redirect_stdout(io.StringIO()):  # KeOps prints what it compiles
        return search_blocks(problem, block)


def faiss(problem: SearchProblem, kind: str) -> Found:
    """Faiss' index: flat (exact), or an approximate one."""
    import faiss as library

    def block(q: Tensor, k: Tensor, num_keys: int) -> Found:
        library.omp_set_num_threads(torch.get_num_threads())
        index, score = [], []
        for queries, keys in zip(q.contiguous().numpy(), k.contiguous().numpy(), strict=True):
            searcher = _faiss_index(library, kind, *keys.shape)
            if not searcher.is_trained:
                searcher.train(keys)
            searcher.add(keys)
            for results, values in zip((score, index), searcher.search(queries, num_keys), strict=True):
                results.append(torch.from_numpy(values))
        # an approximate index has -1 where it finds nothing, which would be a row of another block
        index, score = torch.stack(index), torch.stack(score)
        return index.clamp(min=0), score.masked_fill(index < 0, -torch.inf)

    return search_blocks(problem, block)


def _faiss_index(library: object, kind: str, num_keys: int, dim: int) -> object:
    if kind == "flat":
        return library.IndexFlatIP(dim)
    if kind == "hnsw":
        searcher = library.IndexHNSWFlat(dim, 32, library.METRIC_INNER_PRODUCT)
        searcher.hnsw.efSearch = 64
        return searcher
    if kind == "pq":
        bits = min(8, num_keys.bit_length() - 1)  # 2^bits centroids need as many keys
        return library.IndexPQ(dim, dim // 2 if dim % 2 == 0 else dim, bits, library.METRIC_INNER_PRODUCT)
    if kind == "lsh":
        return library.IndexLSH(dim, 16 * dim)
    lists = max(1, min(int(4 * num_keys**0.5), num_keys // 39 or 1))  # faiss wants 39 training points a list
    searcher = library.IndexIVFFlat(library.IndexFlatIP(dim), dim, lists, library.METRIC_INNER_PRODUCT)
    searcher.nprobe = max(1, lists // 16)
    return searcher


def faiss_reasons(problem: SearchProblem) -> list[str]:
    """Return the reasons why faiss cannot solve a problem."""
    if importlib.util.find_spec("faiss") is None:
        return ["faiss is not installed (pip install faiss-cpu)"]
    device = problem.q.device.type
    return [] if device == "cpu" else [f"faiss-cpu runs on cpu, not on {device}"]


def _score_keys(q: Tensor, k: Tensor, index: Tensor) -> Found:
    block = torch.arange(len(q), device=q.device)[:, None, None]
    return index, torch.einsum("bnd,bnkd->bnk", q, k[block, index])


class FullAttention(NamedTuple):
    """Softmax attention to all nodes of the graph; ``attend``: (q, k, v, mask of keys or None) -> (B, H, n, D)."""

    name: str
    attend: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
    dtype: torch.dtype = torch.float32

    def forward(self, inputs: Inputs, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend inside each graph: q, k, v (N, H, D) -> (N, H, D)."""
        padded = [to_padded(tensor.flatten(1), inputs.context) for tensor in (q, k, v)]
        context, heads = inputs.context, q.size(1)
        mask = None if context.min_nodes == context.max_nodes else padded[0][1][:, None, None]
        q, k, v = (tensor.unflatten(2, (heads, -1)).transpose(1, 2) for tensor, _ in padded)  # (B, H, n, D)
        out = self.attend(q, k, v, mask).transpose(1, 2).flatten(2)
        return from_padded(out, context).unflatten(1, (heads, -1))


class KMIPAttention(NamedTuple):
    """Attention to the keys that a search finds."""

    search: Search
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        """As in the table of results; the paper calls the one on ``matmul+topk`` naive."""
        return KMIP + ("naive (matmul+topk)" if self.search.name == "matmul+topk" else self.search.name)

    def find(self, inputs: Inputs, q: Tensor, k: Tensor, num_keys: int) -> Found:
        """Search for each query (N, H, D) among the keys (N, H, D) of its graph, without gradient."""
        with torch.no_grad():
            q, k = (tensor.detach().transpose(0, 1) for tensor in (q, k))
            return self.search.search(SearchProblem.of(q, k, inputs.ptr, inputs.ptr, num_keys))


def eager_scores(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled scores, materialised."""
    score = q @ k.mT / q.size(-1) ** 0.5
    return score if mask is None else score.masked_fill(~mask, -torch.inf)


def _attend_fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, backends: list[SDPBackend]) -> Tensor:
    with sdpa_kernel(backends) if backends else contextlib.nullcontext():
        return scaled_dot_product_attention(q, k, v, mask)


def attentions(device: str) -> dict[str, FullAttention | KMIPAttention]:
    """Return all attentions by name: full ones, then k-MIP by each search."""
    kinds = [("cpu", [], torch.float32), ("cpu", [], torch.bfloat16)]
    if device == "cuda":  # each kernel by name, with both precisions: what one cannot do is a row of its own
        kinds = [
            (kernel.lower(), [getattr(SDPBackend, kernel if kernel == "MATH" else f"{kernel}_ATTENTION")], dtype)
            for kernel in ("FLASH", "EFFICIENT", "CUDNN", "MATH")
            for dtype in (torch.float16, torch.float32)
        ]
    rows: list[FullAttention | KMIPAttention] = [
        FullAttention("full eager", lambda q, k, v, mask: eager_scores(q, k, mask).softmax(-1) @ v)
    ]
    for kernel, backends, dtype in kinds:
        name = f"sdpa {kernel} {str(dtype).removeprefix('torch.')}"
        rows.append(FullAttention(name, functools.partial(_attend_fused, backends=backends), dtype))
    rows += [KMIPAttention(search) for search in searches().values() if search.in_attention]
    return {row.name: row for row in rows}


def names(setting: str, device: str, approximate: bool = False) -> list[str]:
    """Return the names of the methods of a setting."""
    if setting == "search":
        return [row.name for row in searches().values() if row.exact or approximate]
    rows = attentions(device).values()
    return [row.name for row in rows if setting != "breakdown" or not row.name.startswith("sdpa")]
