"""BigBird attention: block-sparse, with window, global and random blocks of nodes (Zaheer et al. 2020, section 2).

Differs from GraphGPS: blocks are counted within each graph and not in the padded batch, random blocks are distinct from
those that are attended to anyway, and no global random state is touched.
"""

from __future__ import annotations

from functools import partialmethod
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from graphgps_kmip.attention.head_arguments import (
    check_choice,
    check_dropout,
    check_least,
    describe,
    dim_per_head,
    split_heads,
)
from graphgps_kmip.ops import triton_sparse_attention
from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.ops.dense import Tiles, from_padded, to_padded
from graphgps_kmip.ops.host_copies import counts
from graphgps_kmip.ops.sparse_attention import cpu_can_run, sparse_attention
from graphgps_kmip.ranges import COUNT, POSITIVE, Choice, Registered, whole
from graphgps_kmip.registry import register

_BITS = 0xFFFFFFFF


def fixed_blocks(block: Tensor, last: Tensor) -> Tensor:
    """Return the block before, the block itself, the one after, the first and the last of its graph, each once.

    Shapes: block and last, numbers in the graph of itself and of its last block, (T,); returns (T, 5), -1: none.
    """
    window = block[:, None] + torch.arange(-1, 2, device=block.device)
    window = window.masked_fill(window > last[:, None], -1)
    first = torch.where(block > 1, 0, -1)
    return torch.cat([window, torch.stack([first, torch.where(block < last - 1, last, -1)], dim=1)], dim=1)


def random_blocks(block: Tensor, last: Tensor, num_heads: int, num_random: int, seed: Tensor) -> Tensor:
    """Draw distinct blocks for each block and head among those that ``fixed_blocks`` leaves, all of them where few.

    A function of (seed, last, block, head) only: a graph gets the same blocks in any batch and on any device, and
    graphs with equally many blocks share them. Uniform over the subsets (Floyd's sampling, Bentley and Floyd 1987).
    The first and the last block get numbers without meaning, and so do blocks beyond it, which are padding.

    Shapes: block and last as of `fixed_blocks` (T,), seed (); returns (T, H, R), -1: none.
    """
    block, last = block[:, None], last[:, None]  # (T, 1)
    low, high = (block - 1).clamp(min=1), torch.minimum(block + 1, last - 1)  # of the window, without first and last
    count = last - 1 - (high - low + 1)  # blocks to choose from
    state = _mix(_mix(_mix(seed), block), torch.arange(num_heads, device=block.device))  # (T, H)
    drawn = torch.empty(*state.shape, 0, dtype=block.dtype, device=block.device)
    for draw in range(num_random):
        largest = (count - num_random + draw).expand_as(state)
        number = _mix(state, draw) % (largest + 1).clamp(min=1)
        number = torch.where((drawn == number[..., None]).any(-1), largest, number)
        drawn = torch.cat([drawn, number.masked_fill(largest < 0, -1)[..., None]], dim=-1)
    skipped = torch.where(drawn + 1 < low[..., None], 1, (high - low + 2)[..., None])  # the first block, the window
    return torch.where(drawn < 0, -1, drawn + skipped)


def _mix(state: Tensor, word: Tensor | int = 0) -> Tensor:
    state = (state + word) & _BITS
    for _ in range(2):
        state = ((state >> 16) ^ state) * 0x45D9F3B & _BITS  # an odd number of 27 bits: int64 does not overflow
    return (state >> 16) ^ state


