"""Prediction heads for graphs, nodes, node pairs and word sequences: ``head(batch) -> (pred, true)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import BatchNorm, global_add_pool, global_max_pool, global_mean_pool

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.errors import InputError
from graphgps_kmip.model.feature_encoding import UnitRows
from graphgps_kmip.ops.context import first_nodes
from graphgps_kmip.ops.host_copies import find_copy, find_rows, host_copy, remember
from graphgps_kmip.ops.row_layers import NORM_LAYERS
from graphgps_kmip.registry import lookup, register


def first_node(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Return the first node of each graph: its token, if it has one."""
    graphs = torch.arange(num_graphs, device=batch.device)
    first, end = torch.searchsorted(batch, graphs), torch.searchsorted(batch, graphs, right=True)
    return torch.cat([x, x.new_zeros(1, x.size(1))])[first.where(first < end, len(x))]


# Each: (x (N, C), batch (N,), number of graphs B) -> (B, C); graphs without nodes give zeros.
register("pooling", "add", global_add_pool, summary="sum over the nodes of a graph")
register("pooling", "mean", global_mean_pool, summary="mean over the nodes of a graph")
register("pooling", "max", global_max_pool, summary="maximum over the nodes of a graph")
register("pooling", "graph_token", first_node)


def mlp(
    widths: Sequence[int], dropout: float | None = 0.0, act: Callable[[], nn.Module] = nn.ReLU, l2norm: bool = False
) -> nn.Sequential:
    """Biased linear maps from each width to the next, with activation, unit rows (``l2norm``) and dropout between."""
    if len(widths) < 2:
        raise InputError("a head needs at least one layer, got gnn.layers_post_mp 0: set it to 1 or more")
    after = [UnitRows] if l2norm else []
    after += [] if dropout is None else [partial(nn.Dropout, dropout)]
    parts: list[nn.Module] = []
    for dim, hidden in pairwise(widths[:-1]):
        parts += [nn.Linear(dim, hidden), act(), *(build() for build in after)]
    return nn.Sequential(*parts, nn.Linear(*widths[-2:]))


class GraphHead(nn.Module):
    """One prediction per graph: pool the nodes, then an MLP.

    Args:
        dim (int): width C.
        dim_out (int): number of outputs.
        num_layers (int, optional): linear maps of the MLP. (default: 1)
        pooling (str, optional): a registered pooling. (default: "mean")
        dropout (float, optional): probability between the MLP's layers. (default: 0.0)
        act (callable, optional): builds the MLP's activation. (default: ReLU)
        input_dropout (bool, optional): dropout before the MLP too, on the pooled nodes. (default: False)
        l2norm (bool, optional): hidden rows of length 1, see `mlp`. (default: False)
        node_norm (bool, optional): LayerNorm of each node before pooling, as in Graphormer. (default: False)

    Shapes: batch.x (N, C) -> (B, dim_out); the labels are ``batch.y`` as they are.
    """

    level = "graph"

    def __init__(
        self,
        dim: int,
        dim_out: int,
        num_layers: int = 1,
        pooling: str = "mean",
        dropout: float = 0.0,
        act: Callable[[], nn.Module] = nn.ReLU,
        input_dropout: bool = False,
        l2norm: bool = False,
        node_norm: bool = False,
    ) -> None:
        super().__init__()
        self.norm, self.pool = nn.LayerNorm(dim) if node_norm else nn.Identity(), lookup("pooling", pooling).component
        self.mlp = mlp([dim] * num_layers + [dim_out], dropout, act, l2norm)
        self.dropout = nn.Dropout(dropout if input_dropout else 0.0)

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return predictions and labels of the graphs."""
        return self.mlp(self.dropout(self.pool(self.norm(batch.x), batch.batch, batch.num_graphs))), batch.y


def san_graph_head(
    dim: int, dim_out: int, pooling: str = "mean", halvings: int = 2, act: Callable[[], nn.Module] = nn.ReLU
) -> GraphHead:
    """Return SAN's head (Kreuzer et al. 2021): pooling, then ``C -> C // 2 -> C // 4 ... -> dim_out``."""
    head, widths = GraphHead(dim, dim_out, pooling=pooling), [dim // 2**i for i in range(halvings + 1)]
    if not widths[-1]:
        raise InputError(
            f"the head san_graph halves the width {halvings} times, and gnn.dim_inner is {dim}: set it to "
            f"{2**halvings} or more"
        )
    head.mlp = mlp([*widths, dim_out], None, act)
    return head


class SequenceHead(nn.Module):
    """A prediction of V classes per graph for each of L positions of a sequence: pool the nodes, then L linear maps.

    Shapes: batch.x (N, C) -> (B, L, V); the labels are ``batch.y`` (B, L).
    """

    level = "graph"

    def __init__(self, dim: int, dim_out: int, length: int = 5, pooling: str = "mean") -> None:
        super().__init__()
        self.pool = lookup("pooling", pooling).component
        self.graph_pred_linear_list = nn.ModuleList(nn.Linear(dim, dim_out) for _ in range(length))  # ogb's name

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return predictions and labels of the graphs."""
        pooled = self.pool(batch.x, batch.batch, batch.num_graphs)
        return torch.stack([linear(pooled) for linear in self.graph_pred_linear_list], dim=1), batch.y


class NodeHead(nn.Module):
    """One prediction per node.

    Args:
        dim, dim_out, num_layers, dropout, act, l2norm: of the MLP, as in `GraphHead`.
        masked (bool, optional): predict the nodes of ``batch[f"{batch.split}_mask"]`` only, all without a split (one
            graph, transductive); False: every node (inductive). (default: False)

    Shapes: batch.x (N, C) -> (N, dim_out), or the masked rows of it; labels alike.
    """

    level = "node"

    def __init__(
        self,
        dim: int,
        dim_out: int,
        num_layers: int = 1,
        dropout: float = 0.0,
        act: Callable[[], nn.Module] = nn.ReLU,
        masked: bool = False,
        l2norm: bool = False,
    ) -> None:
        super().__init__()
        self.mlp, self.masked = mlp([dim] * num_layers + [dim_out], dropout, act, l2norm), masked

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return predictions and labels of the nodes."""
        if not self.masked:
            return self.mlp(batch.x), batch.y
        x, y = _mask_nodes(batch)
        return self.mlp(x), y


def _mask_nodes(batch: Any) -> tuple[Tensor, Tensor]:
    """Return features and labels of the nodes of ``batch[f"{batch.split}_mask"]``; labels keep their host copy."""
    split = batch.get("split")
    if split is None:
        return batch.x, batch.y
    if f"{split}_mask" not in batch:
        raise InputError(f"this head predicts the nodes of {split}_mask, which the graph lacks: give it, or no split")
    rows = find_rows(batch[f"{split}_mask"])
    y, copy = batch.y[rows], find_copy(batch.y)
    return batch.x[rows], y if copy is None else remember(y, copy[host_copy(rows)])


# Each: (first nodes (L, C), second nodes (L, C)) -> (L,). "concat" is an MLP on both.
DECODINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dot": lambda first, second: (first * second).sum(-1),
    "cosine_similarity": F.cosine_similarity,
}
PAIRS = 2**20  # pairs scored at once for ranks: bounds the memory where graphs are large


