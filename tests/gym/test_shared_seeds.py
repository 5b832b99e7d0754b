"""Runs of all seeds share a random split or an expander where the config gives these a seed of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.gym.config_hash import config_hash
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.data_loading import load_configured

FILE = Path(__file__).parents[2] / "configs" / "Heterophilous" / "minesweeper-exphormer.yaml"


def graph(*words: str) -> Data:
    load_config(cfg, FILE, ["dataset.sample", "True", "dataset.split", "[0.6, 0.2, 0.2]", *words])
    return load_configured().dataset.graphs[0]


RANDOM = ("dataset.split_mode", "random")


def split(*words: str) -> torch.Tensor:
    return graph(*RANDOM, *words).train_mask


def expander(*words: str) -> torch.Tensor:
    return graph(*words).expander_edge_index


@pytest.mark.parametrize(("drawn", "key"), [(split, "dataset.split_seed"), (expander, "prep.exp_seed")])
def test_a_seed_of_its_own_takes_the_place_of_the_seed_of_the_run(drawn: Callable[..., torch.Tensor], key: str) -> None:
    first, other = drawn("seed", "0"), drawn("seed", "1")
    assert not torch.equal(first, other)
    assert torch.equal(drawn("seed", "1", key, "0"), first)
    assert torch.equal(drawn("seed", "0", key, "1"), other)


@pytest.mark.parametrize("key", ["dataset.split_seed", "prep.exp_seed"])
def test_a_seed_of_its_own_counts_in_the_config_hash_and_none_leaves_that_of_earlier_runs(key: str) -> None:
    graph()
    before, present = config_hash(cfg), cfg.clone()
    group, name = key.split(".")
    del present[group][name]
    assert config_hash(present) == before
    graph(key, "0")
    assert config_hash(cfg) != before


def test_a_split_with_a_seed_of_its_own_has_the_shares_of_the_config() -> None:
    drawn = graph(*RANDOM, "dataset.split_seed", "0")
    shares = [drawn[f"{name}_mask"].float().mean().item() for name in ("train", "val", "test")]
    assert shares == pytest.approx([0.6, 0.2, 0.2], abs=0.02)


def test_shares_that_the_split_mode_does_not_read_are_said(caplog: pytest.LogCaptureFixture) -> None:
    graph("dataset.split_mode", "standard", "dataset.split", "[0.5, 0.25, 0.25]")
    assert caplog.text.count("dataset.split [0.5, 0.25, 0.25] is not read") == 1
    caplog.clear()
    graph("dataset.split_mode", "standard", "dataset.split", "[0.8, 0.1, 0.1]")  # GraphGym's default
    graph(*RANDOM, "dataset.split", "[0.5, 0.25, 0.25]")
    assert "dataset.split" not in caplog.text
