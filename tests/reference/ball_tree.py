"""The ball tree search of the thesis (section 4.2.3), by recursion and in float64: what it finds and what it visits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

WORD = 2**64


@dataclass(frozen=True)
class Ball:
    """Keys by their rows, the ball around them, and the two balls that they are split into (or none: a leaf)."""

    rows: Tensor
    centre: Tensor
    radius: Tensor
    children: tuple[Ball, ...]

    def walk(self) -> list[Ball]:
        return [self, *(ball for child in self.children for ball in child.walk())]

    @property
    def depth(self) -> int:
        return max((1 + child.depth for child in self.children), default=0)


def build(keys: Tensor, leaf_size: int, seed: int, rows: Tensor | None = None, start: int = 0) -> Ball:
    """Return the tree over keys (M, D); ``start`` counts the keys to the left, by which the random key is drawn."""
    rows = torch.arange(len(keys)) if rows is None else rows
    centre = keys[rows].mean(0)
    radius = distances(keys[rows], centre).max()
    if len(rows) <= leaf_size:
        return Ball(rows, centre, radius, ())
    x = keys[rows[mixed(mixed(seed ^ start) ^ len(rows)) % len(rows)]]
    a = keys[rows[distances(keys[rows], x).argmax()]]
    b = keys[rows[distances(keys[rows], a).argmax()]]
    near = distances(keys[rows], a) <= distances(keys[rows], b)
    if near.all():
        near = torch.arange(len(rows)) < len(rows) // 2
    left = build(keys, leaf_size, seed, rows[near], start)
    right = build(keys, leaf_size, seed, rows[~near], start + int(near.sum()))
    return Ball(rows, centre, radius, (left, right))


def search(tree: Ball, keys: Tensor, q: Tensor, num_keys: int) -> tuple[list[float], int]:
    """Return the scores of one query q (D,) by descending score, and how many balls were entered."""
    best: list[float] = []
    visited = 0

    def bound(ball: Ball) -> float:
        return float(q @ ball.centre + ball.radius * q.norm())

    def enter(ball: Ball) -> None:
        nonlocal best, visited
        if len(best) == num_keys and bound(ball) <= best[-1]:
            return
        visited += 1
        if not ball.children:
            best = sorted([*best, *(keys[ball.rows] @ q).tolist()], reverse=True)[:num_keys]
        for child in sorted(ball.children, key=bound, reverse=True):
            enter(child)

    enter(tree)
    return best, visited


def distances(keys: Tensor, point: Tensor) -> Tensor:
    return (keys - point).norm(dim=1)


def mixed(x: int) -> int:
    """SplitMix64 (Steele, Lea and Flood 2014): one step from the state x."""
    x = (x + 0x9E3779B97F4A7C15) % WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % WORD
    return x ^ (x >> 31)
