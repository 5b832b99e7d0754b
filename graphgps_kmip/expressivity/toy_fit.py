"""Toy for theorem 2 of the k-MIP paper: narrow k-MIP transformers fitted to a function, and the limit to hardmax.

The theorem (section 4.2) says that such transformers exist, not that gradient descent finds them. Its proof
(appendix C) needs ``softmax(T_k(lambda Z)) -> hardmax(Z)`` by row, with even weights of m maxima, so k >= m.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


def topk_softmax(z: Tensor, k: int) -> Tensor:
    """Return softmax over the k largest entries of each row, 0 elsewhere, by `torch.topk`: (..., N) -> (..., N)."""
    largest, index = z.topk(min(k, z.size(-1)), dim=-1)
    return torch.zeros_like(z).scatter(-1, index, largest.softmax(-1))


def hardmax(z: Tensor) -> Tensor:
    """Return 1 / m at each of the m maxima of a row, 0 elsewhere: (..., N) -> (..., N)."""
    largest = (z == z.amax(-1, keepdim=True)).to(z.dtype)
    return largest / largest.sum(-1, keepdim=True)


def hardmax_error(z: Tensor, k: int, scale: float) -> Tensor:
    """Return the L1 distance between top-k softmax of ``scale * z`` and hardmax of z, by row: (..., N) -> (...)."""
    return (topk_softmax(scale * z, k) - hardmax(z)).abs().sum(-1)


def hardmax_bound(z: Tensor, k: int, scale: float) -> Tensor:
    r"""Return an upper bound of `hardmax_error` by row: (..., N) -> (...).

    With m maxima, k' = min(k, N) and the gap g between the maximum and the next value it is

    .. math:: 2 (1 - m / Z) \le 2 (k' - m) e^{-\lambda g} / m, \qquad Z = m + (k' - m) e^{-\lambda g}

    for m <= k'; the error decreases at least as exp(-lambda g). For m > k' it is 2 (1 - k' / m) at every lambda.
    """
    top = z.amax(-1, keepdim=True)
    count = (z == top).sum(-1).to(z.dtype)
    keys = torch.full_like(count, min(k, z.size(-1)))
    gap = (top - z).masked_fill(z == top, torch.inf).amin(-1)  # infinite where all entries are maxima
    rest = (keys - count).clamp(min=0) * torch.exp(-scale * gap)
    return torch.where(count > keys, 2 * (1 - keys / count), 2 * rest / (count + rest))


HEADS, WIDTH, HIDDEN = 2, 1, 4  # of the class that theorem 2 speaks of
TARGET_SEED = 7


class Transformers(nn.Module):
    r"""Several transformers of the same shape, one for each seed.

    .. math:: f(X) = X + \textstyle\sum_h A_h(X) V_h O_h, \qquad t(X) = f(X) + \mathrm{MLP}(f(X))

    with ``A_h = softmax(T_k(Q_h K_h^T / sqrt(width)))`` (paper, definition 1; without norms).

    Args:
        dim: channels d of a token.
        blocks: number of blocks.
        k: keys of a query; 0: full attention.
        heads: of each block.
        width: channels of a head.
        hidden: channels inside the MLP.
        seeds: of the initial weights.
        gain: factor on the standard deviation of initial weights.

    Shapes: (S, B, N, d) -> (S, B, N, d) for S seeds.
    """

    def __init__(
        self,
        dim: int,
        blocks: int,
        k: int,
        heads: int = HEADS,
        width: int = WIDTH,
        hidden: int = HIDDEN,
        seeds: tuple[int, ...] = (0,),
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.k, self.heads, self.blocks = k, heads, blocks
        inner = heads * width
        shapes = [(dim, 3 * inner), (inner, dim), (dim, hidden), (hidden, dim)] * blocks
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.weights = nn.ParameterList(
            torch.stack([torch.randn(shape, generator=g) for g in generators]) * gain / math.sqrt(shape[0])
            for shape in shapes
        )
        self.biases = nn.ParameterList(torch.zeros(len(seeds), shape[1]) for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        """Apply all blocks."""
        for block in range(self.blocks):
            first = 4 * block
            q, k, v = self._linear(first, x).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0)  # (S, B, N, H, D)
            score = torch.einsum("sbnhd,sbmhd->sbhnm", q, k) / math.sqrt(q.size(-1))
            weight = topk_softmax(score, self.k) if self.k else score.softmax(-1)
            attended = torch.einsum("sbhnm,sbmhd->sbnhd", weight, v).flatten(-2)
            x = x + self._linear(first + 1, attended)
            x = x + self._linear(first + 3, torch.relu(self._linear(first + 2, x)))
        return x

    def _linear(self, number: int, x: Tensor) -> Tensor:
        return x @ self.weights[number][:, None] + self.biases[number][:, None, None]


@dataclass(frozen=True)
class Task:
    """Tokens to learn on: N tokens of d channels, uniform in [-1, 1], a compact set."""

    num_tokens: int = 8
    dim: int = 3
    batch: int = 64
    test_size: int = 512

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Return inputs (count, N, d)."""
        return torch.rand(count, self.num_tokens, self.dim, generator=generator) * 2 - 1


def full_transformer(x: Tensor) -> Tensor:
    """Return the output of a fixed full-attention transformer for x (B, N, d)."""
    model = Transformers(x.size(-1), 2, 0, heads=2, width=4, hidden=16, seeds=(TARGET_SEED,), gain=1.5)
    with torch.no_grad():
        return model(x[None])[0]


def to_nearest(x: Tensor) -> Tensor:
    """Return the vectors to the nearest other token, softened: continuous and equivariant, but no transformer."""
    distance = torch.cdist(x, x) + 1e9 * torch.eye(x.size(-2))
    return (-4 * distance).softmax(-1) @ x - x


TARGETS: dict[str, Callable[[Tensor], Tensor]] = {"transformer": full_transformer, "nearest": to_nearest}


def fit(
    target: str, blocks: int, k: int, steps: int, seeds: tuple[int, ...], task: Task | None = None, lr: float = 1e-2
) -> list[float]:
    """Fit a transformer per seed to a target by Adam, on new inputs in each step, and return their test errors.

    Errors are root mean square errors divided by that of the best constant; warm-up, then half a cosine.
    """
    task = task or Task()
    draw = torch.Generator().manual_seed(0)  # the same inputs for all transformers
    model = Transformers(task.dim, blocks, k, seeds=seeds, gain=1 / math.sqrt(blocks))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    warm = max(1, steps // 10)
    for step in range(steps):
        cosine = 0.5 * (1 + math.cos(math.pi * max(0, step - warm) / max(1, steps - warm)))
        optimizer.param_groups[0]["lr"] = lr * min((step + 1) / warm, cosine)
        x = task.draw(task.batch, draw)
        loss = (model(x.expand(len(seeds), -1, -1, -1)) - TARGETS[target](x)).square().mean((1, 2, 3)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x = task.draw(task.test_size, torch.Generator().manual_seed(1))
    y = TARGETS[target](x)
    with torch.no_grad():
        error = (model(x.expand(len(seeds), -1, -1, -1)) - y).square().mean((1, 2, 3))
    return (error / (y - y.mean((0, 1))).square().mean()).sqrt().tolist()


def linear_error(target: str, task: Task | None = None) -> float:
    """Return the error, as that of `fit`, of the best affine map of single tokens."""
    task = task or Task()
    x = task.draw(task.test_size, torch.Generator().manual_seed(1))
    y = TARGETS[target](x).flatten(0, 1)
    inputs = torch.cat([x.flatten(0, 1), torch.ones(len(y), 1)], 1)
    error = (inputs @ torch.linalg.lstsq(inputs, y).solution - y).square().mean()
    return float((error / (y - y.mean(0)).square().mean()).sqrt())
