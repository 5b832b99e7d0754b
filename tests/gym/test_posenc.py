"""Encodings of nodes and edges by name: their keys, what is computed, cached or left to batches, their encoders."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.encoding import rrwp as rrwp_file
from graphgps_kmip.encoding.graphormer_bias import shortest_distances
from graphgps_kmip.encoding.laplacian import laplacian_eigenpairs
from graphgps_kmip.encoding.positional_encoding import encoding_parts
from graphgps_kmip.encoding.random_walk import edge_walk_probabilities
from graphgps_kmip.encoding.resistance import edge_resistances, embedding_width, resistance_embedding
from graphgps_kmip.encoding.rrwp import rrwp
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.data_loading import current, enabled_encodings, load_dataset
from graphgps_kmip.gym.network_building import make_plan
from graphgps_kmip.networks.network_stack import edge_encoder, node_encoder
from graphgps_kmip.registry import entries, lookup
from tests.gym.posenc_config import NARROW, ROOT, load, load_config, model_and_batch, sample

pytestmark = pytest.mark.usefixtures("few_digits")


@pytest.mark.usefixtures("small_samples")
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
    expected = features(batch.x)
    assert torch.equal(model.encoder(batch.clone()).x[:, : features.out_features], expected)


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("encoding", ["LapPE", "RWSE"])
def test_an_encoding_may_take_all_columns_and_leaves_none_to_the_features(encoding: str) -> None:
    load(f"LinearNode+{encoding}", "dataset.sample", "True", f"posenc_{encoding}.dim_pe", "32")
    model, batch = model_and_batch()
    encoded = model.eval().encoder(batch.clone()).x
    assert encoded.shape == (batch.num_nodes, 32)
    assert torch.equal(model.encoder(batch.clone().update({"x": batch.x + 1})).x, encoded)


def test_what_is_computed_is_kept_and_used_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    argv = ("dataset.dir", str(tmp_path), "dataset.format", "sklearn", "dataset.name", "digits")
    load("LinearNode+RWSE", *argv)
    first = load_dataset("sklearn", "digits", str(tmp_path)).graphs[5].pestat_RWSE
    assert "RWSE: computing it for 300 graphs" in caplog.text
    caplog.clear()
    load("LinearNode+RWSE", *argv, "posenc_RWSE.dim_pe", "8", "posenc_RWSE.layers", "2")  # shape the encoder only
    assert torch.equal(load_dataset("sklearn", "digits", str(tmp_path)).graphs[5].pestat_RWSE, first)
    assert "computing" not in caplog.text
    load("LinearNode+RWSE", *argv, "posenc_RWSE.kernel.times_func", "range(1, 4)")
    assert load_dataset("sklearn", "digits", str(tmp_path)).graphs[5].pestat_RWSE.shape[1] == 3
    assert len(list((tmp_path / "encodings" / "sklearn-digits").glob("RWSE-*"))) == 2


GRAPHORMER = "LinearNode+GraphormerBias"


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize(
    ("name", "argv", "line"),
    [
        ("LinearNode+LapE", (), "unknown name 'LapE'. Did you mean LapPE"),
        ("Linear+LapPE", (), "unknown name 'Linear'. Did you mean LinearNode"),
        ("LinearNode+LapPE", ("posenc_LapPE.dim_pe", "500"), r"take 500 of \d+ columns: lower their dim_pe"),
        ("LinearNode+RWSE", ("posenc_RWSE.kernel.times_func", "''"), "names no times"),
        ("LinearNode+RWSE", ("posenc_RWSE.kernel.times_func", "list(1)"), r"expected range\(end\)"),
        ("LinearNode+RWSE", ("posenc_RWSE.kernel.times", "[1000000]"), r"each a whole number from 0 to 10000"),
        ("LinearNode+RWSE", ("posenc_RWSEEdge.kernel.times", "[0.5]"), r"times: expected .* whole number"),
        ("LinearNode+LapPE", ("posenc_LapPE.eigen.laplacian_norm", "symm"), "laplacian_norm: expected one of"),
        ("LinearNode+LapPE", ("posenc_LapPE.enable", "False"), r"LapPE needs posenc_LapPE\.enable True"),
        ("LinearNode+ERN", ("posenc_ERN.er_dim", "wide"), "posenc_ERN.er_dim: expected a number, .*got 'wide'"),
        ("LinearNode+ERN", ("posenc_ERN.er_dim", "0"), "posenc_ERN.er_dim: expected a number, .*got '0'"),
        (GRAPHORMER, ("posenc_GraphormerBias.dim_pe", "4"), "dim_pe must be 0, got 4"),
        (GRAPHORMER, ("posenc_GraphormerBias.edge_types", "True"), "needs dataset.edge_encoder_num_types"),
        (GRAPHORMER, ("posenc_GraphormerBias.num_in_degrees", "0"), "num_in_degrees: expected a whole number from 1"),
    ],
)
def test_a_mistake_is_one_line(name: str, argv: tuple[str, ...], line: str) -> None:
    def start() -> None:
        load(name, "dataset.sample", "True", *argv)
        model_and_batch()

    with pytest.raises(ValueError, match=line):
        start()


def test_the_defaults_are_the_public_ones() -> None:
    load("LinearNode")
    assert (cfg.posenc_LapPE.eigen.laplacian_norm, cfg.posenc_LapPE.eigen.max_freqs) == ("sym", 10)
    assert cfg.posenc_ElstaticSE.kernel.times_func == "range(10)"
    assert (cfg.posenc_SignNet.phi_out_dim, cfg.posenc_SignNet.phi_hidden_dim) == (4, 64)
    encodings = [current(spec) for spec in entries("encoding").values() if spec.module.startswith("graphgps_kmip.")]
    assert all(not cfg[each.group].enable for each in encodings)
    assert {each.name: each.width for each in encodings if each.width != 16} == dict.fromkeys(NARROW, 0)
    assert "dim_pe" not in cfg.posenc_EquivStableLapPE
    assert (cfg.posenc_ERN.accuracy, cfg.posenc_ERN.er_dim, cfg.posenc_ERE.accuracy) == (0.1, "none", 0.1)
    assert (cfg.posenc_RWSEEdge.num_global, cfg.posenc_RWSEEdge.global_edge_dropout) == (2, 0.2)
    assert (cfg.posenc_GraphormerBias.dim_pe, cfg.posenc_GraphormerBias.num_spatial_types) == (0, None)


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize(
    ("name", "width"),
    [("ERE", 4), ("ER", 4), ("RWSEEdge", 4), ("DummyEdge+ER", 4), ("DummyEdge+ERE+RWSEEdge", 8)],
)
def test_every_encoding_of_edges_takes_its_columns_beside_their_features(name: str, width: int, tmp_path: Path) -> None:
    load("LinearNode", edges=name)
    batch = sample(tmp_path)
    module = edge_encoder(make_plan(), name, 12)
    out = module(batch.clone()).edge_attr
    assert out.shape == (batch.num_edges, 12)
    assert module[0].encoder.embedding_dim == 12 - width
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_edges_have_their_resistances_and_the_probabilities_of_walks(tmp_path: Path) -> None:
    load("LinearNode", edges="DummyEdge+ERE+RWSEEdge")
    for graph in sample(tmp_path).to_data_list():
        resistances = edge_resistances(graph.edge_index, graph.num_nodes)[:, None].float()
        torch.testing.assert_close(graph.edge_pestat_ERE, resistances)
        walks = edge_walk_probabilities(graph.edge_index, graph.num_nodes, range(1, 21))
        torch.testing.assert_close(graph.edge_pestat_RWSEEdge, walks)


def test_a_batch_norm_is_between_features_and_walks_of_edges_only() -> None:
    load("LinearNode", "dataset.edge_encoder_num_types", "5", edges="TypeDictEdge+RWSEEdge")
    module = edge_encoder(make_plan(), "TypeDictEdge+RWSEEdge", 12)
    assert module[0].encoder.weight.shape == (5, 8)
    assert module[1].norm.module.num_features == 8
    load("LinearNode", edges="DummyEdge+ERE")
    assert isinstance(edge_encoder(make_plan(), "DummyEdge+ERE", 12)[1].norm, nn.Identity)


@pytest.mark.parametrize(
    ("name", "argv", "line"),
    [
        ("DummyEdge+RWSEdge", (), "dataset.edge_encoder_name: unknown name 'RWSEdge'. Did you mean RWSEEdge"),
        ("DummyEdg+ERE", (), "dataset.edge_encoder_name: unknown name 'DummyEdg'. Did you mean DummyEdge"),
        ("DummyEdge+RWSE", (), "dataset.edge_encoder_name: unknown name 'RWSE'"),
        ("DummyEdge+ERE", ("posenc_ERE.dim_pe", "12"), "take 12 of 12 columns: lower their dim_pe"),
        ("DummyEdge+ER", ("posenc_ERE.enable", "False"), r"ER needs posenc_ERE\.enable True"),
    ],
)
def test_a_mistake_in_an_edge_encoder_is_one_line(name: str, argv: tuple[str, ...], line: str) -> None:
    load("LinearNode", *argv, edges=name)
    with pytest.raises(ConfigError, match=line):
        enabled_encodings(cfg), edge_encoder(make_plan(), name, 12)


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


def test_stable_eigenvectors_are_those_of_lappes_laplacian_beside_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    argv = ("posenc_LapPE.eigen.laplacian_norm", "none", "posenc_EquivStableLapPE.eigen.max_freqs", "3")
    load("LinearNode+LapPE+EquivStableLapPE", *argv)
    for graph in sample(tmp_path).to_data_list():
        _, vectors = laplacian_eigenpairs(graph.edge_index, graph.num_nodes, 3, "none")
        torch.testing.assert_close(graph.eigvecs_es.abs(), vectors.abs().float(), rtol=1e-4, atol=1e-5)
        assert graph.EigVecs.shape[1] == 10
    assert "EquivStableLapPE takes posenc_LapPE.eigen.laplacian_norm (none)" in caplog.text


def test_an_encoding_without_columns_leaves_all_of_them_to_the_features(tmp_path: Path) -> None:
    load("LinearNode+GraphormerBias+RWSE")
    batch = sample(tmp_path)
    cfg.share.dim_in = batch.x.size(1)
    module = node_encoder(make_plan(), "LinearNode+GraphormerBias+RWSE", 12)
    assert module[0].encoder.out_features == module[1].in_degree_encoder.embedding_dim == 8
    out = module(batch)
    assert out.pair_attr.shape == (int(batch.ptr.diff().square().sum()), cfg.gt.n_heads)
    distances = [shortest_distances(graph.edge_index, graph.num_nodes) for graph in batch.to_data_list()]
    assert torch.equal(out.spatial_types, torch.cat(distances))


def test_only_degrees_of_graphormer_are_computed_where_only_they_are_asked_for(tmp_path: Path) -> None:
    load("LinearNode+GraphormerBias", "posenc_GraphormerBias.node_degrees_only", "True")
    batch = sample(tmp_path)
    assert "spatial_types" not in batch
    assert "path_types" not in batch
    assert batch.in_degrees.shape == (batch.num_nodes,)


def test_types_on_paths_are_computed_where_they_are_asked_for() -> None:
    argv = ("posenc_GraphormerBias.edge_types", "True", "dataset.edge_encoder_num_types", "7")
    load("LinearNode+GraphormerBias", *argv)
    (encoding,) = enabled_encodings(cfg)
    assert encoding.reads == ("edge_index", "edge_attr")
    edges = torch.tensor([[0, 1], [1, 2]])
    graph = Data(x=torch.ones(3, 1), edge_index=edges, edge_attr=torch.tensor([[4], [6]]), num_nodes=3)
    assert encoding.compute([graph])[0]["path_types"][2].tolist() == [4, 6, -1]  # from node 0 to node 2; 3 = 4 - 1
    cfg.share.dim_in = 1
    module = node_encoder(make_plan(), "LinearNode+GraphormerBias", 12)[1]
    assert module.edge_encoder.num_embeddings == 7
    assert module.place_encoder.shape == (4 * cfg.gt.n_heads**2, 1)


GROUP = "posenc_RRWP"


def loaded(tmp_path: Path, *argv: str) -> GraphDataset:
    file = ROOT / "configs" / "quickstart" / "digits-kmip.yaml"
    load_config(cfg, file, [f"{GROUP}.enable", "True", f"{GROUP}.ksteps", "3", *argv])
    cfg.dataset.sample, cfg.dataset.dir = True, str(tmp_path)
    return load_dataset("sklearn", "digits", str(tmp_path))


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_precomputed_values_have_the_precision_of_the_config(tmp_path: Path, precision: str) -> None:
    graph = loaded(tmp_path, f"{GROUP}.precision", precision).graphs[0]
    walks = current(lookup("encoding", "RRWP"))
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
