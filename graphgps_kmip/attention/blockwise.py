"""Attention between blocks of consecutive nodes, from a table of the blocks that each block attends to.

Two forms of one thing: gathered blocks, and a list of pairs of nodes. In both, the first block of a graph and the one
called its last attend to all nodes of the graph, whatever the table says.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from graphgps_kmip.attention import gather_cpu
from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.dense import from_padded, to_padded
from graphgps_kmip.attention.gather import sparse_attention
from graphgps_kmip.attention.tiles import Tiles


def block_attention(
    q: Tensor, k: Tensor, v: Tensor, context: GraphContext, blocks: Tiles, key_blocks: Tensor, last: Tensor
) -> Tensor:
    """Softmax attention over gathered blocks of keys; a block that is named twice counts twice.

    Memory is that of the gathered keys (and values, without the fused kernel of the CPU), S times q each, and of keys
    and values padded to the largest graph.

    Args:
        q: queries.
        k: keys.
        v: values.
        context: the graphs.
        blocks: their blocks.
        key_blocks: blocks (numbers in the graph) that each block attends to; one that is not there is none.
        last: last block of each graph.

    Shapes:
        q, k and v (N, H, D), key_blocks (T, H, S), last (B,); returns (N, H, D). Gradients flow to q, k and v.
    """
    if not len(q):
        return v
    padded, mask = to_padded(torch.cat([q, k, v], dim=1).flatten(1), blocks.context)
    of_blocks = padded.unflatten(2, (3, *q.shape[1:])).permute(2, 0, 3, 1, 4)  # 3 of (T, H, W, D)
    at, seen = _keys(blocks, key_blocks, mask)
    if gather_cpu.can_run(v, q.size(0) * seen[0].numel()):
        index, score = _slots(*of_blocks[:2].detach(), blocks, at, seen)
        out = sparse_attention(q, k, v, index, score)
    else:
        out = _gathered(*of_blocks, at, seen)
        out = from_padded(out.transpose(1, 2).flatten(2), blocks.context).view_as(q)
    ends = _ends(of_blocks[0], k, v, context, blocks, last)
    block, place = _places(blocks)
    for end, number in enumerate((torch.zeros_like(last), last)):  # no scatter: a graph of one block is both
        is_end = (blocks.place == number[blocks.graph])[block]
        out = torch.where(is_end[:, None, None], ends[blocks.graph[block], :, end, place], out)
    return out


def _places(blocks: Tiles) -> tuple[Tensor, Tensor]:
    """Block of each node and its place in it, (N,) and (N,)."""
    block = blocks.context.batch
    return block, torch.arange(len(block), device=block.device) - blocks.context.ptr[block]


def _keys(blocks: Tiles, key_blocks: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the blocks that each block attends to, (T, H, S), and which of their nodes there are, (T, H, S, W)."""
    at = (torch.arange(len(mask), device=mask.device) - blocks.place)[:, None, None] + key_blocks
    there = (key_blocks >= 0) & (at < len(mask))
    at = at.where(there, 0)
    there &= blocks.graph[at] == blocks.graph[:, None, None]
    return at, mask[at] & there[..., None]


def _slots(q: Tensor, k: Tensor, blocks: Tiles, at: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Each node's keys and scores for `sparse_attention`: q and k (T, H, W, D) -> index and score (H, N, S * W)."""
    head = torch.arange(q.size(1), device=q.device)[:, None]
    score = q @ k[at, head].flatten(2, 3).mT  # (T, H, W, S * W)
    score = score.masked_fill(~seen.flatten(2)[:, :, None], -torch.inf)
    node = blocks.context.ptr[at][..., None] + torch.arange(q.size(2), device=q.device)  # (T, H, S, W)
    block, place = _places(blocks)
    index = node.masked_fill(~seen, -1).flatten(2)[block]
    return index.transpose(0, 1), score[block, :, place].transpose(0, 1)


def _gathered(q: Tensor, k: Tensor, v: Tensor, at: Tensor, seen: Tensor) -> Tensor:
    """Attention of each block to its S blocks: q, k, v (T, H, W, D) -> (T, H, W, D)."""
    head = torch.arange(q.size(1), device=q.device)[:, None]
    k, v = (values[at, head].flatten(2, 3) for values in (k, v))  # (T, H, S * W, D)
    return scaled_dot_product_attention(q, k, v, _some(seen.flatten(2)[:, :, None]))


def _ends(q: Tensor, k: Tensor, v: Tensor, context: GraphContext, blocks: Tiles, last: Tensor) -> Tensor:
    """Attention of the first and the last block of each graph to all its nodes: q (T, H, W, D) -> (B, H, 2, W, D)."""
    count = torch.bincount(blocks.graph, minlength=context.num_graphs)
    first = count.cumsum(0) - count
    at = (first[:, None] + torch.stack([torch.zeros_like(last), last], dim=1)).clamp(0, len(q) - 1)  # (B, 2)
    padded, mask = to_padded(torch.cat([k, v], dim=1).flatten(1), context)
    k, v = padded.unflatten(2, (2, *k.shape[1:])).permute(2, 0, 3, 1, 4)  # (B, H, Nmax, D)
    ends = scaled_dot_product_attention(q[at].transpose(1, 2).flatten(2, 3), k, v, _some(mask[:, None, None]))
    return ends.unflatten(2, (2, -1))


def _some(seen: Tensor) -> Tensor:
    """Let a query without any key, which is padding, see all: its row could turn into NaN."""
    return seen | ~seen.any(-1, keepdim=True)


def block_edges(context: GraphContext, blocks: Tiles, key_blocks: Tensor, last: Tensor, block_size: int) -> Tensor:
    """List the pairs of nodes that attend to each other, as edges between rows ``node * H + head``.

    Args:
        context: the graphs.
        blocks: their blocks.
        key_blocks: blocks (numbers in the graph) that each block attends to; one that is not there is none.
        last: last block of each graph.
        block_size: nodes of a block.

    Shapes:
        key_blocks (T, H, S), last (B,); returns (2, E), key and query of each pair, in the order of ``edge_attention``.
    """
    num_heads = key_blocks.size(1)
    size, start = context.sizes[context.batch], context.ptr[context.batch]
    is_end = (blocks.place == 0) | (blocks.place == last[blocks.graph])  # (T,)
    key_blocks = key_blocks.masked_fill(is_end[:, None, None], -1)[blocks.context.batch]  # (N, H, S)
    at = key_blocks[..., None] * block_size + torch.arange(block_size, device=size.device)  # place in the graph
    local = (at >= 0) & (at < size[:, None, None, None])  # (N, H, S, block_size)
    node, head, _, _ = local.nonzero(as_tuple=True)
    local = torch.stack([start[node] + at[local], node]) * num_heads + head
    ends = is_end[blocks.context.batch].nonzero().squeeze(1)
    node = ends.repeat_interleave(size[ends])
    before = (size[ends].cumsum(0) - size[ends]).repeat_interleave(size[ends])
    key = start[node] + torch.arange(len(node), device=node.device) - before
    every_head = torch.arange(num_heads, device=node.device)
    whole = (torch.stack([key, node]) * num_heads)[..., None] + every_head  # (2, E', H)
    return torch.cat([local, whole.flatten(1)], dim=1)
