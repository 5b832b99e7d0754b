"""Peak memory of a whole process, measured: what a kernel takes in C is invisible to torch's own counters."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.processes import forked

NUM_NODES = 20_000  # its score matrix would be 1,526 MiB
PROGRAM = """
import sys, torch
from pathlib import Path
from graphgps_kmip.ops.sparse_attention import sparse_attention
from graphgps_kmip.search import topk_inner_product
torch.set_num_threads(1)

def mib(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024

def run(n, backend, training):
    q, k, v = (torch.randn(n, 1, 10, requires_grad=training) for _ in range(3))
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = mib("VmRSS")
    index, score = topk_inner_product(q.detach().transpose(0, 1), k.detach().transpose(0, 1), None, None, 10, backend)
    if training:
        sparse_attention(q, k, v, index, score).sum().backward()
    return mib("VmHWM") - before

run(2000, "{backend}", {training})  # loads and compiles what is needed
print(run({num_nodes}, "{backend}", {training}))
"""
# case -> MiB
LIMITS = {
    # index, score, about three copies of the keys and what malloc keeps: 5 MiB at 20,000 nodes
    ("cpu", False): 16,
    ("tree", False): 20,
    ("chunked", False): 200,  # 32 MiB of scores, with the group maxima and the gathered groups beside them
    # and the attention: index and weight twice, q, k, v, o and their gradients
    ("cpu", True): 32,
}


@pytest.fixture(scope="module")
def measured() -> dict[tuple[str, bool], subprocess.CompletedProcess[str]]:
    # each in a process: what another case allocated and freed would hide its peak
    codes = [PROGRAM.format(backend=backend, training=training, num_nodes=NUM_NODES) for backend, training in LIMITS]
    return dict(zip(LIMITS, forked("import graphgps_kmip.ops.sparse_attention", codes), strict=True))


@pytest.mark.compiler
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("backend", "training"), LIMITS)
def test_the_memory_of_a_search_does_not_grow_with_the_number_of_pairs(
    backend: str, training: bool, measured: dict[tuple[str, bool], subprocess.CompletedProcess[str]]
) -> None:
    done = measured[backend, training]
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) < LIMITS[backend, training]
