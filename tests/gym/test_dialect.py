"""Dialects and quirks: named values below what a file says, and keys as they were meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.gym.dialect import DIALECTS, QUIRKS
from graphgps_kmip.gym.errors import ConfigError
from graphgps_kmip.gym.load import flatten, load_config

HEAD = "dataset: {format: sklearn, name: digits}\n"


def load(tmp_path: Path, text: str, *words: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(HEAD + text)
    load_config(cfg, file, list(words))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_sets_its_values(dialect: str, tmp_path: Path) -> None:
    load(tmp_path, f"dialect: {dialect}\n")
    values = dict(flatten(cfg))
    assert {key: values[key] for key in DIALECTS[dialect]} == DIALECTS[dialect]


@pytest.mark.parametrize("quirk", QUIRKS)
def test_a_quirk_sets_its_values(quirk: str, tmp_path: Path) -> None:
    load(tmp_path, f"quirks: [{quirk}]\n")
    values = dict(flatten(cfg))
    assert {key: values[key] for key in QUIRKS[quirk]} == QUIRKS[quirk]


def test_what_a_file_and_the_command_line_say_wins(tmp_path: Path) -> None:
    text = "dialect: kmip\nquirks: [kmip_no_mask]\ngt: {gatedgcn: {residual: true}, kmip: {pad_keys: false}}\n"
    load(tmp_path, text)
    assert cfg.gt.gatedgcn.residual
    assert not cfg.gt.kmip.pad_keys
    assert cfg.gt.kmip.head_agg == "Linear"
    load(tmp_path, text, "gt.kmip.head_agg", "none", "dialect", "graphgps")
    assert cfg.gt.kmip.head_agg == "none"
    assert not cfg.optim.accumulation_mean


def test_layer_norm_means_what_the_code_of_the_dialect_made_of_it(tmp_path: Path) -> None:
    norms = "gt: {batch_norm: false, layer_norm: true}\n"
    for dialect, graph in (("graphgps", False), ("kmip", False), ("kmip-thesis", True), ("exphormer", True)):
        load(tmp_path, f"dialect: {dialect}\n{norms}")
        assert (cfg.gt.graph_norm, cfg.gt.layer_norm) == (graph, not graph)


def test_the_multimodel_of_the_kmip_code_is_that_of_exphormer(tmp_path: Path) -> None:
    text = "dialect: kmip\nmodel: {type: MultiModel}\ngt: {batch_norm: false, layer_norm: true}\n"
    load(tmp_path, text)
    assert cfg.gt.gatedgcn.residual
    assert (cfg.gt.graph_norm, cfg.gt.layer_norm) == (True, False)
    load(tmp_path, text, "model.type", "GPSModel")
    assert not cfg.gt.gatedgcn.residual
    assert cfg.gt.layer_norm


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_config_that_was_written_loads_as_itself(dialect: str, tmp_path: Path) -> None:
    load(tmp_path, f"dialect: {dialect}\ngt: {{batch_norm: false, layer_norm: true}}\nquirks: [kmip_no_mask]\n")
    before, written = dict(flatten(cfg)), tmp_path / "written.yaml"
    written.write_text(cfg.dump())
    load_config(cfg, written, [])
    assert dict(flatten(cfg)) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dialect: kmipp\n", "dialect.*kmip"),
        ("quirks: [kmip_nomask]\n", "quirks.*kmip_no_mask"),
    ],
)
def test_an_unknown_name_gets_its_near_misses(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_every_dialect_and_quirk_stands_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "differences.md").read_text()
    assert all(f"`{name}`" in text for name in (*DIALECTS, *QUIRKS))
