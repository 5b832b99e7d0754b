"""Outputs and gradients recorded in float64 from the original public layers (tests/golden): ours must match them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from tests.record_files import record as arrays_of

TOLERANCE = 1e-9  # float64 sums in another order


def load(name: str) -> dict[str, Tensor]:
    return {key: torch.from_numpy(array) for key, array in arrays_of(name).items()}


def part(record: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(f"{prefix}/"): value for key, value in record.items() if key.startswith(f"{prefix}/")}


def check(
    module: nn.Module,
    forward: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    record: Mapping[str, Tensor],
    rename: Callable[[str], str],
) -> None:
    """Compare outputs, input gradients, parameter gradients and buffers after the run, in every recorded mode.

    Args:
        module: ours, float64.
        forward: inputs by recorded name -> outputs by recorded name.
        record: from `load`.
        rename: recorded parameter name -> ours.
    """
    state = {rename(key): value for key, value in part(record, "state").items()}
    for mode in ("eval", "train"):
        expected = part(record, f"{mode}/out")
        if not expected:
            continue
        module.load_state_dict(state)
        module.train(mode == "train").zero_grad()
        inputs = {
            key: value.clone().requires_grad_() if value.is_floating_point() else value
            for key, value in part(record, "in").items()
        }
        outputs = forward(inputs)
        sum((outputs[key] * record[f"cot/{key}"]).sum() for key in expected).backward()
        results = {f"{mode}/out/{key}": outputs[key] for key in expected}
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        results |= {f"{mode}/grad_in/{key}": _gradient(inputs[key]) for key in part(record, f"{mode}/grad_in")}
        results |= {
            f"{mode}/grad_param/{key}": _gradient(tensors[rename(key)]) for key in part(record, f"{mode}/grad_param")
        }
        results |= {f"{mode}/state_after/{key}": tensors[rename(key)] for key in part(record, f"{mode}/state_after")}
        for key, value in results.items():
            torch.testing.assert_close(
                value, record[key], rtol=TOLERANCE, atol=TOLERANCE, msg=lambda text, key=key: f"{key}: {text}"
            )


def _gradient(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad  # the records hold zeros for the unused
