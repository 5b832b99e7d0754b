"""Reference attentions: Performer, BigBird and Exphormer by their formulas; baselines that are never improved.

All pairs of a graph at once (Performer, BigBird), or all edges at once, each with features of its own (Exphormer), by
plain autograd. Each takes the parameters of one of our modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention.bigbird import BigBirdAttention, random_blocks
from graphgps_kmip.attention.exphormer import ExphormerAttention, ExphormerState
from graphgps_kmip.attention.performer import EPS, PerformerAttention


class GraphByGraph(nn.Module):
    """An attention computed by a formula for one graph.

    Shapes: x (N, C), context -> (N, C).
    """

    def __init__(self, attention: nn.Module, formula: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.attention, self.formula = attention, formula

    def forward(self, x: Tensor, context: GraphContext) -> Tensor:
        """Attend inside each graph."""
        return torch.cat([self.formula(self.attention, graph) for graph in x.split(context.sizes.tolist())])


def performer(attention: PerformerAttention, x: Tensor) -> Tensor:
    """One graph (n, C): products of the random features of each query and key, divided by their sum."""
    scale = attention.projection.size(1) ** -0.25
    q, k, v = _heads(attention, x)
    q, k = q * scale, k * scale
    projected_q, projected_k = (rows @ attention.projection.mT for rows in (q, k))  # (H, n, F)
    half_q, half_k = (rows.square().sum(-1, keepdim=True) / 2 for rows in (q, k))
    phi_q = (projected_q - half_q - projected_q.amax(-1, keepdim=True)).exp() + EPS
    phi_k = (projected_k - half_k - projected_k.amax((-2, -1), keepdim=True)).exp() + EPS
    weight = phi_q @ phi_k.mT  # (H, n, n)
    out = (weight / weight.sum(-1, keepdim=True)) @ v
    return attention.dropout(attention.out(out.transpose(0, 1).flatten(1)))


def bigbird(attention: BigBirdAttention, x: Tensor) -> Tensor:
    """One graph (n, C): softmax attention under a mask of the pairs that see each other."""
    block = torch.arange(len(x), device=x.device) // attention.block_size  # (n,)
    last = int(block[-1])
    blocks = torch.arange(last + 1, device=x.device)
    drawn = random_blocks(blocks, blocks * 0 + last, attention.num_heads, attention.num_random_blocks, attention.seed)
    ends = (blocks == 0) | (blocks == last)
    near = ((blocks[:, None] - blocks).abs() <= 1) | ends | ends[:, None]  # (T, T)
    seen = near.repeat(attention.num_heads, 1, 1)
    head, query, _ = (at for at in torch.ones_like(drawn).transpose(0, 1).nonzero(as_tuple=True))
    other = drawn.transpose(0, 1).flatten()
    seen[head[other >= 0], query[other >= 0], other[other >= 0]] = True
    q, k, v = _heads(attention, x)
    score = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~seen[:, block][:, :, block], -torch.inf)  # (H, n, n)
    out = (score.softmax(-1) @ v).transpose(0, 1).flatten(1)
    h = attention.out_norm(attention.dropout(attention.out(out)) + x)
    return attention.ffn_norm(attention.dropout(attention.ffn(h)) + h)


class Edges(nn.Module):
    """Exphormer with the features, keys, queries and values of every edge as tensors of their own.

    Shapes: x (N, C), context, state -> (N, C), state.
    """

    def __init__(self, attention: ExphormerAttention) -> None:
        super().__init__()
        self.attention, self.initial_state = attention, attention.initial_state

    def forward(self, x: Tensor, _context: GraphContext, state: ExphormerState) -> tuple[Tensor, ExphormerState]:
        """Attend along the edges of the state."""
        nodes, (source, target, row) = torch.cat([x, state.virtual]), state.edges
        q, k, v = (rows.transpose(0, 1) for rows in _heads(self.attention, nodes))  # (M, H, D)
        e = self.attention.edge(state.features[row]).view(-1, *q.shape[1:])  # (E, H, D)
        score = (q[target] * k[source] * e).sum(-1, keepdim=True) / math.sqrt(q.size(-1))
        weight = score.clamp(-5, 5).exp()  # (E, H, 1)
        total = torch.zeros_like(v).index_add(0, target, weight * v[source])
        out = (total / (v.new_zeros(*v.shape[:2], 1).index_add(0, target, weight) + 1e-6)).flatten(1)
        return out[: len(x)], replace(state, virtual=out[len(x) :])


def _heads(attention: nn.Module, x: Tensor) -> list[Tensor]:
    linears = attention.query, attention.key, attention.value
    return [linear(x).unflatten(1, (attention.num_heads, -1)).transpose(0, 1) for linear in linears]  # (H, n, D)


# name of our attention -> its reference form
REFERENCES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "Performer": lambda ours: GraphByGraph(ours, performer),
    "BigBird": lambda ours: GraphByGraph(ours, bigbird),
    "Exphormer": Edges,
}
PREFIX = "reference: "  # before these names in the table of results
