"""Whether Triton kernels are right on the GPU at hand: tried once in a process, before "auto" relies on them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

import torch

from graphgps_kmip.search.exact import search_exact
from graphgps_kmip.search.problem import SearchProblem
from graphgps_kmip.search.triton_search import search_triton, triton_not_supported_reasons

logger = logging.getLogger(__name__)


@cache
def failure(check: Callable[[torch.device], None], device: torch.device) -> str | None:
    """Run a small check of kernels on a device and say, once and in the log, what failed; None when nothing did.

    A kernel depends on compiler, driver and card together, and no test of a release sees them all. A wrong one must
    not train a model.

    Args:
        check: raises whatever it raises when the kernels are wrong or do not compile.
        device: where it runs.
    """
    try:
        check(device)
    except Exception as error:  # compilers and drivers raise anything
        reason = f"its self-check failed on {torch.cuda.get_device_name(device)}: {type(error).__name__}: {error}"
        logger.warning("Triton kernels are not used, plain torch is: %s", reason.splitlines()[0])
        return reason.splitlines()[0]
    return None


def check_search(device: torch.device) -> None:
    """Compare the search kernel with ``exact`` on two graphs, small but of several tiles."""
    generator = torch.Generator().manual_seed(0)
    ptr = torch.tensor([0, 1100, 1370], device=device)
    q, k = (torch.randn(2, 1370, 10, generator=generator).to(device) for _ in range(2))
    problem = SearchProblem.of(q, k, ptr, ptr, 10)
    torch.testing.assert_close(search_triton(problem)[1], search_exact(problem)[1], rtol=1e-4, atol=1e-4)


def triton_reasons(problem: SearchProblem) -> list[str]:
    """Say what keeps the Triton kernel from this problem, a failed self-check included."""
    reasons = triton_not_supported_reasons(problem)
    if not reasons and problem.q.device.type == "cuda" and (failed := failure(check_search, problem.q.device)):
        reasons.append(failed)
    return reasons
