"""A graph beside the attention graphs that a model learned in it (thesis, figures 6.8, 6.9 and B.1 to B.6)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from graphgps_kmip.report.figures.attention_graphs import attention_figure
from graphgps_kmip.report.result_table import ResultTable


def draw_attention_graphs(
    tables: Mapping[str, ResultTable],  # noqa: ARG001
    artefacts: Mapping[str, Path],
    options: Mapping[str, Any],  # noqa: ARG001
) -> Figure:
    """Draw the input graph and every layer (row) and head (column): opacity is weight, colour is out-degree.

    Args:
        tables: none.
        artefacts: one file of ``run/analyse.py graphs``.
        options: none.

    Raises:
        ValueError: an array is missing in the file.
    """
    (path,) = artefacts.values()
    return attention_figure(path)
