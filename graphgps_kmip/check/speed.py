"""A small benchmark for a report: k-MIP attention on this device beside torch's full attention, KeOps and faiss.

Numbers for claims come from ``run/bench``, which measures memory and repeats in processes of their own.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from graphgps_kmip.attention.sparse_attention import sparse_attention
from graphgps_kmip.search import topk_inner_product

NUM_HEADS, DIM, NUM_KEYS = 4, 16, 10
NUM_NODES = {"cuda": 100_000, "cpu": 8_192}
REPEATS = 3
SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def measure(device: torch.device, num_nodes: int | None = None) -> list[dict[str, Any]]:
    """Time one pass of each method, and return rows of a table.

    Args:
        device (torch.device): where.
        num_nodes (int, optional): N of the one graph. (default: that of `NUM_NODES` for the device)

    Returns:
        list: method, "what" (forward and backward, or search), dtype, milliseconds (median of `REPEATS`; None where it
        cannot run here, and then "why").
    """
    nodes = num_nodes or NUM_NODES[device.type]
    return [_timed(nodes, *method, device) for method in _methods(device)]


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table, times and how often they are that of the first row of the same kind."""
    first: dict[str, float] = {}
    lines = []
    for row in rows:
        name = f"{row['method']}, {row['dtype']}"
        if row["ms"] is None:
            lines.append(f"{row['what']:20} {name:42} {row['why']}")
            continue
        base = first.setdefault(row["what"], row["ms"])
        lines.append(f"{row['what']:20} {name:42} {row['ms']:10.2f} ms {row['ms'] / base:8.1f}x")
    return lines


def _methods(device: torch.device) -> Iterator[tuple[str, str, torch.dtype, Callable[..., Any]]]:
    train, search = "forward and backward", "search"
    yield "k-MIP", train, torch.float32, _trained(_kmip)
    cuda = device.type == "cuda"
    for name, backend in SDPA.items() if cuda else [("flash", SDPBackend.FLASH_ATTENTION)]:  # a CPU has no other
        for dtype in (torch.float32, torch.float16) if cuda else (torch.float32,):
            yield f"torch, full attention, {name}", train, dtype, _trained(_sdpa(backend))
    yield "k-MIP, auto", search, torch.float32, _search("auto")
    for name in ("chunked", "keops") if cuda else ("chunked",):  # KeOps takes half a minute a pass on a CPU
        yield f"k-MIP, {name}", search, torch.float32, _search(name)
    if importlib.util.find_spec("faiss"):
        yield "faiss, IndexFlatIP", search, torch.float32, _faiss


def _timed(
    nodes: int, method: str, what: str, dtype: torch.dtype, run: Callable[..., Any], device: torch.device
) -> dict[str, Any]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(NUM_HEADS, nodes, DIM, device=device, dtype=dtype) for _ in range(3))
    row = {"method": method, "what": what, "dtype": str(dtype).removeprefix("torch."), "nodes": nodes, "ms": None}
    seconds = []
    try:
        for _ in range(REPEATS + 1):
            start = time.perf_counter()
            run(q, k, v)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - start)
    except Exception as error:  # what torch, KeOps or faiss cannot do here
        return row | {"why": " ".join(str(error).split())[:90]}
    return row | {"ms": 1000 * statistics.median(seconds[1:])}  # the first pass compiles and warms up


def _kmip(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    found = topk_inner_product(q.detach(), k.detach(), num_keys=NUM_KEYS)
    return sparse_attention(*(one.transpose(0, 1) for one in (q, k, v)), *found)


def _sdpa(backend: SDPBackend) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q[None], k[None], v[None])

    return attend


def _trained(attend: Callable[..., Tensor]) -> Callable[..., None]:
    def step(q: Tensor, k: Tensor, v: Tensor) -> None:
        given = [one.clone().requires_grad_() for one in (q, k, v)]  # new tensors: a search is remembered
        attend(*given).square().sum().backward()

    return step


def _search(backend: str) -> Callable[..., Any]:
    return lambda q, k, v: topk_inner_product(q.clone(), k.clone(), num_keys=NUM_KEYS, backend=backend)  # noqa: ARG005


def _faiss(q: Tensor, k: Tensor, v: Tensor) -> None:  # noqa: ARG001
    import faiss

    for queries, keys in zip(q, k, strict=True):
        index = faiss.IndexFlatIP(DIM)
        if q.device.type == "cuda":
            if not hasattr(faiss, "StandardGpuResources"):
                raise RuntimeError("this faiss has no GPU")
            index = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
        index.add(keys.cpu().numpy())
        index.search(queries.cpu().numpy(), NUM_KEYS)
