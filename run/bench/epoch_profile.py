"""Profile of a training epoch of ours: share of each group of operators in the time of one thread, by torch's profiler.

``python -m run.bench.epoch_profile`` takes every data set and model of `epochs.py`, ``--data zinc --graphs 512`` one.
"""

from __future__ import annotations

import argparse

import torch
from torch.profiler import ProfilerActivity, profile

from . import bench_records
from .epochs import OURS, SHAPES, draw, our_epoch

# Group -> beginnings of the names of its operators; the first one that fits.
GROUPS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm"),
    "attention": ("full_attention", "_ClampedAttention", "sparse_attention"),
    "messages": ("_Gated", "gated_", "_ReluMessages"),
    "norms": ("aten::native_batch_norm", "_NormUpdate"),
    "ReLU": ("aten::clamp_min", "aten::threshold_backward", "aten::relu"),
    "rows by index": ("aten::index", "aten::gather", "aten::scatter", "aten::_index"),
    "collation": ("enumerate(DataLoader)",),
    "optimizer": ("Optimizer.", "aten::_fused_adam", "aten::_foreach"),
    "sums, copies, other tensors": ("aten::",),
}
REST = "autograd and Python"


def main(words: list[str]) -> int:
    """Profile the second epoch and print a row for each data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=",".join(SHAPES), help="comma-separated")
    parser.add_argument("--graphs", type=int, default=64, help="of an epoch")
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    names = [*GROUPS, REST]
    print("| percent of the time |", " | ".join(names), "|")
    print("|---" * (len(names) + 1) + "|")
    for data in bench_records.listed("data", args.data, SHAPES):
        share = shares(data, args.graphs)
        print(f"| {data} |", " | ".join(f"{share[name]:.0f}" for name in names), "|")
    return 0


def shares(data: str, num_graphs: int) -> dict[str, float]:
    """Return the percentage of each group, by the time that operators spend in themselves."""
    shape = SHAPES[data]
    torch.manual_seed(0)
    epoch = our_epoch(shape, draw(shape, num_graphs), OURS + shape.layer, 10, "cpu")
    epoch(0)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        epoch(1)
    found = dict.fromkeys([*GROUPS, REST], 0.0)
    for event in profiler.key_averages():
        group = next((name for name, starts in GROUPS.items() if event.key.startswith(starts)), REST)
        found[group] += event.self_cpu_time_total
    return {name: 100 * value / sum(found.values()) for name, value in found.items()}


if __name__ == "__main__":
    bench_records.run(main)
