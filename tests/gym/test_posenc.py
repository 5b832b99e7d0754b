"""Encodings by name: their keys, what is computed and kept, and the node encoders that they make."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.encoding.positional_encoding import encoding_parts
from graphgps_kmip.encoding.random_walk import Times
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.data_loading import load_dataset
from graphgps_kmip.gym.posenc import current, enabled_encodings
from graphgps_kmip.registry import entries
from tests.gym.posenc_config import NARROW, load, model_and_batch

pytestmark = pytest.mark.usefixtures("few_digits", "small_samples")


@pytest.fixture(autouse=True)
def config() -> Iterator[None]:
    yield
    cfg.defrost()


@pytest.mark.parametrize(
    "name",
    [
        *encoding_parts(),
        "LinearNode+LapPE",
        "LinearNode+LapPE+RWSE",
        "LinearNode+RWSE+HKdiagSE",
        "LinearNode+GraphormerBias+LapPE",
        "LinearNode+EquivStableLapPE+LapPE",
        "LinearNode+ERN+Degree+LDP",
    ],
)
def test_every_encoding_takes_its_columns_beside_the_features(name: str, tmp_path: Path) -> None:
    load(name, "dataset.sample", "True", "dataset.dir", str(tmp_path))
    model, batch = model_and_batch()
    encoded = model.encoder(batch.clone())
    assert encoded.x.shape == (batch.num_nodes, cfg.gnn.dim_inner)
    total = encoded.x.sum()
    total = total + encoded.pair_attr.sum() if "pair_attr" in encoded else total
    total = total + encoded.pe_EquivStableLapPE.sum() if "pe_EquivStableLapPE" in encoded else total
    total.backward()
    assert all(parameter.grad is not None for parameter in model.encoder.node.parameters())


def test_the_features_keep_the_columns_that_encodings_leave() -> None:
    load("LinearNode+LapPE+RWSE", "dataset.sample", "True")
    model, batch = model_and_batch()
    features = model.encoder.node[0].encoder
    assert features.out_features == cfg.gnn.dim_inner - 8
    wanted = features(batch.x)
    assert torch.equal(model.encoder(batch.clone()).x[:, : features.out_features], wanted)


@pytest.mark.parametrize("encoding", ["LapPE", "RWSE"])
def test_an_encoding_may_take_all_columns_and_leaves_none_to_the_features(encoding: str) -> None:
    load(f"LinearNode+{encoding}", "dataset.sample", "True", f"posenc_{encoding}.dim_pe", "32")
    model, batch = model_and_batch()
    encoded = model.eval().encoder(batch.clone()).x
    assert encoded.shape == (batch.num_nodes, 32)
    assert torch.equal(model.encoder(batch.clone().update({"x": batch.x + 1})).x, encoded)


def test_what_is_computed_is_kept_and_used_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    words = ("dataset.dir", str(tmp_path), "dataset.format", "sklearn", "dataset.name", "digits")
    load("LinearNode+RWSE", *words)
    first = load_dataset("sklearn", "digits", str(tmp_path)).graphs[5].pestat_RWSE
    assert "RWSE: computing it for 300 graphs" in caplog.text
    caplog.clear()
    load("LinearNode+RWSE", *words, "posenc_RWSE.dim_pe", "8", "posenc_RWSE.layers", "2")  # shape the encoder only
    assert torch.equal(load_dataset("sklearn", "digits", str(tmp_path)).graphs[5].pestat_RWSE, first)
    assert "computing" not in caplog.text
    load("LinearNode+RWSE", *words, "posenc_RWSE.kernel.times_func", "range(1, 4)")
    assert load_dataset("sklearn", "digits", str(tmp_path)).graphs[5].pestat_RWSE.shape[1] == 3
    assert len(list((tmp_path / "encodings" / "sklearn-digits").glob("RWSE-*"))) == 2


@pytest.mark.parametrize(
    ("name", "words", "line"),
    [
        ("LinearNode+LapE", (), "unknown name 'LapE'. Did you mean LapPE"),
        ("Linear+LapPE", (), "unknown name 'Linear'. Did you mean LinearNode"),
        ("LinearNode+LapPE", ("posenc_LapPE.dim_pe", "500"), r"take 500 of \d+ columns: lower their dim_pe"),
        ("LinearNode+RWSE", ("posenc_RWSE.kernel.times_func", "''"), "names no times"),
        ("LinearNode+RWSE", ("posenc_RWSE.kernel.times_func", "list(1)"), r"expected range\(end\)"),
        (
            "LinearNode+RWSE",
            ("posenc_RWSE.kernel.times", "[1.5, 2]"),
            r"RWSE.kernel.times: expected .* whole number from",
        ),
        ("LinearNode+RWSE", ("posenc_RWSE.kernel.times", "[1000000]"), r"each a whole number from 0 to 10000"),
        (
            "LinearNode+RWSE",
            ("posenc_RWSEEdge.kernel.times", "[0.5]"),
            r"RWSEEdge.kernel.times: expected .* whole number",
        ),
        ("LinearNode+LapPE", ("posenc_LapPE.eigen.laplacian_norm", "symm"), "laplacian_norm: expected one of"),
    ],
)
def test_a_mistake_is_one_line(name: str, words: tuple[str, ...], line: str) -> None:
    def start() -> None:
        load(name, "dataset.sample", "True", *words)
        model_and_batch()

    with pytest.raises(ValueError, match=line):
        start()


def test_an_encoder_whose_block_is_off_is_refused() -> None:
    load("LinearNode+LapPE", enable=False)
    with pytest.raises(ConfigError, match=r"LapPE needs posenc_LapPE\.enable True"):
        enabled_encodings(cfg)


@pytest.mark.parametrize(
    ("kernel", "wanted"),
    [
        ({"times": [], "times_func": "range(3)"}, [0, 1, 2]),
        ({"times": [], "times_func": "range(1,17)"}, list(range(1, 17))),
        ({"times": [2, 5], "times_func": ""}, [2, 5]),
        ({"times": [9], "times_func": "range(1, 3)"}, [1, 2]),
    ],
)
def test_the_times_of_a_kernel_are_a_list_or_a_range(kernel: dict[str, Any], wanted: list[int]) -> None:
    assert Times(**kernel).numbers("posenc_RWSE") == wanted


def test_the_public_defaults_stand() -> None:
    load("LinearNode")
    assert (cfg.posenc_LapPE.eigen.laplacian_norm, cfg.posenc_LapPE.eigen.max_freqs) == ("sym", 10)
    assert cfg.posenc_ElstaticSE.kernel.times_func == "range(10)"
    assert (cfg.posenc_SignNet.phi_out_dim, cfg.posenc_SignNet.phi_hidden_dim) == (4, 64)
    known = [current(spec) for spec in entries("encoding").values() if spec.module.startswith("graphgps_kmip.")]
    assert all(not cfg[one.group].enable for one in known)
    assert {one.name: one.width for one in known if one.width != 16} == dict.fromkeys(NARROW, 0)
    assert "dim_pe" not in cfg.posenc_EquivStableLapPE
    assert (cfg.posenc_ERN.accuracy, cfg.posenc_ERN.er_dim, cfg.posenc_ERE.accuracy) == (0.1, "none", 0.1)
    assert (cfg.posenc_RWSEEdge.num_global, cfg.posenc_RWSEEdge.global_edge_dropout) == (2, 0.2)
    assert (cfg.posenc_GraphormerBias.dim_pe, cfg.posenc_GraphormerBias.num_spatial_types) == (0, None)
