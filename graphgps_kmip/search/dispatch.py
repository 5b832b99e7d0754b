"""k-MIP search: `topk_inner_product`, its backends, the automatic choice among them, memo of results."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn.functional import pad

from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.operators import operator
from graphgps_kmip.registry import Spec, entries, named, register
from graphgps_kmip.search.chunked import search_chunked, search_exact
from graphgps_kmip.search.fused_cpu import (
    cpu_not_preferred_reasons,
    cpu_not_supported_reasons,
    search_cpu,
    search_tree,
    tree_not_preferred_reasons,
)
from graphgps_kmip.search.keops import keops_not_supported_reasons, search_keops
from graphgps_kmip.search.problem import SearchProblem, check_num_keys, overflow, usable
from graphgps_kmip.search.triton_search import search_triton, triton_not_supported_reasons

logger = logging.getLogger(__name__)
Reasons = Callable[[SearchProblem], list[str]]  # against a backend; none: it fits
_KEOPS = ["compiles for seconds for each D and K, and is slower than chunked on CPU"]
_EXACT = ["holds the scores of all pairs of nodes of the batch"]


def _register(name: str, search: Callable, summary: str, cannot: Reasons, not_preferred: Reasons) -> None:
    reasons = {"not_supported_reasons": cannot, "not_preferred_reasons": not_preferred}
    register("search_backend", name, search, summary=summary, **reasons)


# "auto" takes the first one that supports the problem and is preferred for it, else the first one that supports it.
_tree = "fused C kernel with a k-d tree, for few dimensions"
_register("tree", search_tree, _tree, cpu_not_supported_reasons, tree_not_preferred_reasons)
_cpu = "fused C kernel for CPUs, compiled at its first use"
_register("cpu", search_cpu, _cpu, cpu_not_supported_reasons, cpu_not_preferred_reasons)
_register("triton", search_triton, "fused GPU kernel (Triton)", triton_not_supported_reasons, lambda _: [])
_register("chunked", search_chunked, "plain torch, bounded memory, any device", lambda _: [], lambda _: [])
_keops = "symbolic matrices (PyKeOps), as in the papers; needs a C++ compiler"
_register("keops", search_keops, _keops, keops_not_supported_reasons, lambda _: _KEOPS)
_register("exact", search_exact, "the full score matrix: the reference", lambda _: [], lambda _: _EXACT)


def topk_inner_product(
    q: Tensor,
    k: Tensor,
    ptr_q: Tensor | None = None,
    ptr_k: Tensor | None = None,
    num_keys: int = 10,
    backend: str = "auto",
    explain: bool = False,
    read_values: bool = True,
) -> tuple[Tensor, Tensor]:
    """Find, for each query, the keys of its own graph with the largest inner products, exactly.

    ``index[.., n, :] = argtopk_m <q_n, k_m>``, ``score`` the inner products (not scaled), in descending order; equal
    scores in any order. Neither carries a gradient. Half-precision inputs are searched in float32.

    Args:
        q (Tensor): queries; leading dimensions are heads.
        k (Tensor): keys; leading dimensions as those of q.
        ptr_q (Tensor, optional): graph boundaries of the queries; None: one graph. (default: None)
        ptr_k (Tensor, optional): graph boundaries of the keys; None: one graph. (default: None)
        num_keys (int, optional): K >= 1; slots beyond the size of a graph have index -1 and score -inf. (default: 10)
        backend (str, optional): a registered search backend, or "auto". (default: "auto")
        read_values (bool, optional): look for values that are not finite, and for inner products that may overflow,
            which are computed in float64; a GPU's host waits. False: all scores are NaN then. (default: True)
        explain (bool, optional): log (level INFO) which backend is used and why not the others. (default: False)

    Shapes: q (..., N, D), k (..., M, D), ptr (B+1,); index (..., N, K) int64, score (..., N, K) in the dtype of q.

    Raises:
        ValueError: inputs that do not fit together, an unknown backend, or one that does not support this problem.
        NotFinite: NaN or infinite values, or inner products among the K largest that overflow the dtype of q.
    """
    check_num_keys(num_keys)
    if explain:
        problem = SearchProblem.of(q, k, ptr_q, ptr_k, num_keys, read_values).searchable()
        logger.info(explain_choice(problem, backend))
    arguments = (q.detach(), k.detach(), ptr_q, ptr_k, num_keys, backend, read_values)
    return search_or_recall(lambda: _topk_inner_product(*arguments), k.size(-2))


def _search(
    q: Tensor, k: Tensor, ptr_q: Tensor | None, ptr_k: Tensor | None, num_keys: int, backend: str, read_values: bool
) -> tuple[Tensor, Tensor]:
    full = SearchProblem.of(q, k, ptr_q, ptr_k, num_keys, read_values)
    problem = full.searchable()
    search = choose(problem, backend).component
    shape = (*q.shape[:-1], num_keys)
    if problem.q.size(0) * problem.q.size(1) * problem.k.size(1) == 0:
        return q.new_full(shape, -1, dtype=torch.int64), q.new_full(shape, -torch.inf)
    with torch.no_grad(), torch.autocast(q.device.type, enabled=False):  # autocast would round the scores
        index, score = search(problem)
    if not read_values:
        score = score.where(usable(q, k), torch.nan)
    if not full.fits(q.dtype) and bool(((score.abs() > torch.finfo(q.dtype).max) & (index >= 0)).any()):
        raise overflow(full.largest_q, full.largest_k, q.dtype)
    score = score.to(q.dtype)
    if problem.num_keys < num_keys:
        more = (0, num_keys - problem.num_keys)
        index, score = pad(index, more, value=-1), pad(score, more, value=-torch.inf)
    return index.reshape(shape).contiguous(), score.reshape(shape).contiguous()


_topk_inner_product = operator(
    "topk_inner_product(Tensor q, Tensor k, Tensor? ptr_q, Tensor? ptr_k, int num_keys, str backend, bool read_values) "
    "-> (Tensor, Tensor)",
    _search,
    lambda q, k, ptr_q, ptr_k, num_keys, *_: (  # noqa: ARG005
        q.new_empty((*q.shape[:-1], num_keys), dtype=torch.int64), q.new_empty((*q.shape[:-1], num_keys))
    ),
)  # fmt: skip


def choose(problem: SearchProblem, name: str = "auto") -> Spec:
    """Return the backend of this name, or the best one for the problem ("auto"); an error if it does not fit."""
    check_backend_name(name)
    if name != "auto":
        backend = named("search_backend")[name]
        if reasons := backend.traits.not_supported_reasons(problem):
            raise InputError(f"search backend {name!r} cannot solve this problem: {'; '.join(reasons)}; use 'auto'")
        return backend
    supported = []
    for backend in entries("search_backend").values():
        if not backend.traits.not_supported_reasons(problem):
            if not backend.traits.not_preferred_reasons(problem):
                return backend
            supported.append(backend)
    if not supported:
        raise InputError(f"no search backend can solve this problem:\n{_list_reasons(problem)}")
    return supported[0]


def explain_choice(problem: SearchProblem, name: str = "auto") -> str:
    """Return a text that names the backend of `choose`, and the reasons against each of the others."""
    return f"search backend {choose(problem, name).name!r} taken for {name!r}:\n{_list_reasons(problem)}"


def check_backend_name(name: str) -> None:
    """Refuse a name that is neither "auto" nor registered; the error names near misses."""
    names = ["auto", *named("search_backend")]
    if name not in names:
        near = difflib.get_close_matches(str(name), names, n=2)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise InputError(f"unknown search backend {name!r}, allowed are {', '.join(names)}{hint}")


def _list_reasons(problem: SearchProblem) -> str:
    lines = []
    for backend in entries("search_backend").values():
        reasons = [f"cannot: {reason}" for reason in backend.traits.not_supported_reasons(problem)]
        reasons += [f"not preferred: {reason}" for reason in backend.traits.not_preferred_reasons(problem)]
        lines.append(f"  {backend.name}: {'; '.join(reasons) or 'preferred'}")
    return "\n".join(lines)


Result = tuple[Tensor, Tensor]
_current: ContextVar[Memo | None] = ContextVar("search memo", default=None)


class Memo:
    """Results of the searches of a module, in order, for gradient checkpointing: recorded once, then returned."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.rest: Iterator[Result] | None = None  # results to return; None: searches are recorded

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the results of all searches in this block."""
        yield from self._activate(None)

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Return the recorded results, in the same order, instead of searching."""
        yield from self._activate(iter(self.results))

    def _activate(self, rest: Iterator[Result] | None) -> Iterator[None]:
        self.rest, token = rest, _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


def search_or_recall(search: Callable[[], Result], num_rows: int) -> Result:
    """Return the result of a search among ``num_rows`` rows, or the one that the current `Memo` has recorded."""
    memo = None if is_compiling() else _current.get()
    if memo is None:
        return search()
    if memo.rest is not None:
        index, score = next(memo.rest)
        return index.long(), score
    index, score = search()
    memo.results.append((index.to(torch.int32 if num_rows < 2**31 else torch.int64), score))
    return index, score
