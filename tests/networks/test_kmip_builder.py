"""Which variant of k-MIP attention the settings ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.attention import AnnealedKeys, BestKeys, DiverseKeys, KMIPAttention, RandomKeys
from graphgps_kmip.attention.kmip import build_kmip
from graphgps_kmip.compat.public_faults import FirstKeyAgain, PaddedKMIPAttention, repeat_faults
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.experiment import assemble
from graphgps_kmip.gym.planned_runs import configured, planned_runs
from graphgps_kmip.signatures import options
from tests.gym.posenc_config import ROOT

DIGITS = ROOT / "configs/quickstart/digits-kmip.yaml"
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


@pytest.fixture(autouse=True)
def closed_config() -> Iterator[None]:
    yield
    cfg.defrost()


def test_the_config_group_has_the_keys_and_defaults_that_finished_runs_were_hashed_with() -> None:
    assert {name: option.default for name, option in options(build_kmip).items()} == DEFAULTS


@pytest.mark.parametrize(("settings", "variant", "selections"), VARIANTS)
def test_each_setting_has_its_variant(
    settings: dict[str, Any], variant: type[KMIPAttention], selections: list[type]
) -> None:
    attention = build(settings)
    assert type(attention) is variant
    assert [type(module) for module in attention.selection.modules()] == selections


@pytest.mark.parametrize("variant", [{}, {"gt.kmip.pad_keys": "True"}])
def test_a_model_in_eval_mode_has_its_final_k_without_a_progress(variant: dict[str, str]) -> None:
    overrides = [part for pair in variant.items() for part in pair]
    small = ["gt.dim_hidden", "16", "gnn.dim_inner", "16", "gt.layers", "2", "dataset.sample", "True"]
    load_config(cfg, DIGITS, [*small, "gt.kmip.k", "2", "gt.kmip.k_start", "16", *overrides])
    with configured(planned_runs(1)[0]):
        parts = assemble()
    model, outputs = parts.model.eval(), {}
    for progress in (None, 0.0, 1.0):
        batch = Batch.from_data_list([parts.dataset.graphs[i] for i in range(3)])
        batch.split = "test"
        if progress is not None:
            batch.progress = progress
        outputs[progress] = model(batch)[0]
    assert torch.equal(outputs[None], outputs[1.0])
    assert not torch.equal(outputs[None], outputs[0.0])
