"""Graphormer's graph token (Ying et al. 2021, section 3.1.1, "VNode"): a learned node in front of each graph.

What differs from the public code: edges stay between the nodes that they joined. There they keep their numbers while
all nodes move up, so that message passing beside the attention reads other nodes (``move_edges`` False does so, too).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

INITIAL_STD = 0.02  # as of Graphormer's tables


class GraphToken(nn.Module):
    r"""Put one learned node in front of the nodes of each graph: without edges, and with a bias of its own.

    .. math:: x_0 = \mathrm{drop}(t), \qquad b_{0j} = b_{j0} = u

    for all nodes j of the graph and the token itself; u is one number for each head.

    Args:
        dim: width C.
        num_heads: H, heads of the attention that reads the bias; None: there is no bias.
        dropout: probability to drop a number of t.
        move_edges: False repeats a fault of the public code, see above.

    Shapes: batch.x (N, C) -> (N + B, C), with batch.batch and batch.ptr of these nodes; batch.edge_index and the
        further edge sets with the new numbers of the nodes; batch.pair_index (2, P) -> (2, P + 2N + B) and
        batch.pair_attr (P, H) -> (P + 2N + B, H). Other attributes of nodes, as statistics of encodings, stay (N, ...):
        this comes after all that reads them.
    """

    def __init__(self, dim: int, num_heads: int | None, dropout: float = 0.0, *, move_edges: bool = True) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, dim) * INITIAL_STD)
        self.bias = None
        if num_heads is not None:  # (1, H, 1), as in public checkpoints
            self.bias = nn.Parameter(torch.randn(1, num_heads, 1) * INITIAL_STD)
        self.dropout, self.move_edges = nn.Dropout(dropout), move_edges

    def forward(self, batch: Batch) -> Batch:
        """Insert the nodes; tensors are replaced, none is changed."""
        ptr = first_nodes(batch)
        graphs = torch.arange(len(ptr) - 1, device=ptr.device)
        tokens = ptr[:-1] + graphs  # their numbers, (B,)
        graph = graphs.repeat_interleave(ptr.diff())
        moved = torch.arange(len(graph), device=ptr.device) + graph + 1  # new number of each node, (N,)
        x, values = _spread(batch.x, moved, len(graphs)), self.token.expand(len(graphs), -1)
        batch.x = x.index_copy(0, tokens, self.dropout(values).to(x.dtype))
        if "pe_EquivStableLapPE" in batch:  # gates read it at the ends of edges: never a token's
            batch.pe_EquivStableLapPE = _spread(batch.pe_EquivStableLapPE, moved, len(graphs))
        if self.move_edges:
            for name in [key for key in batch.keys() if key.endswith("edge_index")]:  # noqa: SIM118 (no mapping)
                batch[name] = moved[batch[name]]
        if self.bias is not None:
            self._add_pairs(batch, tokens, tokens[graph], moved)
        batch.batch, batch.ptr = graphs.repeat_interleave(ptr.diff() + 1), torch.cat([tokens, ptr[-1:] + len(graphs)])
        return batch

    def _add_pairs(self, batch: Batch, tokens: Tensor, seen: Tensor, moved: Tensor) -> None:
        """Add the pairs of each token with itself, with every node, and back; ``seen`` is the token of each node."""
        new = torch.cat([torch.stack(ends) for ends in ((tokens, tokens), (seen, moved), (moved, seen))], dim=1)
        bias = self.bias.squeeze(2).to(batch.pair_attr.dtype).expand(new.size(1), -1)
        batch.pair_index = torch.cat([moved[batch.pair_index], new], dim=1)
        batch.pair_attr = torch.cat([batch.pair_attr, bias])


def first_nodes(batch: Batch) -> Tensor:
    """Return the first node of each graph, and the number of nodes at the end; a `Data` that is no batch is one graph.

    Shapes: (B + 1,).
    """
    return batch.ptr if "ptr" in batch else torch.tensor([0, batch.num_nodes], device=batch.x.device)


def _spread(rows: Tensor, moved: Tensor, num_tokens: int) -> Tensor:
    """Return the rows of nodes at their new numbers, zeros between them: (N, C) -> (N + B, C)."""
    return rows.new_zeros(len(rows) + num_tokens, rows.size(1)).index_copy(0, moved, rows)
