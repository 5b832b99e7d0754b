"""What attentions are tried on: small batches of graphs with edges and pairs; one way to build and call attentions."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.registry import Spec

DIM, NUM_HEADS = 16, 2
PAIR_DIMS = {"BiasedTransformer": NUM_HEADS}  # width of the features of pairs that an attention reads; others DIM
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Trial:
    """An attention, and where and in which precision it is tried.

    Args:
        spec (Spec): its row in the registry.
        device (torch.device, optional): where it runs. (default: the CPU)
        dtype (torch.dtype, optional): of its weights and inputs. (default: ``torch.float64``)
    """

    spec: Spec
    device: torch.device = CPU
    dtype: torch.dtype = torch.float64

    def attention(self) -> nn.Module:
        """Make it with its default options and the same weights each time, in eval mode."""
        torch.manual_seed(1)
        return self.spec.component(DIM, NUM_HEADS).to(self.device, self.dtype).eval()

    def batch(self, sizes: list[int], num_edges: int = 2) -> tuple[Tensor, GraphContext]:
        """Draw graphs of these sizes: `make_batch` with the pairs that it reads, here."""
        torch.manual_seed(2)
        made = make_batch(sizes, num_edges=num_edges, pair_dim=PAIR_DIMS.get(self.spec.name, DIM))
        return moved(made, self.device, self.dtype)


def attend(attention: nn.Module, x: Tensor, context: GraphContext | Tensor | None) -> Tensor:
    """Call an attention, with its initial state where it has one."""
    if not hasattr(attention, "initial_state"):
        return attention(x, context)
    return attention(x, context, attention.initial_state(GraphContext.of(context, x)))[0]


def make_batch(
    sizes: list[int], dim: int = DIM, num_edges: int = 2, pair_dim: int = NUM_HEADS
) -> tuple[Tensor, GraphContext]:
    """Random nodes (float64) of graphs of these sizes, with ``num_edges`` random edges a node, and expander edges."""
    sizes_tensor = torch.tensor(sizes, dtype=torch.long)
    batch = torch.repeat_interleave(sizes_tensor)
    ptr = torch.cat([sizes_tensor.new_zeros(1), sizes_tensor.cumsum(0)])
    target = torch.arange(len(batch)).repeat_interleave(num_edges)
    graph = batch[target]
    source = ptr[graph] + (torch.rand(len(target)) * sizes_tensor[graph]).long()
    edge_attr = torch.randn(len(target), dim, dtype=torch.float64)
    edge_index = torch.stack([source, target])
    pairs = (batch[:, None] == batch).nonzero().T  # (2, P)
    context = GraphContext(
        batch,
        ptr,
        edge_index=edge_index,
        edge_attr=edge_attr,
        edge_sets={"expander": (edge_index.flip(0)[:, ::2], None)},
        pair_index=pairs,
        pair_attr=torch.randn(pairs.size(1), pair_dim, dtype=torch.float64),
    )
    return torch.randn(len(batch), dim, dtype=torch.float64), context


def moved(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Return tensors, alone, in tuples, by name or in a context, on a device, those of floats in a dtype."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        return value.to(device, dtype if value.is_floating_point() else value.dtype)
    if isinstance(value, GraphContext):
        given = {field.name: getattr(value, field.name) for field in fields(value)}
        return replace(value, **moved({k: v for k, v in given.items() if isinstance(v, (Tensor, dict))}, device, dtype))
    if isinstance(value, dict):
        return {name: moved(tensors, device, dtype) for name, tensors in value.items()}
    return tuple(moved(one, device, dtype) for one in value)


def graph_alone(x: Tensor, context: GraphContext, graph: int) -> tuple[Tensor, GraphContext]:
    """Cut one graph out of a batch."""
    start, end = context.ptr[graph : graph + 2].tolist()
    expander = context.edge_sets["expander"][0]
    inside, pairs, expanded = (
        context.batch[index[0]] == graph for index in (context.edge_index, context.pair_index, expander)
    )
    alone = GraphContext(
        torch.zeros_like(context.batch[start:end]),
        context.ptr.new_tensor([0, end - start]),
        edge_index=context.edge_index[:, inside] - start,
        edge_attr=context.edge_attr[inside],
        edge_sets={"expander": (expander[:, expanded] - start, None)},
        pair_index=context.pair_index[:, pairs] - start,
        pair_attr=context.pair_attr[pairs],
    )
    return x[start:end], alone


def permuted(x: Tensor, context: GraphContext) -> tuple[Tensor, GraphContext, Tensor]:
    """Permute the nodes inside each graph, and the edges; the permutation says which old node each new one is."""
    sizes = context.sizes.tolist()
    starts = context.ptr.tolist()[: len(sizes)]
    order = torch.cat([start + torch.randperm(size) for start, size in zip(starts, sizes, strict=True)]).to(x.device)
    new_of_old = order.argsort()
    edges = torch.randperm(context.edge_index.size(1)).to(x.device)
    shuffled = GraphContext(
        context.batch,
        context.ptr,
        edge_index=new_of_old[context.edge_index[:, edges]],
        edge_attr=context.edge_attr[edges],
        edge_sets={"expander": (new_of_old[context.edge_sets["expander"][0]].flip(1), None)},
        pair_index=new_of_old[context.pair_index],
        pair_attr=context.pair_attr,
    )
    return x[order], shuffled, order
