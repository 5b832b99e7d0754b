"""Linear attention: sums over the nodes of each graph, weighted by products of query and key features.

The sum over keys is formed once for a graph, so that no matrix of pairs is (Katharopoulos et al. 2020, section 3.2).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.dense import Tiles, from_padded, to_padded

TILE = 128  # nodes: for 64 values of a head, the sums of tiles then take half the memory of as many features


def linear_attention(q: Tensor, k: Tensor, v: Tensor, context: GraphContext) -> tuple[Tensor, Tensor]:
    r"""Return :math:`\sum_m \langle q_n, k_m \rangle v_m` and :math:`\sum_m \langle q_n, k_m \rangle`.

    m runs over the nodes of the graph of n. The quotient is the attention whose weights are the normalised products.
    Memory is H * F * (N + B * D) numbers for N nodes in B graphs, time H * F * N * D.

    Args:
        q (Tensor): features of queries.
        k (Tensor): features of keys.
        v (Tensor): values.
        context (GraphContext): the graphs.

    Shapes:
        q and k (N, H, F), v (N, H, D); returns (N, H, D) and (N, H, 1). Gradients flow to all three.
    """
    num_heads = v.size(1)
    tiles = Tiles.of_uneven(context, TILE)
    q, k = (to_padded(features.flatten(1), tiles.context)[0].unflatten(2, k.shape[1:]) for features in (q, k))
    v = pad(v, (0, 1), value=1.0)  # the last channel sums the products themselves; of padding it is 0
    v = to_padded(v.flatten(1), tiles.context)[0].unflatten(2, v.shape[1:])  # (T, W, H, D + 1); q, k (T, W, H, F)
    sums = torch.einsum("twhf,twhd->thfd", k, v)
    sums = sums.new_zeros(context.num_graphs, *sums.shape[1:]).index_add(0, tiles.graph, sums)  # (B, H, F, D + 1)
    out = from_padded(torch.einsum("twhf,thfd->twhd", q, sums[tiles.graph]).flatten(2), tiles.context)
    out = out.unflatten(1, (num_heads, -1))  # (N, H, D + 1)
    return out[..., :-1], out[..., -1:]
