"""The head on all pairs of nodes, against loops over them."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch, Data

from graphgps_kmip.model.prediction_heads import PairHead


def graph(n: int, edges: list[tuple[int, int]]) -> Data:
    edge_index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    return Data(x=torch.randn(n, 4, dtype=torch.float64), edge_index=edge_index)


GRAPHS = [(3, [(0, 1), (1, 0), (2, 2)]), (1, []), (0, []), (2, [(1, 0), (1, 0)])]


def test_every_pair_of_a_graph_gets_its_logits_and_says_whether_it_is_an_edge() -> None:
    head, graphs = PairHead().double(), [graph(*given) for given in GRAPHS]
    pred, true = head(Batch.from_data_list(graphs))
    expected, labels = [], []
    for data in graphs:
        edges = set(map(tuple, data.edge_index.T.tolist()))
        for i, one in enumerate(data.x):
            for j, other in enumerate(data.x):
                expected.append(head.predictor.weight[:, 0] * (one @ other) + head.predictor.bias)
                labels.append(int((i, j) in edges))
    assert true.tolist() == labels
    assert sum(labels) == 4
    torch.testing.assert_close(pred, torch.stack(expected), rtol=1e-12, atol=1e-12)


def test_a_graph_alone_gives_what_it_gives_in_a_batch() -> None:
    head, graphs = PairHead().double(), [graph(*given) for given in GRAPHS]
    alone = [head(Batch.from_data_list([one])) for one in graphs]
    for together, parts in zip(head(Batch.from_data_list(graphs)), zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(together, torch.cat(parts))
    pred, true = head(graphs[0])  # without a batch
    torch.testing.assert_close((pred, true), alone[0])


def test_a_permutation_of_nodes_permutes_the_pairs() -> None:
    head, data, order = PairHead().double(), graph(3, [(0, 1), (2, 1)]), torch.tensor([2, 0, 1])
    moved = Data(x=data.x[order], edge_index=order.argsort()[data.edge_index])
    for before, after in zip(head(data), head(moved), strict=True):
        square = before.reshape(3, 3, *before.shape[1:])
        torch.testing.assert_close(after.reshape_as(square), square[order][:, order])


@pytest.mark.parametrize("kept", ["x", "edge_index"])
def test_inputs_stay_and_gradients_are_right(kept: str) -> None:
    head, data = PairHead().double(), graph(3, [(0, 1)])
    before = data[kept].clone()
    assert torch.autograd.gradcheck(lambda x: head(Data(x=x, edge_index=data.edge_index))[0], data.x.requires_grad_())
    torch.testing.assert_close(data[kept], before)
