"""GraphContext, what is padded, tiled and collected with it; wrong batch vectors are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention import AttentionGraph, FullAttention, GraphContext, KMIPAttention, collect_attention
from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.context import all_pairs, complete_pairs
from graphgps_kmip.ops.dense import Tiles, from_padded, to_padded
from tests.attention.contexts import context_of

X = torch.ones(5, 3)


def graph(num_nodes: int) -> Data:
    edges = torch.zeros(2, 2, dtype=torch.long)
    return Data(
        x=torch.ones(num_nodes, 3),
        edge_index=edges,
        expander_edge_index=edges + 1,
        expander_edge_attr=torch.ones(2, 4),
        pair_index=edges,
        pair_attr=torch.ones(2, 6),
    )


def test_a_batch_vector_becomes_a_context_and_a_context_stays_itself() -> None:
    assert GraphContext.of(torch.zeros(0, dtype=torch.long), X[:0]).max_nodes == 0
    context = GraphContext.of(torch.tensor([0, 0, 2, 2, 2]), X)
    assert context.ptr.tolist() == [0, 2, 2, 5]
    assert context.sizes.tolist() == [2, 0, 3]
    assert (context.num_graphs, context.max_nodes, context.min_nodes) == (3, 3, 0)
    assert GraphContext.of(context, X) is context


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.tensor([0, 1, 0, 1, 1]), "must be non-decreasing"),
        (torch.tensor([-1, 0, 0, 1, 1]), "start at 0 or above"),
        (torch.tensor([0, 0, 1]), "x has 5 nodes but the batch vector has 3"),
        (torch.tensor([0.0, 0, 1, 1, 1]), "of torch.float32"),
        (torch.zeros(5, 1, dtype=torch.long), r"shape \(5, 1\)"),
    ],
)
def test_a_wrong_batch_vector_is_refused(batch: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GraphContext.of(batch, X)


def test_a_torch_geometric_batch_hands_over_all_that_attentions_read() -> None:
    batch = Batch.from_data_list([graph(3), graph(0), graph(2)])
    batch.progress, batch.epoch = 0.25, 7
    context = GraphContext.from_data(batch)
    assert context.ptr.tolist() == [0, 3, 3, 5]
    assert context.batch.tolist() == [0, 0, 0, 2, 2]
    assert context.edge_index is batch.edge_index
    assert (context.progress, context.with_edge_attr(None).epoch) == (0.25, 7)
    assert context.pair_index.tolist() == [[0, 0, 3, 3, 3, 3]] * 2
    assert context.pair_attr.shape == (6, 6)
    assert list(context.edge_sets) == ["expander"]
    assert context.edge_sets["expander"][0].tolist() == [[1, 1, 4, 4, 4, 4]] * 2
    assert context.edge_sets["expander"][1].shape == (6, 4)


@pytest.mark.parametrize(("progress", "training", "evaluating"), [(None, 0.0, 1.0), (0.0, 0.0, 0.0), (0.3, 0.3, 0.3)])
def test_the_progress_that_nobody_set_is_that_of_the_mode(
    progress: float | None, training: float, evaluating: float
) -> None:
    batch = Batch.from_data_list([graph(3)])
    if progress is not None:
        batch.progress = progress
    context = GraphContext.from_data(batch)
    assert (context.progress_in(True), context.progress_in(False)) == (training, evaluating)


def test_data_with_a_batch_vector_alone_gets_its_boundaries() -> None:
    data = graph(4)
    data.batch = torch.tensor([0, 1, 1, 1])
    assert GraphContext.from_data(data).ptr.tolist() == [0, 1, 4]


def test_all_pairs_are_listed_graph_by_graph_and_query_by_query() -> None:
    pairs = [(i, j) for first, end in ((0, 2), (2, 5)) for i in range(first, end) for j in range(first, end)]
    assert all_pairs(torch.tensor([0, 2, 2, 5])).T.tolist() == [list(pair) for pair in pairs]


def test_complete_pairs_scatters_a_list_adds_repeated_pairs_and_refuses_a_wrong_number_of_rows() -> None:
    index = torch.tensor([[4, 0, 4], [2, 1, 2]])
    attr = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    context = context_of([2, 0, 3], pair_index=index, pair_attr=attr)
    complete, expected = complete_pairs(context), torch.zeros(13, 2)
    for pair, row in zip(index.T.tolist(), attr, strict=True):
        expected[all_pairs(context.ptr).T.tolist().index(pair)] += row
    assert torch.equal(complete, expected)
    assert complete_pairs(context_of([2, 0, 3], pair_attr=complete)) is complete
    for parts in ({"pair_attr": attr}, {"pair_index": index}):
        with pytest.raises(InputError, match="pair"):
            complete_pairs(context_of([2, 0, 3], **parts))


@pytest.mark.parametrize("sizes", [[2, 0, 3, 1], [0, 2], [3, 3], [4], [0, 0], []])
def test_padding_and_back_is_the_identity_forward_and_backward(sizes: list[int]) -> None:
    context = context_of(sizes)
    x = torch.randn(sum(sizes), 2, requires_grad=True)
    padded, mask = to_padded(x, context)
    assert padded.shape == (len(sizes), max(sizes, default=0), 2)
    assert mask.sum(1).tolist() == sizes
    torch.testing.assert_close(from_padded(padded, context), x, rtol=0, atol=0)
    grad = torch.randn_like(x)
    from_padded(padded, context).backward(grad)
    torch.testing.assert_close(x.grad, grad, rtol=0, atol=0)


def test_each_graph_is_cut_into_full_tiles_and_a_rest() -> None:
    tiles = Tiles.of(context_of([5, 0, 1, 4, 7]), 3)
    context = tiles.context
    assert context.sizes.tolist() == [3, 2, 1, 3, 1, 3, 3, 1]
    assert tiles.graph.tolist() == [0, 0, 2, 3, 3, 4, 4, 4]
    assert tiles.place.tolist() == [0, 1, 0, 0, 1, 0, 1, 2]
    assert context.batch.tolist() == torch.repeat_interleave(context.sizes).tolist()
    assert context.ptr.tolist() == [0, *context.sizes.cumsum(0).tolist()]


@pytest.mark.parametrize("sizes", [[9], [5, 3, 4], [], [0], [4, 0]])
def test_graphs_of_like_size_stay_whole(sizes: list[int]) -> None:
    context = context_of(sizes)
    tiles = Tiles.split_uneven(context, 3)
    assert tiles.context is context
    assert tiles.graph.tolist() == list(range(len(sizes)))
    assert tiles.place.tolist() == [0] * len(sizes)


@pytest.mark.parametrize("attention", [KMIPAttention(8, 2, k=4), FullAttention(8, 2)], ids=["kmip", "full"])
def test_the_graph_times_the_values_is_the_output(attention: nn.Module) -> None:
    attention, context = attention.double(), context_of([5, 0, 1, 7])
    x = torch.randn(13, 8, dtype=torch.float64)
    graph = attention.attention_graph(x, context)
    v = attention.value(x) if isinstance(attention, KMIPAttention) else attention.qkv(x)[:, 16:]
    gathered = v.unflatten(1, (2, 4)).transpose(0, 1)[torch.arange(2)[:, None, None], graph.index.clamp(min=0)]
    out = attention.out(torch.einsum("hnk,hnkc->nhc", graph.weight, gathered).flatten(1))
    torch.testing.assert_close(out, attention(x, context), rtol=1e-12, atol=1e-12)
    assert graph.weight[graph.index < 0].eq(0).all()
    assert context.batch[graph.index].eq(context.batch[:, None])[graph.index >= 0].all()


def test_the_out_degree_counts_the_queries_that_select_a_node() -> None:
    index = torch.tensor([[[0, 1], [1, -1], [1, 0]], [[2, -1], [-1, -1], [2, 1]]])
    assert AttentionGraph(index, torch.zeros(2, 3, 2)).out_degree().tolist() == [[2, 3, 0], [0, 1, 2]]


class Model(nn.Module):
    """Two attentions of which the first stays in eval mode; writes into its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = KMIPAttention(8, 2, k=2), KMIPAttention(8, 2, dropout=0.5, k=3)

    def forward(self, batch: Batch) -> Tensor:
        context = GraphContext.from_data(batch)
        batch.x = self.first(batch.x, context)
        return self.last(batch.x, context=context)


def test_collecting_gives_one_graph_a_layer_and_leaves_no_trace() -> None:
    model = Model()
    model.train()
    model.last.eval()
    data = Data(x=torch.randn(5, 8), edge_index=torch.zeros(2, 0, dtype=torch.long))
    batch = Batch.from_data_list([data, data])
    x = batch.x.clone()
    graphs = collect_attention(model, batch)
    assert [graph.index.shape for graph in graphs] == [(2, 10, 3), (2, 10, 2)]
    assert torch.equal(batch.x, x)
    assert (model.training, model.first.training, model.last.training) == (True, True, False)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_collecting_restores_the_model_when_its_forward_fails() -> None:
    model = Model()
    with pytest.raises(AttributeError):
        collect_attention(model, "not a batch")
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())
