"""Mean and spread of curves over graphs, layers and heads."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def by_layer(values: Tensor) -> dict[str, Tensor]:
    """Part the ``first`` layer from the ``others``, if there are any: many of its inputs are identical (thesis, 6.7).

    Shapes:
        values (G, L, ...).
    """
    return {"first": values[:, :1]} | ({"others": values[:, 1:]} if values.size(1) > 1 else {})


def spread(values: Tensor) -> dict[str, list[float]]:
    """Return ``mean``, and two population standard deviations.

    ``std`` is over graphs, layers and heads (thesis, figures 6.6 and 6.7); ``std_graphs`` over graphs, each with the
    mean over its layers and heads (k-MIP paper, figure 8).

    Shapes:
        values (G, L, H, K), the lists have K numbers.
    """
    values = values.double()
    alike = values.flatten(0, 2)
    of_graph = values.mean((1, 2))
    found = {"mean": alike.mean(0), "std": alike.std(0, correction=0), "std_graphs": of_graph.std(0, correction=0)}
    return {name: [float(f"{number:.6g}") for number in curve.tolist()] for name, curve in found.items()}


def crossing(counts: Sequence[int], curve: Sequence[float], level: float) -> float:
    """Return where a rising curve reaches a level, linearly between points; the first point if it begins above it."""
    for i, value in enumerate(curve):
        if value >= level:
            if i == 0:
                return float(counts[0])
            share = (level - curve[i - 1]) / (value - curve[i - 1])
            return counts[i - 1] + share * (counts[i] - counts[i - 1])
    return float(counts[-1])  # a rounding error below 1
