"""Takes queries and keys from the first k-MIP layer of a trained model, as data for the benchmark.

python main.py --cfg configs/quickstart/digits-kmip.yaml
python run/bench/attention.py --setting search --capture results/digits-kmip/0
"""

from __future__ import annotations

from pathlib import Path

import torch

from graphgps_kmip.analysis import collect_heads
from graphgps_kmip.gym.trained import batch_of, trained

GRAPHS = 64  # of the test part: one batch of the quickstart


def capture(run_dir: Path, folder: Path, graphs: int = GRAPHS) -> Path:
    """Write ``captured-<config>-<run>.pt`` with q and k (H, N, D) and ptr (B+1,) of one test batch; return its path.

    Raises:
        ValueError: the folder holds no finished run, or its model has no k-MIP attention.
    """
    with trained(run_dir) as run:
        test = run.dataset.part("test")
        batch = batch_of([test[i] for i in range(min(graphs, len(test)))], "test")
        first = collect_heads(run.model, batch)[0]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"captured-{run_dir.resolve().parent.name}-{run_dir.name}.pt"
    torch.save({"q": first.q, "k": first.k, "ptr": first.ptr}, path)
    return path
