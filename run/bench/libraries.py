"""Searches by other libraries, each as its manual uses it: KeOps, faiss, scipy. Index builds are part of the time."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
from pathlib import Path

import torch
from torch import Tensor

from graphgps_kmip.search import SearchProblem
from run.bench.baselines import Found, by_block

# KeOps reads both when it is imported, and keeps what it compiled by formula and not by flags: own folder, own process.
NATIVE_KEOPS = {
    "CXXFLAGS": "-march=native -ffast-math",
    "KEOPS_CACHE_FOLDER": str(
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphgps_kmip" / "keops-native"
    ),
}


def keops(problem: SearchProblem) -> Found:
    """``argKmin`` of the symbolic matrix of negative inner products, graphs and heads as batch dimensions."""
    with contextlib.redirect_stdout(io.StringIO()):  # KeOps prints what it compiles
        return by_block(problem, _keops_block)


def faiss_flat(problem: SearchProblem) -> Found:
    """Faiss' exact brute force, ``IndexFlatIP``."""
    return by_block(problem, lambda q, k, num_keys: _faiss(q, k, num_keys, "flat"))


def faiss_ivf(problem: SearchProblem) -> Found:
    """Faiss' inverted lists: 4 sqrt(M) of them, a sixteenth of them probed. Not exact."""
    return by_block(problem, lambda q, k, num_keys: _faiss(q, k, num_keys, "ivf"))


def faiss_hnsw(problem: SearchProblem) -> Found:
    """Faiss' navigable small-world graph, 32 neighbours, beam of 64. Not exact."""
    return by_block(problem, lambda q, k, num_keys: _faiss(q, k, num_keys, "hnsw"))


def ckdtree(problem: SearchProblem) -> Found:
    """A k-d tree (scipy) of ``[k, sqrt(max |k|^2 - |k|^2)]``, whose nearest neighbours of ``[q, 0]`` are the answer.

    The reduction of Bachrach et al. 2014, "Speeding up the Xbox recommender system".
    """
    return by_block(problem, _tree_block)


def faiss_reasons(problem: SearchProblem) -> list[str]:
    """Say what keeps faiss from this problem."""
    installed = importlib.util.find_spec("faiss") is not None
    reasons = [] if installed else ["faiss is not installed (pip install faiss-cpu)"]
    return reasons + _cpu_float32(problem, "faiss-cpu")


def ckdtree_reasons(problem: SearchProblem) -> list[str]:
    """Say what keeps scipy's k-d tree from this problem."""
    return _cpu_float32(problem, "scipy")


def _cpu_float32(problem: SearchProblem, name: str) -> list[str]:
    return [] if problem.q.device.type == "cpu" else [f"{name} runs on cpu, not on {problem.q.device.type}"]


def _keops_block(q: Tensor, k: Tensor, num_keys: int) -> Found:
    from pykeops.torch import LazyTensor

    distance = -(LazyTensor(q.contiguous()[:, :, None]) | LazyTensor(k.contiguous()[:, None]))  # (b, n, m)
    index = distance.argKmin(num_keys, dim=2, backend="CPU" if q.device.type == "cpu" else "GPU")
    block = torch.arange(len(q), device=q.device)[:, None, None]
    return index, torch.einsum("bnd,bnkd->bnk", q, k[block, index])


def _faiss(q: Tensor, k: Tensor, num_keys: int, kind: str) -> Found:
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    index, score = [], []
    for queries, keys in zip(q.contiguous().numpy(), k.contiguous().numpy(), strict=True):
        searcher = _faiss_index(faiss, kind, len(keys), keys.shape[1])
        if not searcher.is_trained:
            searcher.train(keys)
        searcher.add(keys)
        best, found = searcher.search(queries, num_keys)
        index.append(torch.from_numpy(found))
        score.append(torch.from_numpy(best))
    # what an approximate index does not find has index -1; the last row of another block must not be named
    index, score = torch.stack(index), torch.stack(score)
    return index.clamp(min=0), score.masked_fill(index < 0, -torch.inf)


def _faiss_index(faiss: object, kind: str, num_keys: int, dim: int) -> object:
    if kind == "flat":
        return faiss.IndexFlatIP(dim)
    if kind == "hnsw":
        searcher = faiss.IndexHNSWFlat(dim, 32, faiss.METRIC_INNER_PRODUCT)
        searcher.hnsw.efSearch = 64
        return searcher
    lists = max(1, min(int(4 * num_keys**0.5), num_keys // 39 or 1))  # faiss wants 39 training points a list
    searcher = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, lists, faiss.METRIC_INNER_PRODUCT)
    searcher.nprobe = max(1, lists // 16)
    return searcher


def _tree_block(q: Tensor, k: Tensor, num_keys: int) -> Found:
    from scipy.spatial import cKDTree

    index = []
    for queries, keys in zip(q.double(), k.double(), strict=True):
        squared = keys.square().sum(1, keepdim=True)
        tree = cKDTree(torch.cat([keys, (squared.max() - squared).sqrt()], 1).numpy())
        points = torch.nn.functional.pad(queries, (0, 1)).numpy()
        index.append(torch.from_numpy(tree.query(points, range(1, num_keys + 1), workers=torch.get_num_threads())[1]))
    index = torch.stack(index)
    block = torch.arange(len(q))[:, None, None]
    return index, torch.einsum("bnd,bnkd->bnk", q, k[block, index])
