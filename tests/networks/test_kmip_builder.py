"""Which variant of k-MIP attention the settings ask for."""

from __future__ import annotations

from typing import Any

import pytest

from graphgps_kmip.attention import AnnealedKeys, BestKeys, DiverseKeys, KMIPAttention, RandomKeys
from graphgps_kmip.attention.kmip import build_kmip
from graphgps_kmip.compat.public_faults import FirstKeyAgain, PaddedKMIPAttention, repeat_faults
from graphgps_kmip.signatures import options

# The config group gt.kmip: hashes of finished runs count its keys and values.
DEFAULTS = {
    "k": 10,
    "dim_kq": None,
    "dim_val": None,
    "head_agg": "none",
    "search": "auto",
    "k_start": 0,
    "anneal_until": 0.5,
    "diversity": 0.0,
    "random_attention": False,
    "random_fraction": 0.1,
}
VARIANTS: list[tuple[dict[str, Any], type[KMIPAttention], list[type]]] = [
    ({}, KMIPAttention, [BestKeys]),
    ({"k_start": 20}, KMIPAttention, [AnnealedKeys, BestKeys]),
    ({"diversity": 0.1, "random_attention": True}, KMIPAttention, [DiverseKeys, RandomKeys]),
    ({"repeat_first_key": True, "diversity": 0.1}, KMIPAttention, [FirstKeyAgain, DiverseKeys, BestKeys]),
    ({"pad_keys": True, "k_start": 20}, PaddedKMIPAttention, [AnnealedKeys, BestKeys]),
]


def build(settings: dict[str, Any]) -> KMIPAttention:
    options = {name: value for name, value in settings.items() if name in DEFAULTS}
    return repeat_faults(build_kmip(8, 2, **options), {f"gt.kmip.{name}": value for name, value in settings.items()})


def test_the_config_group_has_the_keys_and_defaults_that_finished_runs_were_hashed_with() -> None:
    assert {name: option.default for name, option in options(build_kmip).items()} == DEFAULTS


@pytest.mark.parametrize(("settings", "variant", "selections"), VARIANTS)
def test_each_setting_has_its_variant(
    settings: dict[str, Any], variant: type[KMIPAttention], selections: list[type]
) -> None:
    attention = build(settings)
    assert type(attention) is variant
    assert [type(module) for module in attention.selection.modules()] == selections
