"""Triton kernel of k-MIP search on a GPU, host side: scores stay in registers, most of them in low precision only.

Like flash attention (Dao et al. 2022) it walks tiles of queries against tiles of keys, with the K best so far in place
of the running softmax. A score is computed in full only if its low-precision value plus an error bound exceeds the
K-th best; keys are in descending order of norm (Teflioudi and Gemulla 2016, LEMP).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from graphgps_kmip.ops.triton_check import failure, is_installed, is_interpreting, power_above
from graphgps_kmip.search.chunked import search_exact
from graphgps_kmip.search.problem import SearchProblem

ROUNDING = 2**-11  # largest relative error of half precision, in which scores are screened
LARGEST_K, LARGEST_DIM = 128, 256  # the K best, and a query in low precision, stay in registers
PROGRAMS = 4 * 132  # tiles that keep the multiprocessors of a large card busy
WORTH = 2**30  # query-key pairs from which on a search takes milliseconds, so that tile sizes are worth measuring


class Tiling(NamedTuple):
    """Tile sizes; results do not depend on them, but for which of several equal K-th scores is kept."""

    queries: int  # per program; a power of two >= 16, for the tensor cores
    keys: int  # per block; likewise
    step: int  # blocks between two decisions, which synchronise all warps of a program
    warps: int  # per program
    registers: int = 0  # at most for each thread, 0: no bound; fewer allow more programs at a time

    @property
    def sizes(self) -> dict[str, int]:
        """Arguments of the kernel."""
        return {"QUERIES": self.queries, "KEYS": self.keys, "STEP": self.step}

    @property
    def options(self) -> dict[str, int | None]:
        """Arguments of Triton's compiler."""
        return {"num_warps": self.warps, "maxnreg": self.registers or None}


# What is measured for large graphs: tilings that spill few registers, or have few instructions for each pair.
TILINGS = (
    Tiling(64, 32, 8, 4), Tiling(128, 32, 8, 8), Tiling(64, 64, 4, 4, 128), Tiling(32, 64, 4, 4), Tiling(32, 32, 4, 2)
)  # fmt: skip