def block_attention(
    q: Tensor, k: Tensor, v: Tensor, context: GraphContext, blocks: Tiles, key_blocks: Tensor, last: Tensor
) -> Tensor:
    """Softmax attention over gathered blocks of keys; a block that is named twice counts twice.

    Memory is that of the gathered keys, S times q, without the fused kernels of the values too, and of keys and values
    padded to the largest graph. key_blocks are numbers within the graph of each block; other numbers are skipped.

    Shapes: q, k and v (N, H, D), key_blocks (T, H, S), last block of each graph (B,); returns (N, H, D).
    """
    if not len(q):
        return v
    padded, mask = to_padded(torch.cat([q, k, v], dim=1).flatten(1), blocks.context)
    qkv_blocks = padded.unflatten(2, (3, *q.shape[1:])).permute(2, 0, 3, 1, 4)  # 3 of (T, H, W, D)
    at, seen = _keys(blocks, key_blocks, mask)
    if cpu_can_run(v, q.size(0) * seen[0].numel()) or triton_sparse_attention.can_run(v):
        index, score = _slots(*qkv_blocks[:2].detach(), blocks, at, seen)
        out = sparse_attention(q, k, v, index, score)
    else:
        head = torch.arange(q.size(1), device=q.device)[:, None]
        keys, values = (part[at, head].flatten(2, 3) for part in qkv_blocks[1:])  # (T, H, S * W, D)
        out = scaled_dot_product_attention(qkv_blocks[0], keys, values, _show_padding(seen.flatten(2)[:, :, None]))
        out = from_padded(out.transpose(1, 2).flatten(2), blocks.context).view_as(q)
    outer = _first_and_last(qkv_blocks[0], k, v, context, blocks, last)
    block, place = _places(blocks)
    for which, number in enumerate((torch.zeros_like(last), last)):  # no scatter: a graph of one block is both
        outermost = (blocks.place == number[blocks.graph])[block]
        out = torch.where(outermost[:, None, None], outer[blocks.graph[block], :, which, place], out)
    return out


def _places(blocks: Tiles) -> tuple[Tensor, Tensor]:
    """Block of each node and its place in it, (N,) and (N,)."""
    block = blocks.context.batch
    return block, torch.arange(len(block), device=block.device) - blocks.context.ptr[block]


def _keys(blocks: Tiles, key_blocks: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the blocks that each block attends to, (T, H, S), and which of their nodes are real, (T, H, S, W)."""
    at = (torch.arange(len(mask), device=mask.device) - blocks.place)[:, None, None] + key_blocks
    exists = (key_blocks >= 0) & (at < len(mask))
    at = at.where(exists, 0)
    exists &= blocks.graph[at] == blocks.graph[:, None, None]
    return at, mask[at] & exists[..., None]


def _slots(q: Tensor, k: Tensor, blocks: Tiles, at: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Each node's keys and scores for `sparse_attention`: q and k (T, H, W, D) -> index and score (H, N, S * W)."""
    head = torch.arange(q.size(1), device=q.device)[:, None]
    score = q @ k[at, head].flatten(2, 3).mT  # (T, H, W, S * W)
    score = score.masked_fill(~seen.flatten(2)[:, :, None], -torch.inf)
    node = blocks.context.ptr[at][..., None] + torch.arange(q.size(2), device=q.device)  # (T, H, S, W)
    block, place = _places(blocks)
    index = node.masked_fill(~seen, -1).flatten(2)[block]
    return index.transpose(0, 1), score[block, :, place].transpose(0, 1)


def _first_and_last(q: Tensor, k: Tensor, v: Tensor, context: GraphContext, blocks: Tiles, last: Tensor) -> Tensor:
    """Attention of the first and the last block of each graph to all its nodes: q (T, H, W, D) -> (B, H, 2, W, D)."""
    count = counts(blocks.graph, context.num_graphs)
    first = count.cumsum(0) - count
    at = (first[:, None] + torch.stack([torch.zeros_like(last), last], dim=1)).clamp(0, len(q) - 1)  # (B, 2)
    padded, mask = to_padded(torch.cat([k, v], dim=1).flatten(1), context)
    k, v = padded.unflatten(2, (2, *k.shape[1:])).permute(2, 0, 3, 1, 4)  # (B, H, Nmax, D)
    out = scaled_dot_product_attention(q[at].transpose(1, 2).flatten(2, 3), k, v, _show_padding(mask[:, None, None]))
    return out.unflatten(2, (2, -1))


def _show_padding(seen: Tensor) -> Tensor:
    """Unmask all keys of a query without any, which is padding: its row could turn into NaN."""
    return seen | ~seen.any(-1, keepdim=True)


ACTIVATIONS = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid}
FORMS = ("block_sparse",)  # original_full of the public codes fails there, too


