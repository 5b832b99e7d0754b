"""BigBird: attention to neighbouring, first and last, and random blocks of nodes (Zaheer et al. 2020, section 2).

With the settings of GraphGPS, whose layer is a whole transformer layer with residuals and a feed-forward network of its
own. Differs from it, unless asked to repeat it: blocks are counted in each graph and not in the padded batch, random
blocks are new ones, and no random state outside is touched.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

from graphgps_kmip.attention.block_pattern import draw_public, fixed_blocks, public_random_blocks, random_blocks
from graphgps_kmip.attention.blockwise import block_attention, block_edges
from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.edge_attention import edge_attention
from graphgps_kmip.attention.head_arguments import check_dropout, described, dim_per_head
from graphgps_kmip.attention.tiles import Tiles
from graphgps_kmip.errors import InputError
from graphgps_kmip.ranges import COUNT, NATURAL, POSITIVE, Choice, Registered

ACTIVATIONS = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid}
FORMS = ("block_sparse", "edges")
PATTERNS = ("graph", "public", "public_global_rng")


class BigBirdAttention(nn.Module):
    r"""Multi-head attention between blocks of consecutive nodes, with its own residuals and feed-forward network.

    .. math::
        h &= \mathrm{norm}(\mathrm{drop}(W \, \mathrm{attention}(x) + b) + x), \qquad
        o = \mathrm{norm}(\mathrm{drop}(\mathrm{FFN}(h)) + h)

    with ``FFN = Linear(dim, dim) act Linear(dim, dim)``. The first and the last block of a graph attend to all its
    nodes, every other block to itself, the blocks before and after it, the first, the last, and R random ones for each
    head. So the order of the nodes matters, but in graphs of at most R + 4 blocks, which are attended to in full. Time
    and memory are linear: in each head N * (5 + R) * block_size pairs, and N * 2 * block_size for the ends.

    The random blocks are drawn from ``seed``, the number of blocks of the graph and the place in it. The seed is a
    buffer, drawn from torch's generator when the layer is made: layers differ, and a checkpoint keeps its pattern.
    Second derivatives need ``torch.nn.attention.sdpa_kernel(SDPBackend.MATH)``, as in `FullAttention`.

    Args:
        dim: channels in and out.
        num_heads: heads; must divide dim.
        dropout: probability to drop a channel before each residual, in training only.
        block_size: nodes of a block.
        num_random_blocks: random blocks R.
        use_bias: give queries, keys and values a bias.
        hidden_act: activation of the feed-forward network, a key of `ACTIVATIONS`.
        layer_norm_eps: added to the variance by the norms.
        form: block_sparse gathers whole blocks, and pads the graphs to the largest one for the first and last blocks;
            edges makes a list of the pairs and pads nothing, for graphs of very different sizes. Both compute the same.
        pattern: graph; or a fault of the public code, for runs that must repeat it: public counts the blocks of the
            padded batch and draws random ones as `draw_public`, alike in all layers, so that a graph's output depends
            on the others; public_global_rng moreover resets numpy's global random state at each call.

    Shapes:
        x (N, dim); context a GraphContext, a batch vector (N,) or None; returns (N, dim).

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
        num_random_blocks: Annotated[int, NATURAL] = 3,
        use_bias: bool = False,
        hidden_act: Annotated[str, Choice(ACTIVATIONS)] = "relu",
        layer_norm_eps: Annotated[float, POSITIVE] = 1e-6,
        form: Annotated[str, Registered("block_sparse or edges")] = "block_sparse",
        pattern: Annotated[str, Choice(PATTERNS)] = "graph",
    ) -> None:
        super().__init__()
        dim_per_head(dim, num_heads)
        _check_options(block_size, num_random_blocks, hidden_act, form, pattern)
        self.num_heads, self.block_size, self.num_random_blocks = num_heads, block_size, num_random_blocks
        self.form, self.pattern = form, pattern
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=use_bias) for _ in range(3))
        self.out = nn.Linear(dim, dim)
        self.ffn = nn.Sequential(nn.Linear(dim, dim), ACTIVATIONS[hidden_act](), nn.Linear(dim, dim))
        self.out_norm, self.ffn_norm = (nn.LayerNorm(dim, eps=layer_norm_eps) for _ in range(2))
        self.dropout = nn.Dropout(check_dropout(dropout))
        self.register_buffer("seed", torch.randint(2**31, ()))

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each graph: x (N, dim) -> (N, dim)."""
        context = GraphContext.of(context, x)
        q, k, v = (linear(x).unflatten(1, (self.num_heads, -1)) for linear in (self.query, self.key, self.value))
        h = self.out_norm(self.dropout(self.out(self._attend(q, k, v, context).flatten(1))) + x)
        return self.ffn_norm(self.dropout(self.ffn(h)) + h)

    def extra_repr(self) -> str:
        """Say dim, heads, the size and number of blocks, and other options that are not the default ones."""
        return described(
            self,
            self.out.in_features,
            self.num_heads,
            always=("block_size", "num_random_blocks"),
            block_size=self.block_size,
            num_random_blocks=self.num_random_blocks,
            dropout=self.dropout.p,
            use_bias=self.query.bias is not None,
            form=self.form,
            pattern=self.pattern,
        )

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, context: GraphContext) -> Tensor:
        blocks = Tiles.of(context, self.block_size)
        num_blocks = -(-context.max_nodes // self.block_size)  # of the largest graph
        if self.pattern == "graph":
            last = (context.sizes - 1) // self.block_size  # (B,), -1 without nodes
        else:
            last = torch.full_like(context.sizes, num_blocks - 1)
        key_blocks = self._key_blocks(blocks.place, last[blocks.graph], num_blocks)
        if self.form == "block_sparse":
            return block_attention(q, k, v, context, blocks, key_blocks, last)
        edge_index = block_edges(context, blocks, key_blocks, last, self.block_size)
        out = edge_attention(*(values.flatten(0, 1)[:, None] for values in (q, k, v)), edge_index)  # (N * H, 1, D)
        return out.view_as(q)

    def _key_blocks(self, block: Tensor, last: Tensor, num_blocks: int) -> Tensor:
        """Blocks that each block attends to, -1 for none: block and last (T,) -> (T, H, 5 + R)."""
        shape = num_blocks, self.num_heads, self.num_random_blocks
        if self.pattern == "graph":
            drawn = random_blocks(block, last, *shape[1:], self.seed)
        elif self.pattern == "public":
            drawn = public_random_blocks(*shape).to(block.device)[block]
        else:
            np.random.seed(0)
            drawn = draw_public(np.random, *shape).to(block.device)[block]
        fixed = fixed_blocks(block, last)[:, None].expand(-1, self.num_heads, -1)
        return torch.cat([fixed, drawn], dim=-1)


def _check_options(block_size: int, num_random_blocks: int, hidden_act: str, form: str, pattern: str) -> None:
    for name, value, least in (("block_size", block_size, 1), ("num_random_blocks", num_random_blocks, 0)):
        if value < least:
            raise InputError(f"{name} must be >= {least}, got {value}")
    for name, value, allowed in (
        ("hidden_act", hidden_act, ACTIVATIONS),
        ("form", form, FORMS),
        ("pattern", pattern, PATTERNS),
    ):
        if value not in allowed:
            raise InputError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
