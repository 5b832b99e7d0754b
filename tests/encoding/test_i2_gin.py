"""I2-GIN: subgraphs by breadth-first search, features of edges by loops over subgraphs, nodes and neighbours."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding import i2_gin
from graphgps_kmip.encoding.i2_gin import EdgeSubgraphs, I2GINEncoder
from graphgps_kmip.encoding.rrwp import RRWP

NO_EDGES = torch.empty(2, 0, dtype=torch.long)
EXACT = RRWP(ksteps=3, channels="K+1", precision="float64", where="batch")


def both_ways(ends: list[tuple[int, int]]) -> Tensor:
    edges = torch.tensor(ends).T
    return torch.cat([edges, edges.flip(0)], dim=1)


EDGES = [
    both_ways([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 1), (5, 6)]),  # a ring with two tails
    NO_EDGES,
    torch.cat([both_ways([(0, 1), (1, 2), (0, 2), (3, 4)]), torch.tensor([[0, 3], [1, 3]])], dim=1),  # twice; a loop
]
SIZES = (7, 1, 6)


def graphs() -> list[Data]:
    return [Data(x=torch.zeros(n, 1), edge_index=edges, num_nodes=n) for n, edges in zip(SIZES, EDGES, strict=True)]


def encoder(num_hops: int = 2) -> I2GINEncoder:
    torch.manual_seed(0)
    module = I2GINEncoder(EXACT, 6, num_layers=2, num_hops=num_hops).double()
    with torch.no_grad():
        for epsilon in module.epsilons:
            epsilon.uniform_(-0.5, 0.5)
    return module


def reached(edge_index: Tensor, start: int, num_hops: int) -> list[int]:
    result = {start}
    for _ in range(num_hops):
        result |= {target for source, target in edge_index.T.tolist() if source in result}
    return sorted(result)


@pytest.mark.parametrize("num_hops", [0, 1, 2, 9])
def test_a_subgraph_has_the_nodes_around_its_first_end_and_all_edges_between_them(num_hops: int) -> None:
    for edges, size in zip(EDGES, SIZES, strict=True):
        edge, node, inside = EdgeSubgraphs(edges, size, num_hops).select(slice(None))
        for number, (a, _) in enumerate(edges.T.tolist()):
            around = reached(edges, a, num_hops)
            assert node[edge == number].tolist() == around
            edges_inside = inside[:, edge[inside[0]] == number]
            assert bool((edge[edges_inside] == number).all())
            between = [pair for pair in edges.T.tolist() if set(pair) <= set(around)]
            assert sorted(node[edges_inside].T.tolist()) == sorted(between)


def looped(module: I2GINEncoder, batch: Batch) -> Tensor:
    """Return the features of all pairs by loops; norms get all rows of the batch at once."""
    rows, edges = [], batch.edge_index.T.tolist()
    first = [0]
    for size in SIZES:
        first.append(first[-1] + size**2)

    def row(query: int, key: int) -> int:
        graph = int(batch.batch[query])
        start = int(batch.ptr[graph])
        return first[graph] + (query - start) * SIZES[graph] + key - start

    members = [
        (number, v) for number, (a, _) in enumerate(edges) for v in reached(batch.edge_index, a, module.num_hops)
    ]
    place = {member: i for i, member in enumerate(members)}
    for number, v in members:
        a, b = edges[number]
        rows.append(module.first(torch.cat([batch.rrwp[row(v, a)], batch.rrwp[row(v, b)]])))
    h = torch.stack(rows)
    for mlp, epsilon, norm in zip(module.mlps, module.epsilons, module.norms, strict=True):
        around = []
        for number, v in members:
            total = (1 + epsilon) * h[place[number, v]]
            for source, target in edges:
                if target == v and (number, source) in place:
                    total = total + h[place[number, source]]
            around.append(mlp(total))
        h = h + norm(torch.stack(around))
    sums: dict[int, Tensor] = {}
    for (number, _), value in zip(members, h, strict=True):
        where = row(*edges[number])
        sums[where] = sums.get(where, 0) + value
    pairs = torch.zeros(first[-1], 6, dtype=torch.float64)
    pairs[sorted(sums)] = module.last(module.pool_norm(torch.stack([sums[where] for where in sorted(sums)])))
    return pairs


@pytest.mark.parametrize("num_hops", [1, 4])
def test_features_and_gradients_are_those_of_loops(num_hops: int) -> None:
    module = encoder(num_hops).train()
    batch = module(Batch.from_data_list(graphs()))
    cotangent = torch.randn(batch.pair_attr.shape, dtype=torch.float64)
    names = [name for name, _ in module.named_parameters()]
    result = torch.autograd.grad((batch.pair_attr * cotangent).sum(), module.parameters())
    pairs = looped(module, batch)
    torch.testing.assert_close(batch.pair_attr, pairs, rtol=1e-10, atol=1e-10)
    expected = torch.autograd.grad((pairs * cotangent).sum(), module.parameters())
    for name, actual, reference in zip(names, result, expected, strict=True):
        torch.testing.assert_close(
            actual, reference, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert int(batch.pair_attr.any(dim=1).sum()) == 14 + 9  # edges of the first and third graph, the repeated one once


@pytest.mark.parametrize("rows", [1, 9, 30])
def test_evaluation_block_by_block_has_the_features_of_all_edges_at_once(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, batch = encoder(), Batch.from_data_list(graphs())
    module.train()(batch.clone())
    whole = module.eval()(batch.clone()).pair_attr.detach()
    monkeypatch.setattr(i2_gin, "CACHED_ROWS", rows)
    seen, of = [], EdgeSubgraphs.select
    monkeypatch.setattr(EdgeSubgraphs, "select", lambda self, edges: seen.append(edges) or of(self, edges))
    with torch.no_grad():
        result = module(batch.clone()).pair_attr
    assert len(seen) > 1
    torch.testing.assert_close(result, whole, rtol=1e-12, atol=1e-12)
