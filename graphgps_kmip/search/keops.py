"""KeOps search: symbolic matrices (PyKeOps) as in the thesis and the paper; nothing of size N x M is in memory."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shutil
import sys

import torch
from torch import Tensor

from graphgps_kmip.search.problem import SearchProblem

LARGEST_FLOAT32_INDEX = 2**24  # KeOps returns indices as floats of the input's dtype


def search_keops(problem: SearchProblem) -> tuple[Tensor, Tensor]:
    """Find the K largest inner products for each query by ``argKmin`` of ``-<q_n, k_m>``, head after head.

    Compiles once (seconds) per pair (D, K). Returns index (H, N, K), -1: missing, and score (H, N, K), -inf: missing.
    """
    os.environ.setdefault("PYKEOPS_VERBOSE", "0")
    ranges = _block_ranges(problem)
    with contextlib.redirect_stdout(io.StringIO()):  # KeOps prints even when not verbose
        pairs = zip(problem.q, problem.k, strict=True)
        index = torch.stack([_search_head(q, k, ranges, problem.num_keys) for q, k in pairs])
    index = index.masked_fill(problem.missing, 0)  # where KeOps returns arbitrary indices
    heads = zip(problem.q, problem.k, index, strict=True)
    score = torch.stack(
        [torch.stack([(q * k[slot]).sum(-1) for slot in at.unbind(-1)], dim=-1) for q, k, at in heads]
    )  # (H, N, K)
    # another order of summation than in KeOps can swap two nearly equal scores
    score, order = score.masked_fill(problem.missing, -torch.inf).sort(dim=-1, descending=True, stable=True)
    return index.gather(-1, order).masked_fill(problem.missing, -1), score


def keops_not_supported_reasons(problem: SearchProblem) -> list[str]:
    """Return the reasons why KeOps does not support this problem."""
    reasons = []
    if importlib.util.find_spec("pykeops") is None:
        reasons.append("pykeops is not installed (pip install pykeops)")
    if shutil.which(cxx_compiler()) is None:
        reasons.append(f"KeOps needs a C++ compiler and {cxx_compiler()} is not on the PATH (install one or set CXX)")
    if problem.q.device.type not in ("cpu", "cuda"):
        reasons.append(f"KeOps runs on cpu and cuda, not on {problem.q.device.type}")
    if problem.q.dtype == torch.float32 and problem.k.size(1) > LARGEST_FLOAT32_INDEX:
        reasons.append(f"KeOps' float32 indices are exact up to {LARGEST_FLOAT32_INDEX} keys, not {problem.k.size(1)}")
    return reasons


def cxx_compiler() -> str:
    """Return the name of the C++ compiler that KeOps uses."""
    default = "clang++" if sys.platform == "darwin" else "g++"
    return (os.environ.get("CXX") or default).split()[0]


def _block_ranges(problem: SearchProblem) -> tuple[Tensor, ...] | None:
    """KeOps' block ranges that restrict queries to the keys of their graph; None for a single graph."""
    if problem.num_graphs == 1:
        return None
    blocks_q, blocks_k = (torch.stack([ptr[:-1], ptr[1:]], dim=1).int() for ptr in (problem.ptr_q, problem.ptr_k))
    filled = (problem.ptr_q.diff() > 0) & (problem.ptr_k.diff() > 0)
    blocks_q, blocks_k = blocks_q[filled], blocks_k[filled]
    ends = torch.arange(1, len(blocks_q) + 1, dtype=torch.int32, device=blocks_q.device)
    return blocks_q, ends, blocks_k, blocks_k, ends, blocks_q


def _search_head(q: Tensor, k: Tensor, ranges: tuple[Tensor, ...] | None, num_keys: int) -> Tensor:
    from pykeops.torch import LazyTensor  # takes seconds to import

    distance = -(LazyTensor(q.contiguous()[:, None]) | LazyTensor(k.contiguous()[None]))  # (N, M), symbolic
    if ranges is not None:
        distance.ranges = ranges
    backend = "CPU" if q.device.type == "cpu" else "GPU"
    return distance.argKmin(num_keys, dim=1, backend=backend, device_id=q.device.index or 0)  # (N, K)
