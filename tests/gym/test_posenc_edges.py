"""Encodings of edges by name: what is computed of them, and the encoders that they make."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.encoding.random_walk import edge_walk_probabilities
from graphgps_kmip.encoding.resistance import edge_resistances
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.network_building import current_plan
from graphgps_kmip.gym.posenc import enabled_encodings
from graphgps_kmip.networks.encoder_builders import edge_encoder
from tests.gym.posenc_config import load, model_and_batch, sample

pytestmark = pytest.mark.usefixtures("few_digits", "small_samples")


@pytest.fixture(autouse=True)
def config() -> Iterator[None]:
    yield
    cfg.defrost()


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("ERE", 4),
        ("ER", 4),
        ("RWSEEdge", 4),
        ("DummyEdge+ER", 4),
        ("DummyEdge+RWSEEdge", 4),
        ("DummyEdge+ERE+RWSEEdge", 8),
    ],
)
def test_every_encoding_of_edges_takes_its_columns_beside_their_features(name: str, width: int, tmp_path: Path) -> None:
    load("LinearNode", edges=name)
    batch = sample(tmp_path)
    module = edge_encoder(current_plan(), name, 12)
    out = module(batch.clone()).edge_attr
    assert out.shape == (batch.num_edges, 12)
    assert module[0].encoder.embedding_dim == 12 - width
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_edges_carry_their_resistances_and_the_probabilities_of_walks(tmp_path: Path) -> None:
    load("LinearNode", edges="DummyEdge+ERE+RWSEEdge")
    for graph in sample(tmp_path).to_data_list():
        resistances = edge_resistances(graph.edge_index, graph.num_nodes)[:, None].float()
        torch.testing.assert_close(graph.edge_pestat_ERE, resistances)
        walks = edge_walk_probabilities(graph.edge_index, graph.num_nodes, range(1, 21))
        torch.testing.assert_close(graph.edge_pestat_RWSEEdge, walks)


def test_features_of_edges_are_mapped_beside_an_encoding_where_there_are_some() -> None:
    load("LinearNode", edges="ERE")
    cfg.dataset.edge_dim = 3
    assert edge_encoder(current_plan(), "ERE", 12)[0].encoder.in_features == 3


def test_a_batch_norm_stands_between_features_and_walks_of_edges_only() -> None:
    load("LinearNode", "dataset.edge_encoder_num_types", "5", edges="TypeDictEdge+RWSEEdge")
    module = edge_encoder(current_plan(), "TypeDictEdge+RWSEEdge", 12)
    assert module[0].encoder.weight.shape == (5, 8)
    assert module[1].norm.module.num_features == 8
    load("LinearNode", edges="DummyEdge+ERE")
    assert isinstance(edge_encoder(current_plan(), "DummyEdge+ERE", 12)[1].norm, nn.Identity)


@pytest.mark.parametrize(
    ("name", "words", "line"),
    [
        ("DummyEdge+RWSEdge", (), "dataset.edge_encoder_name: unknown name 'RWSEdge'. Did you mean RWSEEdge"),
        ("DummyEdg+ERE", (), "dataset.edge_encoder_name: unknown name 'DummyEdg'. Did you mean DummyEdge"),
        ("DummyEdge+RWSE", (), "dataset.edge_encoder_name: unknown name 'RWSE'"),
        ("DummyEdge+ERE", ("posenc_ERE.dim_pe", "12"), "take 12 of 12 columns: lower their dim_pe"),
    ],
)
def test_a_mistake_in_an_edge_encoder_is_one_line(name: str, words: tuple[str, ...], line: str) -> None:
    load("LinearNode", *words, edges=name)
    with pytest.raises(ConfigError, match=line):
        edge_encoder(current_plan(), name, 12)


def test_an_edge_encoder_whose_block_is_off_is_refused() -> None:
    load("LinearNode", enable=False, edges="DummyEdge+ER")
    with pytest.raises(ConfigError, match=r"dataset.edge_encoder_name: ER needs posenc_ERE\.enable True"):
        enabled_encodings(cfg)


def test_a_model_reads_composed_edge_features(tmp_path: Path) -> None:
    load("LinearNode", "dataset.sample", "True", "dataset.dir", str(tmp_path), edges="DummyEdge+RWSEEdge")
    model, batch = model_and_batch()
    pred, _ = model(batch)
    pred.sum().backward()
    assert bool(model.encoder.edge[1].encoder.pe_encoder.weight.grad.any())