# As in GraphGPS, the layers' dropout reaches BigBird, which has no dropout of weights.
@register("attention", "BigBird", breaks=("permutation",), dropout="dropout")
class BigBirdAttention(nn.Module):
    r"""Multi-head attention between blocks of consecutive nodes, with its own residuals and feed-forward network.

    .. math::
        h &= \mathrm{norm}(\mathrm{drop}(W \, \mathrm{attention}(x) + b) + x), \qquad
        o = \mathrm{norm}(\mathrm{drop}(\mathrm{FFN}(h)) + h)

    with ``FFN = Linear(dim, dim) act Linear(dim, dim)``. The first and the last block of a graph attend to all its
    nodes, every other block to itself, the blocks before and after it, the first, the last, and R random ones for each
    head. So the order of the nodes matters, except in graphs of at most R + 4 blocks, which are attended to in full.
    Time and memory are linear: per head N * (5 + R) * block_size pairs, and N * 2 * block_size for first and last.

    The random blocks are drawn from ``seed``, the number of blocks of the graph and the place in it. The seed is a
    buffer, drawn from torch's generator when the layer is made: layers differ, and a checkpoint keeps its pattern.
    Second derivatives need ``torch.nn.attention.sdpa_kernel(SDPBackend.MATH)``, as in `FullAttention`.

    Args:
        dim (int): channels in and out.
        num_heads (int): heads; must divide dim.
        dropout (float, optional): probability to drop a channel before each residual, in training only. (default: 0.0)
        block_size (int, optional): nodes of a block. (default: 3)
        num_random_blocks (int, optional): random blocks R. (default: 3)
        use_bias (bool, optional): give queries, keys and values a bias. (default: False)
        hidden_act (str, optional): activation of the feed-forward network, a key of `ACTIVATIONS`. (default: "relu")
        layer_norm_eps (float, optional): added to the variance by the norms. (default: 1e-06)
        form (str, optional): "block_sparse", the public codes' ``attention_type``. (default: "block_sparse")

    Shapes: x (N, dim); context a GraphContext, a batch vector (N,) or None; returns (N, dim).

    Raises:
        ValueError: one of the arguments is out of its range.
    """

    seed: Tensor

    def __init__(
        self,
        dim: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        block_size: Annotated[int, COUNT] = 3,
        num_random_blocks: Annotated[int, whole(0, 1000)] = 3,
        use_bias: bool = False,
        hidden_act: Annotated[str, Choice(ACTIVATIONS)] = "relu",
        layer_norm_eps: Annotated[float, POSITIVE] = 1e-6,
        form: Annotated[str, Registered("block_sparse")] = "block_sparse",
    ) -> None:
        super().__init__()
        dim_per_head(dim, num_heads)
        check_least(1, block_size=block_size)
        check_least(0, num_random_blocks=num_random_blocks)
        check_choice(ACTIVATIONS, hidden_act=hidden_act)
        check_choice(FORMS, form=form)
        self.dim, self.num_heads = dim, num_heads
        self.block_size, self.num_random_blocks = block_size, num_random_blocks
        self.use_bias, self.hidden_act, self.layer_norm_eps = use_bias, hidden_act, layer_norm_eps
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=use_bias) for _ in range(3))
        self.out = nn.Linear(dim, dim)
        self.ffn = nn.Sequential(nn.Linear(dim, dim), ACTIVATIONS[hidden_act](), nn.Linear(dim, dim))
        self.out_norm, self.ffn_norm = (nn.LayerNorm(dim, eps=layer_norm_eps) for _ in range(2))
        self.dropout = nn.Dropout(check_dropout(dropout))
        self.register_buffer("seed", torch.randint(2**31, ()))

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each graph: x (N, dim) -> (N, dim)."""
        context = GraphContext.of(context, x)
        q, k, v = (split_heads(linear(x), self.num_heads) for linear in (self.query, self.key, self.value))
        blocks, last = Tiles.of(context, self.block_size), self._last_blocks(context)
        places = blocks.place, last[blocks.graph]
        fixed = fixed_blocks(*places)[:, None].expand(-1, self.num_heads, -1)
        key_blocks = torch.cat([fixed, self._random_blocks(*places)], dim=-1)  # (T, H, 5 + R)
        out = block_attention(q, k, v, context, blocks, key_blocks, last).flatten(1)
        h = self.out_norm(self.dropout(self.out(out)) + x)
        return self.ffn_norm(self.dropout(self.ffn(h)) + h)

    extra_repr = partialmethod(describe, "block_size", "num_random_blocks")

    def _last_blocks(self, context: GraphContext) -> Tensor:
        """Number of the last block of each graph (B,), -1 without nodes."""
        return (context.sizes - 1) // self.block_size

    def _random_blocks(self, block: Tensor, last: Tensor) -> Tensor:
        return random_blocks(block, last, self.num_heads, self.num_random_blocks, self.seed)  # (T, H, R)