def search_triton(problem: SearchProblem, tiling: Tiling | None = None) -> tuple[Tensor, Tensor]:
    """Find the K largest inner products for each query, exactly.

    With e = eps(dtype), each score is at least the true K-th largest minus 4 D e |q| max|k|. Returned scores do not
    depend on the tiling. Of equal scores the lower index comes first; which of several equal K-th ones is
    returned is repeatable. Time: N M screened scores, fewer where norms differ. Memory: three copies of q and k.

    Args:
        problem (SearchProblem): the search problem, float32 or float64.
        tiling (Tiling, optional): None: `choose_tiling`, or for large problems the fastest of `TILINGS`, which Triton
            measures at the first search of a class. (default: None)

    Shapes: returns index (H, N, K) int64 (-1: missing) and score (H, N, K) (-inf: missing).
    """
    from graphgps_kmip.search import triton_search_kernels as triton_kernels

    num_pairs = problem.num_heads * problem.q.size(1) * (problem.k.size(1) // problem.num_graphs)
    size_class = num_pairs.bit_length() // 2  # problems share one whose pairs differ by less than a factor of four
    if tiling is None and (num_pairs < WORTH or torch.cuda.is_current_stream_capturing()):
        tiling = choose_tiling(problem)
    kernel = tuned_kernel() if tiling is None else triton_kernels.search_kernel
    options = {} if tiling is None else tiling.sizes | tiling.options
    width = max(16, power_above(problem.q.size(-1)))
    q, norm_q, scale_q = _unit_scale(problem.q, per_row=True)
    k, norm_k, scale_k = _unit_scale(problem.k, per_row=False)
    norm_k, order = _descending_norm(norm_k, problem)
    k = k.gather(1, order[..., None].expand_as(k))
    turned = [x.mT.contiguous() for x in (q, k)]
    q, k = (pad(x, (0, width - x.size(-1))) for x in (q, k))
    low = [x.half() for x in (q, k)]
    shape = (*q.shape[:2], problem.num_keys)
    index, score = q.new_empty(shape, dtype=torch.int64), q.new_empty(shape)

    def grid(sizes: dict[str, Any]) -> tuple[int, int]:  # a graph may have a tile more than it needs
        return problem.q.size(1) // sizes["QUERIES"] + problem.num_graphs, problem.num_heads

    with torch.cuda.device_of(q):
        kernel[grid](
            q, k, *turned, *low, norm_q, norm_k, order.int(), problem.ptr_q.int(), problem.ptr_k.int(), index, score,
            q.size(1), k.size(1), problem.num_graphs, problem.num_keys, *_error(width), size_class,
            D=problem.q.size(-1), WIDTH=width, SLOTS=power_above(problem.num_keys), **options,
        )  # fmt: skip
    return index, score.mul_(scale_q).mul_(scale_k)


def choose_tiling(problem: SearchProblem) -> Tiling:
    """Tiles as large as the registers allow, unless the graphs are smaller or too few programs would be left."""
    mean_q, mean_k = problem.q.size(1) // problem.num_graphs, problem.k.size(1) // problem.num_graphs
    width, slots = power_above(problem.q.size(-1)), power_above(problem.num_keys)
    largest = min(mean_q, problem.num_heads * problem.q.size(1) // PROGRAMS, 16 if width * slots > 1024 else 128)
    keys, step = 64 if mean_k >= 512 else 32, 4 if mean_k >= 4096 else 1
    if largest < 64:
        return Tiling(32 if largest >= 32 else 16, keys, step, warps=2)
    if step > 1:  # half the keys in twice the blocks: as many pairs between decisions, without spilled registers
        keys, step = 32, 8
    return Tiling(64, keys, step, 4) if largest < 128 else Tiling(128, keys, step, 8)


@cache
def tuned_kernel() -> Any:
    """Return the kernel with Triton's autotuner around it."""
    import triton  # is optional

    from graphgps_kmip.search.triton_search_kernels import search_kernel

    configs = [triton.Config(tiling.sizes, **tiling.options) for tiling in TILINGS]
    return triton.autotune(configs, key=["size_class", "D", "SLOTS"])(search_kernel)


def triton_not_supported_reasons(problem: SearchProblem) -> list[str]:
    """Return the reasons why the Triton kernel does not support this problem, a failed self-check included."""
    reasons = []
    if not is_installed():
        reasons.append("triton is not installed (pip install triton)")
    if problem.q.device.type != "cuda" and not is_interpreting():
        reasons.append(
            f"Triton kernels run on cuda, not on {problem.q.device.type} (only, to test them and very slowly, "
            "in its interpreter: TRITON_INTERPRET=1 before the start)"
        )
    if problem.num_keys > LARGEST_K:
        reasons.append(f"the kernel keeps at most {LARGEST_K} keys for each query, not {problem.num_keys}")
    if problem.q.size(-1) == 0 or problem.q.size(-1) > LARGEST_DIM:
        reasons.append(f"the kernel takes 1 to {LARGEST_DIM} dimensions a head, not {problem.q.size(-1)}")
    width = max(16, power_above(problem.q.size(-1)))
    if max(problem.q.size(1), problem.k.size(1)) * width >= 2**31:
        reasons.append(f"the kernel's int32 offsets reach {2**31 // width - 1} nodes at this dimension")
    if problem.num_heads > 65535:
        reasons.append(f"a CUDA grid holds at most 65535 heads, not {problem.num_heads}")
    if not reasons and problem.q.device.type == "cuda" and (failed := failure(check_search, problem.q.device)):
        reasons.append(failed)
    return reasons


def _unit_scale(x: Tensor, per_row: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Divide rows, or heads, by the power of two above their (largest) norm: x, norms (rounded up), scale.

    Half precision then neither overflows nor underflows, and all error bounds are relative to 1.
    """
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float64)  # (H, N, 1)
    largest = norm if per_row else norm.amax(1, keepdim=True)
    bits, bias, integer = (23, 127, torch.int32) if x.dtype == torch.float32 else (52, 1023, torch.int64)
    exponent = largest.frexp().exponent.to(integer).clamp(1 - bias, bias)
    scale = ((exponent + bias) << bits).view(x.dtype)  # 2 ** exponent, which exp2 need not hit exactly
    return x / scale, (norm / scale * (1 + 2**-22)).squeeze(-1).float(), scale


def _descending_norm(norm: Tensor, problem: SearchProblem) -> tuple[Tensor, Tensor]:
    """Sort the keys of each graph by descending norm: sorted norms and order, both (H, M)."""
    graph = torch.arange(problem.num_graphs, device=norm.device)
    graph = graph.repeat_interleave(problem.ptr_k.diff(), output_size=norm.size(1))
    # the bits of a float >= 0 increase with it, so one sort of integers is enough: graph above, norm below
    order = ((graph << 32) - norm.contiguous().view(torch.int32)).argsort(dim=-1, stable=True)
    return norm.gather(1, order), order


def _error(width: int) -> tuple[float, float]:
    """Bounds on ``|screened - true|``, as factors of |q| |k| and of |q|, for rows scaled to norms in [1/2, 1).

    Both factors of a product are rounded, and tensor cores sum in truncated, not rounded, float32 (Fasi et al. 2021).
    Below 2^-14 the error of half precision is absolute, 2^-25: three times sqrt(256) of that at most.
    """
    return 2 * ROUNDING + ROUNDING**2 + (width + 8) * 2**-21, 2**-19


def check_search(device: torch.device) -> None:
    """Compare the search kernel with ``exact`` on two small graphs of several tiles."""
    generator = torch.Generator().manual_seed(0)
    ptr = torch.tensor([0, 1100, 1370], device=device)
    q, k = (torch.randn(2, 1370, 10, generator=generator).to(device) for _ in range(2))
    problem = SearchProblem.of(q, k, ptr, ptr, 10)
    torch.testing.assert_close(search_triton(problem)[1], search_exact(problem)[1], rtol=1e-4, atol=1e-4)
