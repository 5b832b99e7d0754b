"""The formats that a result table can be written in."""

from __future__ import annotations

from collections.abc import Callable

from graphgps_kmip.report.html import html
from graphgps_kmip.report.latex import latex
from graphgps_kmip.report.markdown import markdown
from graphgps_kmip.report.sheet import sheet

# name -> format(table, partial=False): with `partial`, cells that lack runs show the mean of those that are finished.
FORMATS: dict[str, Callable[..., str]] = {
    "md": markdown,
    "tex": latex,
    "csv": sheet,
    "html": html,
}
