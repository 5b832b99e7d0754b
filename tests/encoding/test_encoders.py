"""Node and edge encoder modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding import (
    ConstantEdgeEncoder,
    LinearEdgeEncoder,
    LinearNodeEncoder,
    TypeDictEdgeEncoder,
    TypeDictNodeEncoder,
)

DIM = 5
EDGES = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])


def batch_of(x: torch.Tensor, edge_attr: torch.Tensor | None = None) -> Batch:
    return Batch.from_data_list([Data(x=x, edge_index=EDGES, edge_attr=edge_attr)])


def cases() -> dict[str, tuple[nn.Module, str, Batch]]:
    """Encoder, attribute it sets, batch it reads."""
    x, e = torch.randn(3, 2), torch.randn(4, 3)
    types, edge_types = torch.tensor([[0], [6], [2]]), torch.tensor([3, 0, 0, 1])
    return {
        "linear node": (LinearNodeEncoder(2, DIM), "x", batch_of(x, e)),
        "node type": (TypeDictNodeEncoder(7, DIM), "x", batch_of(types, e)),
        "linear edge": (LinearEdgeEncoder(3, DIM), "edge_attr", batch_of(x, e)),
        "linear edge, one column": (LinearEdgeEncoder(1, DIM), "edge_attr", batch_of(x, e[:, 0])),
        "edge type": (TypeDictEdgeEncoder(4, DIM), "edge_attr", batch_of(x, edge_types)),
        "constant edge": (ConstantEdgeEncoder(DIM), "edge_attr", batch_of(x)),
    }


@pytest.mark.parametrize("name", cases())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_encoder_sets_its_attribute_and_leaves_all_else_as_it_was(name: str, dtype: torch.dtype) -> None:
    encoder, key, batch = cases()[name]
    encoder, before = encoder.to(dtype), batch.clone()
    raw = {attribute: batch[attribute] for attribute in batch.keys()}  # noqa: SIM118 (a Batch is no mapping)
    out = encoder(batch)
    assert out[key].shape == ({"x": 3, "edge_attr": 4}[key], DIM)
    assert out[key].dtype == dtype
    assert set(out.keys()) == set(raw) | {key}
    for attribute, value in raw.items():
        torch.testing.assert_close(value, before[attribute], rtol=0, atol=0)  # the tensors themselves are untouched
        if attribute != key:
            assert out[attribute] is value


@pytest.mark.parametrize("name", cases())
def test_gradients_reach_every_parameter(name: str) -> None:
    encoder, key, batch = cases()[name]
    (encoder(batch)[key] * torch.arange(1.0, DIM + 1)).sum().backward()
    assert all(bool(parameter.grad.any()) for parameter in encoder.parameters())


def test_linear_encoders_compute_the_linear_map() -> None:
    encoder, x = LinearNodeEncoder(2, DIM).double(), torch.randn(3, 2, dtype=torch.float64)
    torch.testing.assert_close(encoder(batch_of(x)).x, x @ encoder.encoder.weight.T + encoder.encoder.bias)


def test_float64_features_are_not_rounded_on_the_way_into_a_double_model() -> None:
    encoder, tiny = LinearNodeEncoder(1, DIM).double(), torch.tensor([[0.0], [1e-12], [1.0]], dtype=torch.float64)
    x = encoder(batch_of(1 + tiny)).x
    assert bool((x[0] != x[1]).any())


def test_equal_types_get_equal_vectors_and_all_edges_the_same_one() -> None:
    x = TypeDictNodeEncoder(3, DIM)(batch_of(torch.tensor([2, 0, 2]))).x
    torch.testing.assert_close(x[0], x[2], rtol=0, atol=0)
    assert bool((x[0] != x[1]).any())
    edge_attr = ConstantEdgeEncoder(DIM)(batch_of(torch.ones(3, 1))).edge_attr
    assert edge_attr.unique(dim=0).shape == (1, DIM)


def test_a_graph_without_edges_gets_an_empty_encoding() -> None:
    empty = Data(x=torch.zeros(0, 1), edge_index=torch.empty(2, 0, dtype=torch.long), edge_attr=torch.empty(0, 1))
    for encoder in (ConstantEdgeEncoder(DIM), LinearEdgeEncoder(1, DIM), TypeDictEdgeEncoder(2, DIM)):
        assert encoder(Batch.from_data_list([empty.clone()])).edge_attr.shape == (0, DIM)


@pytest.mark.parametrize("types", [[0, 7, 1], [-1, 0, 1]])
def test_a_type_without_a_row_names_the_key_to_turn(types: list[int]) -> None:
    with pytest.raises(ValueError, match=r"dataset\.node_encoder_num_types is 7"):
        TypeDictNodeEncoder(7, DIM)(batch_of(torch.tensor(types)))
    with pytest.raises(ValueError, match=r"dataset\.edge_encoder_num_types is 7"):
        TypeDictEdgeEncoder(7, DIM)(batch_of(torch.ones(3, 1), torch.tensor([*types, 0])))


def test_what_an_encoder_cannot_read_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dataset\.node_encoder_num_types must be at least 1"):
        TypeDictNodeEncoder(0, DIM)
    with pytest.raises(ValueError, match=r"dataset\.edge_encoder_num_types must be at least 1"):
        TypeDictEdgeEncoder(0, DIM)
    with pytest.raises(ValueError, match="one type a row"):
        TypeDictNodeEncoder(3, DIM)(batch_of(torch.zeros(3, 2, dtype=torch.long)))
    for encoder in (LinearEdgeEncoder(1, DIM), TypeDictEdgeEncoder(2, DIM)):
        with pytest.raises(ValueError, match="DummyEdge"):
            encoder(batch_of(torch.ones(3, 1)))