class EdgeHead(nn.Module):
    """Pairs of nodes: logits of each labelled pair and, optionally, the rank of each positive pair (link prediction).

    The pairs are ``batch.edge_label_index`` (2, L), their labels ``batch.edge_label`` (L,), 1 for a positive pair.
    A positive pair (i, j) is ranked by its logit among those of (i, v), v the other nodes of its graph; equal logits
    share the mean of their ranks, as in ogb. "filtered" leaves out every v for which (i, v) is positive itself,
    "filtered, no self" also v = i.

    Args:
        dim, num_layers, dropout, act, l2norm: of the MLP, as in `GraphHead`; it is on nodes, or on pairs for "concat".
        decoding (str, optional): a key of `DECODINGS`, or "concat". (default: "dot")
        ranked (bool, optional): return ranks too; costs all pairs (i, v), so not for one large graph. (default: True)
        dim_out (int, optional): outputs of a pair, for its class or targets; more than 1 with "concat". (default: 1)

    Shapes: batch.x (N, C) -> (L, dim_out) logits, or (L, 5): logit, number of positive pairs in the pair's graph, rank,
        rank filtered, rank filtered without self (the last four are 0 for negative pairs); labels (L,).
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
        dim_out: int = 1,
    ) -> None:
        super().__init__()
        if dim_out > 1 and decoding != "concat":
            raise InputError(
                f"model.edge_decoding: {decoding} gives one output, and a pair has {dim_out} classes or targets: set "
                "it to concat"
            )
        if decoding not in (*DECODINGS, "concat"):
            raise InputError(f"unknown model.edge_decoding {decoding!r}: choose one of {', '.join(DECODINGS)}, concat")
        self.decode, self.ranked = DECODINGS.get(decoding), ranked
        width, dim_out = (dim, dim) if self.decode else (2 * dim, dim_out)
        self.mlp = mlp([width] * num_layers + [dim_out], dropout, act, l2norm)

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return logits (and ranks) of the labelled pairs, and their labels."""
        if batch.get("edge_label_index") is None or batch.get("edge_label") is None:
            raise InputError(
                "this head needs edge_label_index (2, L) and edge_label (L,), which the data lacks: use another head"
            )
        x = self.mlp(batch.x) if self.decode else batch.x
        pairs, true = batch.edge_label_index, batch.edge_label
        logits = self._logits(x, *pairs)
        logits = logits[:, None] if logits.dim() == 1 else logits
        if not self.ranked:
            return logits, true
        ptr = first_nodes(batch)
        return torch.cat([logits, self._ranks(x.detach(), pairs, true, ptr)], dim=1), true

    def _logits(self, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        if self.decode is None:
            return self.mlp(torch.cat([x[first], x[second]], dim=-1)).squeeze(-1)
        x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x  # else nearly all scores are equal
        return self.decode(x[first], x[second])

    @torch.no_grad()
    def _ranks(self, x: Tensor, pairs: Tensor, true: Tensor, ptr: Tensor) -> Tensor:
        """Return (L, 4): positives in the graph, three ranks; x (N, C), ptr (B + 1,) the first node of each graph."""
        positive = (true == 1).nonzero().squeeze(-1)  # (P,)
        head, tail = pairs[:, positive]
        graph = torch.searchsorted(ptr, head, right=True) - 1
        size = ptr.diff()[graph]
        # All (head, v), flat (M,): `row` is the positive pair, `node` is v.
        row = torch.repeat_interleave(size)
        node = torch.arange(len(row), device=x.device) + (ptr[graph] - size.cumsum(0) + size)[row]
        positive_pairs = head * len(x) + tail
        positive_score = self._logits(x, head, tail)
        ranks = torch.ones(len(positive), 3, device=x.device)
        for p, v in zip(row.split(PAIRS), node.split(PAIRS), strict=True):
            score = self._logits(x, head[p], v)
            bar = positive_score[p]
            ahead = (~(score <= bar)).float() + (score == bar).float() / 2  # NaN ranks first
            negative = ~torch.isin(head[p] * len(x) + v, positive_pairs)
            for column, counts in enumerate((v != tail[p], negative, negative & (v != head[p]))):
                ranks[:, column].index_add_(0, p, ahead * counts)
        rows = torch.zeros(len(true), 4, device=x.device)
        rows[positive] = torch.cat([torch.bincount(graph, minlength=len(ptr))[graph, None], ranks], dim=1)
        return rows


class OutputHead(nn.Module):
    """Node features as predictions, for a network whose last layer has the outputs; `masked` as in `NodeHead`.

    Shapes: batch.x (N, dim_out) as it is, or the masked rows of it; labels alike.
    """

    level = "node"

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.masked = masked

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return predictions and labels of the nodes."""
        return _mask_nodes(batch) if self.masked else (batch.x, batch.y)


CLASS_TOKEN = "cls_token"  # pooling: the class token of each graph, which class attention has updated


def linear_head_widths(dim: int, dim_out: int, num_layers: int, halve_widths: bool = False) -> list[int]:
    """Return the widths of the MLP of `LinearHead`: max(C, dim_out), or C / 2, C / 4, ... with ``halve_widths``."""
    if num_layers < 1:
        return [dim_out]
    widths = [dim]
    for _ in range(num_layers - 1):
        widths.append(max(widths[-1] // 2 if halve_widths else widths[-1], dim_out))
    return [*widths, dim_out]


class LinearHead(nn.Module):
    """PPGT's head, one prediction per graph or per node: norm, dropout, an MLP, optionally a batch norm of the outputs.

    Args:
        dim, dim_out, num_layers, act: of the MLP, as in `GraphHead`, but with GELU as default.
        pooling (str or None, optional): also "cls_token": ``batch.class_token``; None: nodes. (default: "mean")
        dropout (float, optional): probability before the MLP and between its layers. (default: 0.0)
        norm (str, optional): a key of `NORM_LAYERS`, before the MLP. (default: "none")
        halve_widths (bool, optional): see `linear_head_widths`. (default: False)
        out_bn (bool, optional): batch norm of the outputs. (default: False)

    Shapes: batch.x (N, C) -> (B, dim_out), or (N, dim_out) without pooling; the labels are ``batch.y``, as they are.
        Where ``batch[f"{batch.split}_mask"]`` divides the nodes of one graph, only its nodes are predicted.
    """

    def __init__(
        self,
        dim: int,
        dim_out: int,
        num_layers: int = 1,
        pooling: str | None = "mean",
        dropout: float = 0.0,
        act: Callable[[], nn.Module] = nn.GELU,
        *,
        norm: str = "none",
        halve_widths: bool = False,
        out_bn: bool = False,
    ) -> None:
        super().__init__()
        self.level = "node" if pooling is None else "graph"
        self.reads_token = pooling == CLASS_TOKEN
        self.pool = None if pooling in (None, CLASS_TOKEN) else lookup("pooling", pooling).component
        self.norm, self.dropout = look_up(NORM_LAYERS, norm, "post_pooling_norm")(dim), nn.Dropout(dropout)
        self.mlp = mlp(linear_head_widths(dim, dim_out, num_layers, halve_widths), dropout, act)
        self.out_norm = BatchNorm(dim_out, allow_single_element=True) if out_bn else nn.Identity()

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return predictions and labels of the graphs, or of the nodes."""
        rows, label = self._read_rows(batch), batch.y
        split = batch.get("split") if self.level == "node" else None
        mask = None if split is None else batch.get(f"{split}_mask")
        if mask is not None:
            rows, label = rows[mask], label[mask]
        return self.out_norm(self.mlp(self.dropout(self.norm(rows)))), label

    def _read_rows(self, batch: Any) -> Tensor:
        if not self.reads_token:
            return batch.x if self.pool is None else self.pool(batch.x, batch.batch, batch.num_graphs)
        if batch.get("class_token") is None:
            raise InputError(
                "model.graph_pooling cls_token: the graphs have no class token: add class_token to "
                "ppgt.node_features, or take another pooling"
            )
        return batch.class_token
