"""Faults of the public k-MIP code, for runs that must repeat them: padding among the keys, key 0 in missing slots."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from graphgps_kmip.attention.attention_graph import AttentionGraph
from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.dense import from_padded, to_padded
from graphgps_kmip.attention.key_selection import BestKeys, KeySelection
from graphgps_kmip.attention.kmip import KMIPAttention
from graphgps_kmip.compat.padded_graphs import with_padding
from graphgps_kmip.errors import InputError


class PaddedKMIPAttention(KMIPAttention):
    """k-MIP attention whose graphs are padded with zeros to the largest one of the batch; the padding counts as nodes.

    These can be selected, so that a graph's output depends on the others: the quirk ``kmip_no_mask``. The arguments are
    those of `KMIPAttention`.
    """

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each padded graph: x (N, dim) -> (N, dim)."""
        context = GraphContext.of(context, x)
        if context.halo is not None:
            raise InputError("pad_keys does not run on a graph sharded over processes: set gt.kmip.pad_keys False")
        out = super().forward(*with_padding(x, context))
        return from_padded(out.view(context.num_graphs, context.max_nodes, x.size(1)), context)

    @torch.no_grad()
    def attention_graph(self, x: Tensor, context: GraphContext | Tensor | None = None) -> AttentionGraph:
        """Return the selected keys and their weights, without dropout and without those of padding."""
        context = GraphContext.of(context, x)
        return without_padding(super().attention_graph(*with_padding(x, context)), context)


class FirstKeyAgain(KeySelection):
    """The first node of the graph in each slot of a query with fewer than k keys, where it counts again.

    So the output depends on the order of the nodes: the quirk ``kmip_duplicate_key_0``.

    Args:
        among (KeySelection, optional): selection of the other keys; None: `BestKeys`. (default: None)
    """

    def __init__(self, among: KeySelection | None = None) -> None:
        super().__init__(BestKeys() if among is None else among)

    def forward(
        self, q: Tensor, k: Tensor, context: GraphContext, num_keys: int, backend: str = "auto"
    ) -> tuple[Tensor, Tensor]:
        """Select, and fill up to num_keys; see `KeySelection`."""
        index, score = self.among(q, k, context, num_keys, backend)
        missing = (0, num_keys - index.size(-1))
        return repeat_first_key(q, k, pad(index, missing, value=-1), pad(score, missing, value=-torch.inf), context)


def without_padding(graph: AttentionGraph, context: GraphContext) -> AttentionGraph:
    """Undo `with_padding` in what was learned: padding among the keys becomes an empty slot.

    The weights of a query then no longer sum to 1.

    Shapes:
        index and weight (H, B * Nmax, K) -> (H, N, K).
    """
    node, mask = to_padded(torch.arange(len(context.batch), device=context.batch.device)[:, None], context)
    mask = mask.flatten()
    node = node.flatten().masked_fill(~mask, -1)  # (B * Nmax,), of each padded row
    index, weight = graph.index[:, mask], graph.weight[:, mask]
    index = node[index.clamp(min=0)].masked_fill(index < 0, -1)
    return AttentionGraph(index, weight.masked_fill(index < 0, 0.0))


@torch.no_grad()
def repeat_first_key(
    q: Tensor, k: Tensor, index: Tensor, score: Tensor, context: GraphContext
) -> tuple[Tensor, Tensor]:
    """Put the first node of the graph into the slots of queries that have fewer keys, so that it counts again in each.

    Shapes:
        q and k (H, N, D), index and score (H, N, K); returns tensors like index and score.
    """
    first = context.ptr[context.batch]  # (N,)
    again = (q * k[:, first]).sum(-1)[..., None]  # (H, N, 1)
    return torch.where(index < 0, first[:, None], index), torch.where(index < 0, again, score)
