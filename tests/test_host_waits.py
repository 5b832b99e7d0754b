"""No step of a model makes the host wait for a GPU: on a simulated device, in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.processes import preloaded

ROOT = Path(__file__).parents[1]
CONFIGS = [f"configs/quickstart/{path.name}" for path in sorted((ROOT / "configs/quickstart").glob("*.yaml"))]
CONFIGS += ["configs/LRGB/pascalvoc-kmip.yaml", "configs/City-Networks/london-kmip.yaml"]
STEPS = """
import json, sys
from pathlib import Path
from tests.host_waits import steps_of
from graphgps_kmip.data import synthetic_sample as plan
from graphgps_kmip.data.sets import point_cloud_sets
few = point_cloud_sets._digit_graphs()[::6]
point_cloud_sets._digit_graphs = lambda: few
plan.MAX_GRAPHS, plan.MAX_NODES_OF_ONE = 30, 300
for name in sys.argv[1:]:
    steps = steps_of(Path(name).absolute())
    waits = {split: [[*key, times] for key, times in counts.items()] for split, counts in steps.waits.items()}
    print(json.dumps({"config": name, "waits": waits, "losses": [steps.loss, steps.loss_on_cpu]}))
"""
WAITS = """
import torch
from tests.simulated_device import counting, register
from graphgps_kmip.ops.host_copies import counts, host_copy, on_device, remember
from graphgps_kmip.search import topk_inner_product
device = register()
x = torch.tensor([3.0, 0.0, 5.0]).to(device)
index = torch.tensor([2, 0, 2]).to(device)
ptr = remember(torch.tensor([0, 1, 3]).to(device), torch.tensor([0, 1, 3]))
bad = torch.tensor([[1.0], [2.0], [float("inf")]]).to(device)
cases = {
    "item": lambda: x[0].item(),
    "list": lambda: x.tolist(),
    "mask": lambda: x[x > 0],
    "repeats": lambda: x.repeat_interleave(index),
    "numbers": lambda: torch.tensor([1, 2], device=device),
    "bincount": lambda: torch.bincount(index),
    "copy": lambda: x.cpu(),
    "queued copy": lambda: x.to("cpu", non_blocking=True),
    "known size": lambda: x.repeat_interleave(index, output_size=4),
    "known list": lambda: host_copy(ptr).tolist(),
    "known numbers": lambda: on_device([1, 2], device),
    "counts": lambda: counts(index, 4),
    "product": lambda: x @ x,
    "search": lambda: topk_inner_product(bad, bad, ptr, ptr, 2, read_values=False),
}
for name, case in cases.items():
    with counting() as waits:
        case()
    print(name, sum(waits.values()), sep="=")
print("counts", counts(index, 4).tolist(), sep="=")
print("scores", bool(cases["search"]()[1].isnan().all()), sep="=")
"""


@pytest.fixture(scope="module")
def steps() -> dict[str, dict[str, Any]]:
    done = preloaded("-c", STEPS, *CONFIGS, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    steps = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {step["config"]: step for step in steps}


@pytest.mark.parametrize("config", CONFIGS)
def test_the_host_waits_for_nothing_in_a_training_step_and_an_evaluation_step(
    steps: dict[str, dict[str, Any]], config: str
) -> None:
    assert steps[config]["waits"] == {"train": [], "val": []}


@pytest.mark.parametrize("config", CONFIGS)
def test_the_path_of_a_device_gives_the_loss_of_the_cpu(steps: dict[str, dict[str, Any]], config: str) -> None:
    loss, on_cpu = steps[config]["losses"]
    assert loss == pytest.approx(on_cpu, rel=1e-4)


def test_the_simulated_device_sees_what_makes_the_host_wait_and_nothing_else() -> None:
    done = preloaded("-c", WAITS, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    numbers = [line.split("=") for line in done.stdout.splitlines() if "=" in line]
    waiting = [name for name, number in numbers if number == "1"]
    assert waiting == "item list mask repeats numbers bincount copy".split()
    free = [name for name, number in numbers if number == "0"]
    assert free == ["queued copy", "known size", "known list", "known numbers", "counts", "product", "search"]
    assert numbers[-2:] == [["counts", "[1, 0, 2, 0]"], ["scores", "True"]]
