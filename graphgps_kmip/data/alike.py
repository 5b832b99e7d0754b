"""What graphs must have in common so that a mini-batch can join them: names, types and columns of their attributes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.errors import DataError


def check_alike(graphs: Iterable[tuple[str, Data]]) -> None:
    """Raise DataError unless all graphs have attributes of the same names, types and columns, as the first has.

    Args:
        graphs: words that name each graph, and the graph.
    """
    first, wanted = "", {}
    for place, graph in graphs:
        kind = {key: _columns(value) for key, value in graph.to_dict().items()}
        first, wanted = (first, wanted) if first else (place, kind)
        for key in dict.fromkeys((*wanted, *kind)):
            if key not in kind or key not in wanted:
                has, lacks = (place, first) if key in kind else (first, place)
                raise DataError(f"{lacks}: {key} is missing, and {has} has it: give it to every graph, or to none")
            if kind[key] != wanted[key] and key != "edge_index":
                raise DataError(
                    f"{place}: graphs differ in the columns of {key}: {kind[key]} here, {wanted[key]} in {first}: give "
                    "all the same"
                )


def _columns(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return " x ".join(map(str, value.shape[1:])) or "none"
