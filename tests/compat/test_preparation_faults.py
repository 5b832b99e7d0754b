"""Faults of Graphormer's encodings, expander graphs and reverse edges: chosen by keys, unknown to the operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.compat.preparation_faults import (
    RAW,
    PaddedPathsEncoder,
    PublicExpander,
    PublicGraphormerBias,
    UnmovedEdgesToken,
    raw_spectral_value,
    with_every_edge_reversed,
)
from graphgps_kmip.data.transductive import with_reverse_edges
from graphgps_kmip.encoding import Expander, GraphormerBias
from graphgps_kmip.encoding.expander_graph import Expansion, expander_edges, expander_generator, spectral_value
from graphgps_kmip.encoding.graphormer_bias import GraphormerEncoder, GraphToken
from graphgps_kmip.encoding.positional_encoding import own_options
from graphgps_kmip.gym.config.config_loading import load_config
from graphgps_kmip.gym.running.data_loading import load_configured
from graphgps_kmip.registry import lookup
from tests.processes import python

ROOT = Path(__file__).parents[2]
ROWS = {"num_spatial_types": 4, "num_in_degrees": 3, "num_out_degrees": 3, "num_edge_types": 2}
FAULTS = {"pad_paths": False, "move_edges": True}
EDGES = [(0, 1), (1, 0), (1, 2), (3, 3)]  # node 4 has none


def test_the_options_are_those_of_the_encoding_and_of_its_faults() -> None:
    assert own_options(PublicGraphormerBias) == own_options(GraphormerBias) | FAULTS
    assert PublicGraphormerBias.__doc__ == GraphormerBias.__doc__
    assert lookup("encoding", "GraphormerBias").component is PublicGraphormerBias
    assert {one.name for one in fields(PublicExpander)} - {one.name for one in fields(Expander)} == {"raw"}


@pytest.mark.parametrize("operator", [GraphormerBias, GraphormerEncoder, GraphToken, Expander, Expander.compute])
def test_no_operator_has_an_option_for_a_fault(operator: Any) -> None:
    assert not {*FAULTS, "raw"} & signature(operator).parameters.keys()


@pytest.mark.parametrize("function", [expander_edges, spectral_value, with_reverse_edges])
def test_no_function_has_an_option_for_a_fault(function: Any) -> None:
    assert "raw" not in signature(function).parameters


@pytest.mark.parametrize("pad_paths", [False, True])
@pytest.mark.parametrize("move_edges", [False, True])
def test_an_encoding_chooses_its_modules_by_its_faults(pad_paths: bool, move_edges: bool) -> None:
    given = {**ROWS, "use_graph_token": True}
    clean = GraphormerBias(**given)
    encoding = PublicGraphormerBias(name="GraphormerBias", **given, pad_paths=pad_paths, move_edges=move_edges)
    encoder, token = encoding.encoder(8, 5)
    assert type(encoder) is (PaddedPathsEncoder if pad_paths else GraphormerEncoder)
    assert type(token) is (GraphToken if move_edges else UnmovedEdgesToken)
    names = [list(one.encoder(8, 5).state_dict()) for one in (clean, encoding)]
    assert names[0] == names[1]
    assert encoding.settings() == clean.settings()  # the values on disk serve both
    assert (encoding.reads, encoding.version, encoding.name) == (clean.reads, clean.version, clean.name)


def test_the_transform_finds_graphormers_encoding_without_the_public_codes() -> None:
    code = "from graphgps_kmip.encoding import AddEncoding\nprint(AddEncoding('GraphormerBias').encoding)"
    found = python("-c", code)
    assert found.stdout.startswith("GraphormerBias("), found.stderr


def test_a_token_that_moves_no_edges_moves_all_else() -> None:
    graphs = [Data(x=torch.randn(n, 5), edge_index=torch.tensor(EDGES[:3]).T, num_nodes=n) for n in (5, 3)]
    right, wrong = GraphToken(5, None), UnmovedEdgesToken(5, None)
    wrong.load_state_dict(right.state_dict())
    before = Batch.from_data_list(graphs)
    one, other = (token(before.clone()) for token in (right, wrong))
    assert torch.equal(other.edge_index, before.edge_index)
    assert torch.equal(one.edge_index, before.edge_index + torch.tensor([1, 1, 1, 2, 2, 2]))
    for name in ("x", "batch", "ptr"):
        assert torch.equal(one[name], other[name])


@pytest.mark.parametrize("raw", [False, True])
def test_the_expander_encoding_draws_by_seed_and_graph_as_its_function(raw: bool) -> None:
    graph = Data(num_nodes=30, graph_id=4)
    encoding = PublicExpander(name="Expander", deg=3, seed=2, raw=raw)
    (found,) = encoding.attributes([graph], encoding.settings())
    expected = expander_edges(30, 3, rng=expander_generator(2, 4), expansion=RAW if raw else Expansion())
    assert torch.equal(found["expander_edge_index"], expected)
    assert encoding.settings() == {"deg": 3, "algorithm": "Random-d", "max_num_iters": 100, "raw": raw, "seed": 2}


def test_loops_let_a_graph_in_pieces_pass_the_raw_test() -> None:
    node = torch.arange(12)
    loops = torch.stack([node, node]).repeat(1, 2)
    pair = torch.tensor([[0, 1], [1, 0]])
    edges = torch.cat([loops, *(pair + 2 * i for i in range(6))], 1).numpy()
    assert spectral_value(edges, 12) == 0.0
    assert raw_spectral_value(edges, 12) > 1


def graph(edge_attr: Tensor | None) -> Data:
    return Data(x=torch.zeros(5, 1), edge_index=torch.tensor(EDGES).T, edge_attr=edge_attr)


@pytest.mark.parametrize("edge_attr", [None, torch.tensor([[1.0], [3.0], [5.0], [7.0]])], ids=["without", "with"])
def test_every_edge_is_reversed_even_where_it_is_there_both_ways(edge_attr: Tensor | None) -> None:
    given = graph(edge_attr)
    found = with_every_edge_reversed(given)
    assert found.edge_index.T.tolist() == [list(pair) for pair in (*EDGES, *(pair[::-1] for pair in EDGES))]
    assert found.edge_attr is None or found.edge_attr.flatten().tolist() == [1, 3, 5, 7] * 2
    assert given.edge_index.T.tolist() == [list(pair) for pair in EDGES], "the graph itself has changed"


@pytest.fixture
def ours(small_samples: None) -> Iterator[None]:  # noqa: ARG001
    yield
    cfg.defrost()


def loaded(file: str, *words: str) -> Data:
    load_config(cfg, ROOT / "configs" / file, ["dataset.sample", "True", *words])
    return load_configured().dataset.graphs[0]


def test_the_keys_of_prep_choose_the_faults(ours: None) -> None:  # noqa: ARG001
    words = ("prep.exp", "True", "prep.exp_deg", "3", "seed", "5")
    for raw, expansion in ((True, RAW), (False, Expansion())):
        one = loaded("quickstart/digits-kmip.yaml", *words, "prep.exp_raw", str(raw))
        expected = expander_edges(one.num_nodes, 3, rng=expander_generator(5, 0), expansion=expansion)
        assert torch.equal(one.expander_edge_index, expected)
    cora = "Citation/cora-gcn.yaml"
    clean = loaded(cora, "prep.add_reverse_edges", "False")
    twice = loaded(cora, "prep.raw_reverse_edges", "True")
    assert torch.equal(twice.edge_index, with_every_edge_reversed(clean).edge_index)
    once = loaded(cora, "prep.add_reverse_edges", "True")
    assert torch.equal(once.edge_index, with_reverse_edges(clean).edge_index)
    assert once.num_edges < twice.num_edges
