"""Which blocks of nodes each block attends to in BigBird (Zaheer et al. 2020): neighbours, both ends, random ones.

Blocks are counted inside a graph, in the order of its nodes. Everything is elementwise over a list of blocks, of any
graphs: no loop over graphs, no table of pairs.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

_BITS = 0xFFFFFFFF


def fixed_blocks(block: Tensor, last: Tensor) -> Tensor:
    """Return the block before, the block itself, the one after, the first and the last of its graph, each once.

    Args:
        block: number of each block in its graph.
        last: number of the last block of that graph.

    Shapes:
        block and last (T,); returns (T, 5), -1 where there is none or it is already there.
    """
    window = block[:, None] + torch.tensor([-1, 0, 1], device=block.device)
    window = window.masked_fill(window > last[:, None], -1)
    first = torch.where(block > 1, 0, -1)
    return torch.cat([window, torch.stack([first, torch.where(block < last - 1, last, -1)], dim=1)], dim=1)


def random_blocks(block: Tensor, last: Tensor, num_heads: int, num_random: int, seed: Tensor) -> Tensor:
    """Draw distinct blocks for each block and head among those that ``fixed_blocks`` leaves, all of them where few.

    A function of (seed, last, block, head) alone, so that a graph is given the same blocks in any batch, on any device,
    and graphs of as many blocks share theirs. Uniform over the subsets (Floyd's sampling, Bentley and Floyd 1987).

    Args:
        block: number of each block in its graph; the first, the last and those beyond it, which are padding, get
            numbers without meaning, none above their own.
        last: number of the last block of that graph.
        num_heads: heads H.
        num_random: blocks R to draw.
        seed: integer, ().

    Shapes:
        block and last (T,); returns (T, H, R), -1 where there are fewer.
    """
    block, last = block[:, None], last[:, None]  # (T, 1)
    low, high = (block - 1).clamp(min=1), torch.minimum(block + 1, last - 1)  # of the window, without the ends
    count = last - 1 - (high - low + 1)  # blocks to choose from
    state = _mixed(_mixed(_mixed(seed), block), torch.arange(num_heads, device=block.device))  # (T, H)
    chosen = torch.empty(*state.shape, 0, dtype=block.dtype, device=block.device)
    for draw in range(num_random):
        largest = (count - num_random + draw).expand_as(state)
        number = _mixed(state, draw) % (largest + 1).clamp(min=1)
        number = torch.where((chosen == number[..., None]).any(-1), largest, number)
        chosen = torch.cat([chosen, number.masked_fill(largest < 0, -1)[..., None]], dim=-1)
    skipped = torch.where(chosen + 1 < low[..., None], 1, (high - low + 2)[..., None])  # the first block, the window
    return torch.where(chosen < 0, -1, chosen + skipped)


def _mixed(state: Tensor, word: Tensor | int = 0) -> Tensor:
    """Hash the sum of a state and a small number to 32 bits."""
    state = (state + word) & _BITS
    for _ in range(2):
        state = ((state >> 16) ^ state) * 0x45D9F3B & _BITS  # an odd number of 27 bits: int64 does not overflow
    return (state >> 16) ^ state


@lru_cache(maxsize=64)
def public_random_blocks(num_blocks: int, num_heads: int, num_random: int) -> Tensor:
    """Return what the public code draws, with a random state of its own: :func:`draw_public` with seed 0."""
    return draw_public(np.random.RandomState(0), num_blocks, num_heads, num_random)


def draw_public(rng: np.random.RandomState | ModuleType, num_blocks: int, num_heads: int, num_random: int) -> Tensor:
    """Draw random blocks as GraphGPS does, where they may repeat those that are attended to anyway, even the own one.

    In long sequences all come from the first 2R + 5 blocks, in shorter ones half of them from the first R + 5 and half
    from the rest. Where the public code fails for want of blocks, those that it has are repeated. It draws differently
    for sequences padded to 1024, 3072 or 4096 nodes; this is not repeated.

    Args:
        rng: numpy's random state, or its random module for the global one.
        num_blocks: blocks of the padded sequence.
        num_heads: heads H.
        num_random: blocks R to draw.

    Shapes:
        returns (num_blocks, H, R), 0 in the first row.
    """
    near, num_near = num_blocks, num_random
    if num_blocks > 2 * num_random + 5:
        near = 2 * num_random + 5
    elif num_blocks > num_random + 5:
        near, num_near = num_random + 5, num_random // 2
    table = np.zeros((num_blocks, num_heads, num_random), dtype=np.int64)
    parts = ((slice(0, num_near), np.arange(near)), (slice(num_near, num_random), np.arange(near, num_blocks)))
    for rows in (range(1, near), range(near, num_blocks)):
        for columns, blocks in parts:
            count = columns.stop - columns.start
            for row, head in product(rows, range(num_heads if count else 0)):
                table[row, head, columns] = np.resize(rng.permutation(blocks)[:count], count)
    return torch.from_numpy(table)
