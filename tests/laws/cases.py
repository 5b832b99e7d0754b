"""What the attention laws are tried on: small batches of graphs with edges; one way to build and call attentions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.registry import Spec

DIM, NUM_HEADS = 16, 2
PAIR_DIMS = {"BiasedTransformer": NUM_HEADS}  # width of the features of pairs that an attention reads; others DIM


def build(row: Spec, dim: int = DIM, num_heads: int = NUM_HEADS) -> nn.Module:
    """Make the attention of a row with its default options, float64, in eval mode."""
    torch.manual_seed(1)
    return row.component(dim, num_heads).double().eval()


def attend(attention: nn.Module, x: Tensor, context: GraphContext | Tensor | None) -> Tensor:
    """Call an attention, with its initial state where it has one."""
    if not hasattr(attention, "initial_state"):
        return attention(x, context)
    return attention(x, context, attention.initial_state(GraphContext.of(context, x)))[0]


def promised(row: Spec, law: str) -> None:
    """Skip the test when the row says that it breaks this law."""
    if law in row.traits.breaks:
        pytest.skip(f"{row.name} does not promise {law!r} (its row says so)")


def pair_dim(row: Spec) -> int:
    """Width of the features of pairs for the attention of a row."""
    return PAIR_DIMS.get(row.name, DIM)


def make_batch(
    sizes: list[int], dim: int = DIM, num_edges: int = 2, pair_dim: int = NUM_HEADS
) -> tuple[Tensor, GraphContext]:
    """Random nodes (float64) of graphs of these sizes, with ``num_edges`` random edges a node."""
    sizes_tensor = torch.tensor(sizes, dtype=torch.long)
    batch = torch.repeat_interleave(sizes_tensor)
    ptr = torch.cat([sizes_tensor.new_zeros(1), sizes_tensor.cumsum(0)])
    target = torch.arange(len(batch)).repeat_interleave(num_edges)
    graph = batch[target]
    source = ptr[graph] + (torch.rand(len(target)) * sizes_tensor[graph]).long()
    edge_attr = torch.randn(len(target), dim, dtype=torch.float64)
    pairs = (batch[:, None] == batch).nonzero().T  # (2, P)
    context = GraphContext(
        batch,
        ptr,
        edge_index=torch.stack([source, target]),
        edge_attr=edge_attr,
        pair_index=pairs,
        pair_attr=torch.randn(pairs.size(1), pair_dim, dtype=torch.float64),
    )
    return torch.randn(len(batch), dim, dtype=torch.float64), context


def graph_alone(x: Tensor, context: GraphContext, graph: int) -> tuple[Tensor, GraphContext]:
    """Cut one graph out of a batch."""
    start, end = context.ptr[graph : graph + 2].tolist()
    inside, pairs = (context.batch[index[0]] == graph for index in (context.edge_index, context.pair_index))
    nodes = x[start:end]
    alone = GraphContext(
        torch.zeros(end - start, dtype=torch.long),
        torch.tensor([0, end - start]),
        edge_index=context.edge_index[:, inside] - start,
        edge_attr=context.edge_attr[inside],
        pair_index=context.pair_index[:, pairs] - start,
        pair_attr=context.pair_attr[pairs],
    )
    return nodes, alone


def permuted(x: Tensor, context: GraphContext) -> tuple[Tensor, GraphContext, Tensor]:
    """Permute the nodes inside each graph, and the edges; the permutation says which old node each new one is."""
    order = torch.cat([start + torch.randperm(size) for start, size in zip(context.ptr, context.sizes, strict=False)])
    new_of_old = order.argsort()
    edges = torch.randperm(context.edge_index.size(1))
    shuffled = GraphContext(
        context.batch,
        context.ptr,
        edge_index=new_of_old[context.edge_index[:, edges]],
        edge_attr=context.edge_attr[edges],
        pair_index=new_of_old[context.pair_index],
        pair_attr=context.pair_attr,
    )
    return x[order], shuffled, order
