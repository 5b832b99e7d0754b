"""Public models of PPGT have the public code's number of parameters in every part, and its initial values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from graphgps_kmip import create_model

MODELS: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "ppgt_models.yaml").read_text())
INITIAL = [name for name, row in MODELS.items() if "initial" in row]


def model_of(name: str, **settings: Any) -> nn.Module:
    row = MODELS[name]
    given = row["settings"] | settings
    return create_model("", row["dim_in"], row["dim_out"], network="PPGT", edge_dim=row["edge_dim"], settings=given)


def size(model: nn.Module, part: str = "") -> int:
    return sum(one.numel() for name, one in model.named_parameters() if f"{name}.".startswith(part))


@pytest.mark.parametrize("name", MODELS)
def test_every_part_of_a_public_model_has_as_many_parameters(name: str) -> None:
    row = MODELS[name]
    with torch.device("meta"):
        model = model_of(name)
    assert {part: size(model, f"{part}.") for part in row["parts"]} == row["parts"]
    assert size(model) == row["total"]


def test_the_printed_number_of_parameters_of_zinc_is_that_of_a_head_that_halves_widths() -> None:
    with torch.device("meta"):
        model = model_of("ZINC", **{"head.linear_graph.halve_widths": True})
    assert size(model) == 487_425


@pytest.mark.parametrize("name", INITIAL)
def test_initial_values_are_drawn_as_in_the_public_model(name: str) -> None:
    torch.manual_seed(0)
    found = dict(model_of(name).named_parameters())
    for key, (std, largest) in MODELS[name]["initial"].items():
        ours, numbers = found[key].detach(), found[key].numel()
        if std == 0:
            assert ours.std(unbiased=False) < 1e-6, key
            assert abs(float(ours.abs().max()) - largest) < 1e-4, f"{key}, rounded to 4 digits"
            continue
        # both are estimates from as many numbers: six standard deviations of their ratio
        assert abs(float(ours.std()) / std - 1) < 6 / numbers**0.5, key
        if numbers >= 128:  # a uniform distribution ends at 1.73 standard deviations
            assert (float(ours.abs().max()) / float(ours.std()) < 1.9) == (largest / std < 1.9), key


@pytest.mark.parametrize("name", INITIAL)
def test_the_recorded_initial_values_are_those_of_every_parameter(name: str) -> None:
    later = ("layers.", "head.class_layers.")
    found = {key for key, _ in model_of(name).named_parameters()}
    kept = {key for key in found if not key.startswith(later) or key.startswith(tuple(f"{one}0." for one in later))}
    assert kept == set(MODELS[name]["initial"])
