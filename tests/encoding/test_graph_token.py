"""The graph token: where nodes, edges and pairs of nodes end up."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding.graphormer_bias import GraphToken
from graphgps_kmip.ops.node_pairs import all_pairs, first_nodes

DIM, HEADS = 4, 2
SIZES = (5, 1, 3)


def graph(num_nodes: int, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(10 * num_nodes + seed)
    return Data(
        x=torch.randn(num_nodes, DIM, generator=generator, dtype=torch.float64),
        edge_index=torch.randint(num_nodes, (2, 2 * num_nodes - 2), generator=generator),
        expander_edge_index=torch.randint(num_nodes, (2, 4), generator=generator),
        pe_EquivStableLapPE=torch.randn(num_nodes, 3, generator=generator),
    )


def batched(graphs: list[Data]) -> Batch:
    batch = Batch.from_data_list(graphs)
    batch.pair_index = all_pairs(first_nodes(batch))
    sources = batch.x[batch.pair_index[0], :HEADS]
    batch.pair_attr = sources - 2 * batch.x[batch.pair_index[1], :HEADS]
    return batch


GRAPHS = [graph(size) for size in SIZES]


def dense(pairs: Tensor, values: Tensor, size: int) -> Tensor:
    """Pair by pair: (size, size, H); a pair that is there twice is an error."""
    table = torch.full((size, size, values.size(1)), torch.nan, dtype=values.dtype)
    for (i, j), value in zip(pairs.T.tolist(), values, strict=True):
        assert bool(table[i, j].isnan().all())
        table[i, j] = value
    return table


def test_a_token_is_in_front_of_each_graph_and_all_others_move_up() -> None:
    module, before = GraphToken(DIM, HEADS).double(), batched(GRAPHS)
    out = module(before.clone())
    rows, batch = [], []
    for number, data in enumerate(GRAPHS):
        rows += [module.token[0], *data.x]
        batch += [number] * (data.num_nodes + 1)
    assert torch.equal(out.x, torch.stack(rows))
    assert out.batch.tolist() == batch
    assert out.ptr.tolist() == [0, 6, 8, 12]
    assert out.num_graphs == 3
    for name in ("edge_index", "expander_edge_index"):  # an edge still joins the same nodes
        assert torch.equal(out.x[out[name]], before.x[before[name]])
    ends = out.edge_index.flatten()
    assert torch.equal(out.pe_EquivStableLapPE[ends], before.pe_EquivStableLapPE[before.edge_index.flatten()])
    assert not out.pe_EquivStableLapPE[out.ptr[:-1]].any()


def test_the_bias_of_every_pair_with_a_token_is_the_tokens() -> None:
    module, before = GraphToken(DIM, HEADS).double(), batched(GRAPHS)
    out = module(before.clone())
    bias, bias_before = dense(out.pair_index, out.pair_attr, 12), dense(before.pair_index, before.pair_attr, 9)
    start, old = 0, 0
    for size in SIZES:
        block = bias[start : start + size + 1, start : start + size + 1]
        assert torch.equal(block[1:, 1:], bias_before[old : old + size, old : old + size])
        assert torch.equal(block[0], module.bias[0, :, 0].expand(size + 1, HEADS))
        assert torch.equal(block[:, 0], module.bias[0, :, 0].expand(size + 1, HEADS))
        start, old = start + size + 1, old + size
    assert int((~bias[..., 0].isnan()).sum()) == sum((size + 1) ** 2 for size in SIZES)


def test_data_is_one_graph_and_its_pairs_may_have_no_bias() -> None:
    data = GraphToken(DIM, None)(GRAPHS[0].clone())
    assert data.batch.tolist() == [0] * 6
    assert data.ptr.tolist() == [0, 6]
