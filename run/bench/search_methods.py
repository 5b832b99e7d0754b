"""Who takes part: searches (frozen, of libraries, every backend of the package) and the attentions built on them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from graphgps_kmip.attention.dense import from_padded, to_padded
from graphgps_kmip.attention.gather import sparse_attention
from graphgps_kmip.registry import entries
from graphgps_kmip.search import SearchProblem, topk_inner_product
from graphgps_kmip.search.fused_cpu import ScanCounts, cpu_not_supported_reasons, scan
from graphgps_kmip.search.keops import keops_not_supported_reasons
from run.bench import baselines, libraries
from run.bench.attention_inputs import Inputs
from run.bench.baselines import Found

FROZEN = "chunked (frozen)"
OURS = "ours: "  # before the name of each backend
KMIP = "k-MIP "  # before the name of the search that the attention uses
# What stored runs are compared by: one frozen contestant for each setting.
REFERENCE = {"search": FROZEN, "inference": KMIP + FROZEN, "training": KMIP + FROZEN, "breakdown": KMIP + FROZEN}


def _no_reasons(problem: SearchProblem) -> list[str]:  # noqa: ARG001
    return []


@dataclass(frozen=True)
class Search:
    """A search that takes part.

    Args:
        name: as in the table of results.
        search: problem -> (index, score); for ours the public function with its checks, as a layer calls it.
        reasons: why it cannot solve a problem.
        exact: False: takes part only when asked for, and is no k-MIP attention.
        environment: variables its process needs from its start on.
        attend: (q, k, v, index, score) -> output, the attention over what it found.
        in_attention: takes part in the settings of whole attention too.
        counts: problem -> what it did, where it can say so.
    """

    name: str
    search: Callable[[SearchProblem], Found]
    reasons: Callable[[SearchProblem], list[str]] = _no_reasons
    exact: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    attend: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] = sparse_attention
    in_attention: bool = False
    counts: Callable[[SearchProblem], ScanCounts] | None = None


def _frozen_attend(q: Tensor, k: Tensor, v: Tensor, index: Tensor, score: Tensor) -> Tensor:  # noqa: ARG001
    return baselines.gather_attention(q, k, v, index)


def _ours(name: str) -> Search:
    def search(problem: SearchProblem) -> Found:
        return topk_inner_product(problem.q, problem.k, problem.ptr_q, problem.ptr_k, problem.num_keys, name)

    known = entries("search_backend")
    reasons = known[name].traits.not_supported_reasons if name in known else _no_reasons
    order = {"cpu": "norm", "tree": "tree"}.get(name)
    counts = None if order is None else lambda problem: scan(problem, order)[2]
    return Search(OURS + name, search, reasons, in_attention=True, counts=counts)


def _scan(name: str, order: str, screen: bool | None = None) -> Search:
    """The fused kernel with some of its ideas switched off."""
    return Search(
        name,
        lambda problem: scan(problem, order, screen)[:2],
        cpu_not_supported_reasons,
        counts=lambda problem: scan(problem, order, screen)[2],
    )


def searches() -> dict[str, Search]:
    """Return all searches by name, the frozen ones first; every row of the package's table is one."""
    keops, faiss = keops_not_supported_reasons, libraries.faiss_reasons
    rows = [
        Search("matmul+topk", baselines.matmul_topk, attend=_frozen_attend, in_attention=True),
        Search(FROZEN, baselines.chunked_frozen, attend=_frozen_attend, in_attention=True),
        Search("keops (as installed)", libraries.keops, keops),
        Search("keops (native, fast-math)", libraries.keops, keops, environment=libraries.NATIVE_KEOPS),
        Search("faiss flat", libraries.faiss_flat, faiss),
        Search("faiss ivf", libraries.faiss_ivf, faiss, exact=False),
        Search("faiss hnsw", libraries.faiss_hnsw, faiss, exact=False),
        Search("scipy ckdtree", libraries.ckdtree, libraries.ckdtree_reasons),
        *(_ours(name) for name in (*entries("search_backend"), "auto")),
        _scan("fused brute force", "given"),
        _scan("fused brute force (no bytes)", "given", screen=False),
        _scan("fused norm order (no bytes)", "norm", screen=False),
    ]
    return {row.name: row for row in rows}


@dataclass(frozen=True)
class FullAttention:
    """Softmax attention to all nodes of the graph.

    Args:
        name: as in the table of results.
        attend: (q, k, v, mask of keys or None) -> output, all (B, H, n, D).
        dtype: of the inputs.
    """

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


@dataclass(frozen=True)
class KMIPAttention:
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


def _eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return eager_scores(q, k, mask).softmax(-1) @ v


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, backend: SDPBackend | None) -> Tensor:
    if backend is None:
        return scaled_dot_product_attention(q, k, v, mask)
    with sdpa_kernel([backend]):
        return scaled_dot_product_attention(q, k, v, mask)


def attentions(device: str) -> dict[str, FullAttention | KMIPAttention]:
    """Return all attentions by name: full ones, then k-MIP by each search."""
    kinds: list[tuple[str, SDPBackend | None, torch.dtype]]
    if device == "cuda":  # each kernel by name, with both precisions: what one cannot do is a row of its own
        backends = ("FLASH", "EFFICIENT", "CUDNN", "MATH")
        pairs = [(name, dtype) for name in backends for dtype in (torch.float16, torch.float32)]
        kinds = [
            (name.lower(), getattr(SDPBackend, name if name == "MATH" else f"{name}_ATTENTION"), dtype)
            for name, dtype in pairs
        ]
    else:
        kinds = [("cpu", None, torch.float32), ("cpu", None, torch.bfloat16)]
    rows: list[FullAttention | KMIPAttention] = [FullAttention("full eager", _eager)]
    for kernel, backend, dtype in kinds:
        name = f"sdpa {kernel} {str(dtype).removeprefix('torch.')}"
        rows.append(FullAttention(name, functools.partial(_fused, backend=backend), dtype))
    rows += [KMIPAttention(search) for search in searches().values() if search.in_attention]
    return {row.name: row for row in rows}


def names(setting: str, device: str, approximate: bool = False) -> list[str]:
    """Return the names of those who take part in a setting."""
    if setting == "search":
        return [row.name for row in searches().values() if row.exact or approximate]
    rows = attentions(device).values()
    return [row.name for row in rows if setting != "breakdown" or not row.name.startswith("sdpa")]


def environment(setting: str, name: str) -> Mapping[str, str]:
    """Return the variables that a contestant's process needs from its start on."""
    return searches()[name].environment if setting == "search" else {}
