"""RRWP in a config: values on disk or in batches, as their size over the data set decides; their precision."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.encoding import rrwp as rrwp_file
from graphgps_kmip.encoding.rrwp import rrwp
from graphgps_kmip.gym.data_loading import load_dataset
from graphgps_kmip.gym.posenc import current
from graphgps_kmip.registry import lookup
from tests.gym.posenc_config import ROOT, load_config

GROUP = "posenc_RRWP"


@pytest.fixture(autouse=True)
def config() -> Iterator[None]:
    yield
    cfg.defrost()


def loaded(tmp_path: Path, *words: str) -> GraphDataset:
    """Return the sample of the digits as a config with RRWP loads it."""
    file = ROOT / "configs" / "quickstart" / "digits-kmip.yaml"
    load_config(cfg, file, [f"{GROUP}.enable", "True", f"{GROUP}.ksteps", "3", *words])
    cfg.dataset.sample, cfg.dataset.dir = True, str(tmp_path)
    return load_dataset("sklearn", "digits", str(tmp_path))


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_precomputed_values_have_the_precision_of_the_config(tmp_path: Path, precision: str) -> None:
    graph = loaded(tmp_path, f"{GROUP}.precision", precision).graphs[0]
    walks = current(lookup("encoding", "RRWP")).walks
    assert graph.rrwp.dtype == walks.dtype == getattr(torch, precision)
    assert torch.equal(graph.rrwp, rrwp(graph.edge_index, graph.num_nodes, walks))
    assert cfg.share.rrwp_in_batch == 0


@pytest.mark.usefixtures("small_samples")
def test_values_that_are_too_many_to_store_are_left_to_the_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rrwp_file, "CACHE_BYTES", 1000)
    assert "rrwp" not in loaded(tmp_path).graphs[0]
    assert cfg.share.rrwp_in_batch == 1
    assert current(lookup("encoding", "RRWP")).computed_in_batch
    assert "rrwp" in loaded(tmp_path, f"{GROUP}.where", "cache").graphs[0]
    monkeypatch.undo()
    assert "rrwp" not in loaded(tmp_path, f"{GROUP}.where", "batch").graphs[0]
    assert "rrwp" in loaded(tmp_path).graphs[0]
