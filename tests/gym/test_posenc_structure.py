"""Structural encodings by name: widths, settings and options that decide what is computed of each graph."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.encoding.degree import local_degree_profile, out_degrees
from graphgps_kmip.encoding.graphormer_bias import shortest_distances
from graphgps_kmip.encoding.laplacian import laplacian_eigenpairs
from graphgps_kmip.encoding.resistance import embedding_width, resistance_embedding
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.data_loading import load_dataset
from graphgps_kmip.gym.network_building import current_plan
from graphgps_kmip.gym.posenc import current, enabled_encodings
from graphgps_kmip.networks.encoder_builders import node_encoder
from graphgps_kmip.registry import entries
from tests.gym.posenc_config import load, sample

pytestmark = pytest.mark.usefixtures("few_digits")


@pytest.fixture(autouse=True)
def config() -> Iterator[None]:
    yield
    cfg.defrost()


def test_the_width_of_resistance_embeddings_is_that_of_the_largest_graph(tmp_path: Path) -> None:
    load("LinearNode+ERN", "dataset.sample", "True", "dataset.dir", str(tmp_path))
    graphs = load_dataset("sklearn", "digits", str(tmp_path)).graphs
    widths = [embedding_width(graph.num_nodes, graph.num_edges, 0.1) for graph in graphs]
    assert min(widths) < max(widths)
    assert cfg.posenc_ERN.er_dim == "none"  # the config hash of a run must not change when its data is loaded
    assert cfg.share.dim_er == max(widths)
    for graph, width in zip(graphs, widths, strict=True):
        assert graph.pestat_ERN.shape == (graph.num_nodes, max(widths))
        assert bool(graph.pestat_ERN[:, :width].any(dim=0).all())
        assert not graph.pestat_ERN[:, width:].any()


def test_resistance_embeddings_follow_seed_and_graph_and_keep_to_a_given_width() -> None:
    def embedded(seed: int, number: int) -> torch.Tensor:
        load("LinearNode+ERN", "posenc_ERN.er_dim", "3", "seed", str(seed))
        (encoding,) = enabled_encodings(cfg)
        assert encoding.random
        graph = Data(edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), num_nodes=9, graph_id=number)
        return encoding.compute([graph])[0]["pestat_ERN"]

    first = embedded(0, 0)
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    assert torch.equal(first, resistance_embedding(edges, 9, 3, np.random.default_rng([0, 0])))  # 5 without a bound
    assert torch.equal(embedded(0, 0), first)
    assert not torch.equal(embedded(1, 0), first)
    assert not torch.equal(embedded(0, 1), first)


@pytest.mark.parametrize(("value", "line"), [("wide", "got 'wide'"), ("none", "got 'none'"), ("0", "got '0'")])
def test_a_width_that_is_no_number_is_refused(value: str, line: str) -> None:
    load("LinearNode+ERN", "posenc_ERN.er_dim", value)
    with pytest.raises(ConfigError, match=f"posenc_ERN.er_dim: expected a number, .*{line}"):
        enabled_encodings(cfg)


def test_stable_eigenvectors_are_those_of_lappes_laplacian_beside_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    words = ("posenc_LapPE.eigen.laplacian_norm", "none", "posenc_EquivStableLapPE.eigen.max_freqs", "3")
    load("LinearNode+LapPE+EquivStableLapPE", *words)
    for graph in sample(tmp_path).to_data_list():
        _, vectors = laplacian_eigenpairs(graph.edge_index, graph.num_nodes, 3, "none")
        torch.testing.assert_close(graph.eigvecs_es.abs(), vectors.abs().float(), rtol=1e-4, atol=1e-5)
        assert graph.EigVecs.shape[1] == 10
    assert "EquivStableLapPE takes posenc_LapPE.eigen.laplacian_norm (none)" in caplog.text


def test_an_encoding_without_columns_leaves_all_of_them_to_the_features(tmp_path: Path) -> None:
    load("LinearNode+GraphormerBias+RWSE")
    batch = sample(tmp_path)
    cfg.share.dim_in = batch.x.size(1)
    module = node_encoder(current_plan(), "LinearNode+GraphormerBias+RWSE", 12)
    assert module[0].encoder.out_features == module[1].in_degree_encoder.embedding_dim == 8
    out = module(batch)
    assert out.pair_attr.shape == (int(batch.ptr.diff().square().sum()), cfg.gt.n_heads)
    distances = [shortest_distances(graph.edge_index, graph.num_nodes) for graph in batch.to_data_list()]
    assert torch.equal(out.spatial_types, torch.cat(distances))


def test_nodes_carry_their_degree_and_their_profile(tmp_path: Path) -> None:
    load("LinearNode+Degree+LDP")
    for graph in sample(tmp_path).to_data_list():
        assert torch.equal(graph.pestat_Degree, out_degrees(graph.edge_index, graph.num_nodes))
        assert torch.equal(graph.pestat_LDP, local_degree_profile(graph.edge_index, graph.num_nodes))


def test_only_degrees_of_graphormer_are_computed_where_only_they_are_asked_for(tmp_path: Path) -> None:
    load("LinearNode+GraphormerBias", "posenc_GraphormerBias.node_degrees_only", "True")
    batch = sample(tmp_path)
    assert "spatial_types" not in batch
    assert "path_types" not in batch
    assert batch.in_degrees.shape == (batch.num_nodes,)


def test_types_on_paths_are_computed_where_they_are_asked_for() -> None:
    words = ("posenc_GraphormerBias.edge_types", "True", "dataset.edge_encoder_num_types", "7")
    load("LinearNode+GraphormerBias", *words)
    (encoding,) = enabled_encodings(cfg)
    assert encoding.reads == ("edge_index", "edge_attr")
    edges = torch.tensor([[0, 1], [1, 2]])
    graph = Data(x=torch.ones(3, 1), edge_index=edges, edge_attr=torch.tensor([[4], [6]]), num_nodes=3)
    assert encoding.compute([graph])[0]["path_types"][2].tolist() == [4, 6, -1]  # from node 0 to node 2; 3 = 4 - 1
    cfg.share.dim_in = 1
    module = node_encoder(current_plan(), "LinearNode+GraphormerBias", 12)[1]
    assert module.edge_encoder.num_embeddings == 7
    assert module.place_encoder.shape == (4 * cfg.gt.n_heads**2, 1)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("posenc_GraphormerBias.dim_pe", "4"), "dim_pe must be 0, got 4"),
        (("posenc_GraphormerBias.edge_types", "True"), "needs dataset.edge_encoder_num_types"),
        (("posenc_GraphormerBias.num_in_degrees", "0"), "num_in_degrees: expected a whole number from 1"),
    ],
)
def test_a_mistake_in_graphormers_block_is_one_line(words: tuple[str, ...], line: str) -> None:
    def start() -> None:
        load("LinearNode+GraphormerBias", *words)
        current(entries("encoding")["GraphormerBias"]).encoder(12, None)

    with pytest.raises(ValueError, match=line):
        start()
