"""Prediction head for pairs of nodes: logits of labelled pairs, and the ranks of the positive ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphgps_kmip.errors import InputError
from graphgps_kmip.model.prediction_heads import mlp

# Each: (first nodes (L, C), second nodes (L, C)) -> (L,). "concat" is an MLP on both.
DECODINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dot": lambda first, second: (first * second).sum(-1),
    "cosine_similarity": F.cosine_similarity,
}
PAIRS = 2**20  # pairs scored at once for ranks: bounds the memory where graphs are large


class EdgeHead(nn.Module):
    """One logit for each labelled pair of nodes and, where wanted, the rank of each positive pair.

    The pairs are ``batch.edge_label_index`` (2, L), their labels ``batch.edge_label`` (L,), 1 for a positive pair.
    A positive pair (i, j) is ranked by its logit among those of (i, v), v the other nodes of its graph; equal logits
    share the mean of their places, as in ogb. "filtered" leaves out every v for which (i, v) is positive itself,
    "filtered, no self" also v = i.

    Args:
        dim: width C.
        num_layers: linear maps of the MLP, on nodes, or on pairs for "concat".
        decoding: a row of `DECODINGS`, or "concat".
        dropout: probability between the MLP's layers.
        act: builds the MLP's activation.
        ranked: give ranks too; their cost is that of all pairs (i, v), so not for one large graph.
        l2norm: hidden rows of length 1, see `mlp`.

    Shapes: batch.x (N, C) -> (L, 1) logits, or (L, 5): logit, number of positive pairs in the pair's graph, rank, rank
        filtered, rank filtered without self (the last four are 0 for negative pairs); labels (L,).

    Raises:
        ValueError: unknown decoding; without labelled pairs, when called.
    """

    level = "link"

    def __init__(
        self,
        dim: int,
        num_layers: int = 1,
        decoding: str = "dot",
        dropout: float = 0.0,
        act: Callable[[], nn.Module] = nn.ReLU,
        ranked: bool = True,
        l2norm: bool = False,
    ) -> None:
        super().__init__()
        if decoding not in (*DECODINGS, "concat"):
            raise InputError(f"unknown model.edge_decoding {decoding!r}: choose one of {', '.join(DECODINGS)}, concat")
        self.decode, self.ranked = DECODINGS.get(decoding), ranked
        widths = (dim, dim) if self.decode else (2 * dim, 1)
        self.mlp = mlp(*widths, num_layers, dropout, act, l2norm)

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return logits (and ranks) of the labelled pairs, and their labels."""
        if batch.get("edge_label_index") is None or batch.get("edge_label") is None:
            raise InputError("this head needs labelled pairs, edge_label_index (2, L) and edge_label (L,): use another")
        x = self.mlp(batch.x) if self.decode else batch.x
        pairs, true = batch.edge_label_index, batch.edge_label
        logits = self._logits(x, *pairs)[:, None]
        if not self.ranked:
            return logits, true
        ptr = batch.get("ptr")
        ptr = torch.tensor([0, len(x)], device=x.device) if ptr is None else ptr
        return torch.cat([logits, self._ranks(x.detach(), pairs, true, ptr)], dim=1), true

    def _logits(self, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        if self.decode is None:
            return self.mlp(torch.cat([x[first], x[second]], dim=-1)).squeeze(-1)
        x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x  # else nearly all scores would tie
        return self.decode(x[first], x[second])

    @torch.no_grad()
    def _ranks(self, x: Tensor, pairs: Tensor, true: Tensor, ptr: Tensor) -> Tensor:
        """Return (L, 4): positives in the graph, three ranks; x (N, C), ptr (B + 1,) the first node of each graph."""
        positive = (true == 1).nonzero().squeeze(-1)  # (P,)
        head, tail = pairs[:, positive]
        graph = torch.searchsorted(ptr, head, right=True) - 1
        size = ptr.diff()[graph]
        # All (head, v), flat (M,): `row` says of which positive pair, `node` is v.
        row = torch.repeat_interleave(size)
        node = torch.arange(len(row), device=x.device) + (ptr[graph] - size.cumsum(0) + size)[row]
        known = head * len(x) + tail
        own = self._logits(x, head, tail)
        ranks = torch.ones(len(positive), 3, device=x.device)
        for p, v in zip(row.split(PAIRS), node.split(PAIRS), strict=True):
            score = self._logits(x, head[p], v)
            ahead = (~(score <= own[p])).float() + (score == own[p]).float() / 2  # NaN is ahead of all
            unknown = ~torch.isin(head[p] * len(x) + v, known)
            for column, counts in enumerate((v != tail[p], unknown, unknown & (v != head[p]))):
                ranks[:, column].index_add_(0, p, ahead * counts)
        rows = torch.zeros(len(true), 4, device=x.device)
        rows[positive] = torch.cat([torch.bincount(graph, minlength=len(ptr))[graph, None], ranks], dim=1)
        return rows
