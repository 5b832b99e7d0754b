"""What the tests are told of nodes and pairs: numbers by value, the scheme of theorem 1, rounded encodings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from graphgps_kmip.expressivity.seg_wl import Encoding, Graph, cycle, directed, rounded, seg_wl, theorem_scheme, wl


@pytest.mark.parametrize("colour", [wl, lambda graphs: seg_wl(graphs, [theorem_scheme(graph) for graph in graphs])])
@pytest.mark.parametrize("key", ["x", "edge_attr"])
def test_numbers_count_by_value(key: str, colour: Callable) -> None:
    graph = cycle(4)
    count = graph.num_nodes if key == "x" else graph.edge_index.size(1)

    def of(value: float, dtype: torch.dtype = torch.float64) -> Graph:
        return graph.with_features(**{key: torch.full((count, 1), value, dtype=dtype)})

    assert colour([of(-0.0), of(0.0)]).separated_after() is None
    assert colour([of(1.0), of(1, torch.int64)]).separated_after() is None
    assert colour([of(0.1), of(0.1, torch.float32)]).separated_after() is not None
    assert colour([of(0.3), of(0.1 + 0.2)]).separated_after() is not None
    with pytest.raises(ValueError, match="NaN"):
        colour([of(float("nan"))])


def test_rounded_encodings_forget_the_last_digits() -> None:
    # 27 / 512 lies right between two numbers of 8 decimals
    for value in (0.3, 27 / 512, 0.2**9, 0.0):
        one, other = (
            rounded(Encoding(node=torch.tensor([[near]], dtype=torch.float64)), 8) for near in (value, value - 1e-16)
        )
        assert one.node.item() == other.node.item() == pytest.approx(value, abs=1e-8)
    assert rounded(Encoding(node=torch.tensor([[0.0], [2e-8]], dtype=torch.float64)), 8).node.unique().numel() == 2


def test_the_scheme_of_the_theorem_is_as_printed() -> None:
    graph = directed([(0, 1)], 2).with_features(edge_attr=torch.tensor([[7]]))
    found = theorem_scheme(graph, Encoding(node=torch.tensor([[1.0], [2.0]]), edge=torch.tensor([[0.5]])))
    assert found.node == [(1.0,), (2.0,)]
    nothing = (False, False, (), ())
    itself = (False, True, (), ())
    assert found.pair == [[itself, nothing], [(True, False, (((7,), (0.5,)),), ()), itself]]


def test_an_encoding_of_another_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="encoding of nodes has 3 rows, expected 4"):
        theorem_scheme(cycle(4), Encoding(node=torch.zeros(3, 1)))
    with pytest.raises(ValueError, match="edge_attr has 2 rows, expected 8"):
        cycle(4).with_features(edge_attr=torch.zeros(2, 1))
    with pytest.raises(ValueError, match="names node 4"):
        Graph(4, torch.tensor([[0], [4]]))
