"""Encodings without GraphGym: the transform against the mathematics, mistakes in options, networks that read them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Batch, Data

from graphgps_kmip import create_model
from graphgps_kmip.encoding import AddEncoding
from graphgps_kmip.encoding.laplacian import laplacian_eigenpairs
from graphgps_kmip.encoding.positional_encoding import PositionalEncoding
from graphgps_kmip.encoding.random_walk import return_probabilities
from graphgps_kmip.errors import ConfigError, InputError
from graphgps_kmip.registry import entries

GRAPHS = [
    Data(x=torch.ones(5, 3), edge_index=torch.tensor([[0, 1, 2, 3, 1, 2, 3, 0], [1, 2, 3, 0, 0, 1, 2, 3]])),
    Data(x=torch.ones(3, 3), edge_index=torch.tensor([[0, 1], [1, 0]])),
]


OPTIONS = {"RWSE": {"kernel": {"times": [1, 3]}}, "HKdiagSE": {"kernel": {"times": [2]}}, "ERN": {"er_dim": "2"}}


@pytest.mark.parametrize("name", sorted(entries("encoding")))
def test_values_of_a_graph_depend_on_no_other_graph_and_leave_it_as_it_is(name: str) -> None:
    empty = torch.empty(2, 0, dtype=torch.long)
    graphs = [*GRAPHS, *(Data(x=torch.ones(size, 3), edge_index=empty) for size in (1, 4))]
    for number, graph in enumerate(graphs):
        graph.graph_id = number
    before = [dict(graph.to_dict()) for graph in graphs]
    encoding = AddEncoding(name, **OPTIONS.get(name, {})).encoding
    together = encoding.attributes(graphs, encoding.settings())
    for graph, values in zip(graphs, together, strict=True):
        (alone,) = encoding.attributes([graph], encoding.settings())
        assert alone.keys() == values.keys()
        for key, value in values.items():
            torch.testing.assert_close(value, alone[key], rtol=1e-6, atol=1e-6, equal_nan=True)
    for graph, attributes in zip(graphs, before, strict=True):
        assert graph.to_dict().keys() == attributes.keys()
        assert torch.equal(graph.edge_index, attributes["edge_index"])


def test_a_transform_adds_what_the_mathematics_says() -> None:
    graph = AddEncoding("RWSE", kernel={"times": [1, 3]})(GRAPHS[0])
    assert torch.equal(graph.pestat_RWSE, return_probabilities(graph.edge_index, 5, [1, 3]))
    graph = AddEncoding("LapPE", eigen={"max_freqs": 4, "laplacian_norm": "none"})(GRAPHS[0])
    values, vectors = laplacian_eigenpairs(graph.edge_index, 5, 4, "none")
    torch.testing.assert_close(graph.EigVals[:, :, 0], values.float().expand(5, 4), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(graph.EigVecs.abs(), vectors.abs().float(), rtol=1e-6, atol=1e-6)
    assert AddEncoding("ER")(GRAPHS[0]).edge_pestat_ERE.shape == (8, 1)
    assert "EigVecs" not in GRAPHS[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eigen": {"max_freq": 4}}, r"posenc_LapPE\.eigen\.max_freq: unknown option\. Did you mean max_freqs"),
        ({"eigen": {"max_freqs": 0}}, r"posenc_LapPE\.eigen\.max_freqs: expected a whole number from 1"),
        ({"eigen": 4}, r"posenc_LapPE\.eigen: expected a group of options, laplacian_norm, eigvec_norm, max_freqs"),
        ({"eigen": {"laplacian_norm": "symm"}}, "laplacian_norm: expected one of none, sym, rw"),
    ],
)
def test_a_mistake_in_the_options_of_a_transform_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AddEncoding("LapPE", **options)


@pytest.mark.parametrize(
    ("name", "settings", "options"),
    [
        ("RWSE", {"kernel.times_func": "range(1, 5)", "model": "Linear"}, {"kernel": {"times_func": "range(1, 5)"}}),
        ("LapPE", {"model": "DeepSet", "eigen.max_freqs": 3}, {"eigen": {"max_freqs": 3}}),
        ("Degree", {"max_degree": 4}, {}),
        ("ERN", {"er_dim": "2", "model": "mlp"}, {"er_dim": "2"}),
    ],
)
def test_a_network_made_from_keyword_arguments_reads_an_encoding(
    name: str, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    batch = Batch.from_data_list([AddEncoding(name, **options)(graph) for graph in GRAPHS])
    keys = {f"posenc_{name}.{key}": value for key, value in (settings | {"dim_pe": 4}).items()}
    model = create_model("GCN", 3, 2, num_layers=1, dim=12, node_encoder=f"LinearNode+{name}", settings=keys)
    pred, _ = model(batch)
    assert pred.shape == (2, 2)
    pred.sum().backward()
    assert any(bool(parameter.grad.any()) for parameter in model.encoder.node[1].parameters())


def test_an_encoding_that_lacks_its_mathematics_or_its_module_says_what_to_define() -> None:
    class Empty(PositionalEncoding):
        """Nothing yet."""

    with pytest.raises(InputError, match="no static method compute.*define it"):
        Empty().attributes([Data(num_nodes=2)], {})
    with pytest.raises(InputError, match="Empty has no method encoder.*define it"):
        Empty().encoder(4, None)
