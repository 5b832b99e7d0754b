"""One self-contained HTML page of all that is done: tables, figures, and where each number comes from."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from graphgps_kmip.experiments.extent import Extent, extent
from graphgps_kmip.experiments.printed import PrintedTable
from graphgps_kmip.experiments.records import Experiment
from graphgps_kmip.experiments.state import HashOf
from graphgps_kmip.files import replace_file
from graphgps_kmip.report.build import build_table
from graphgps_kmip.report.figures import draw_figure
from graphgps_kmip.report.formats import FORMATS
from graphgps_kmip.report.provenance import Origin, origins
from graphgps_kmip.report.result_table import ResultTable


@dataclass(frozen=True)
class Picture:
    """A figure, its bytes inside the page."""

    title: str
    data: str


@dataclass(frozen=True)
class Section:
    """One experiment of the page: its tables as HTML, pictures, and origins of the numbers."""

    experiment: Experiment
    extent: Extent
    tables: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    origins: tuple[Origin, ...] = ()

    @property
    def anchor(self) -> str:
        """Name of its place in the page."""
        return self.experiment.id.replace("/", "-").replace(".", "-")


def write_page(
    experiments: Mapping[str, Experiment], printed: Mapping[str, PrintedTable], out: Path, hash_of: HashOf
) -> Path:
    """Write ``<out>/report.html`` and return its path.

    Experiments of which nothing is done are listed, not shown; runs on sample data are counted apart, and none of
    their numbers is in the page.

    Args:
        experiments: of the manifest.
        printed: the papers' tables.
        out: root of the results.
        hash_of: see `state.HashOf`.
    """
    sections = [_section(one, printed, out, hash_of) for one in experiments.values()]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = [section for section in sections if section.tables or section.pictures]
    text = environment.get_template("page.html").render(
        sections=sections,
        shown=shown,
        sampled=[one for one in sections if one.extent.sampled and not one.extent.done],
        date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        runs=sum(section.extent.done for section in sections),
        machines=sorted({origin.hardware for section in shown for origin in section.origins} - {"?"}),
        versions=sorted({origin.code_version for section in shown for origin in section.origins} - {"?"}),
    )
    path = out / "report.html"
    out.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode())
    return path


def _section(experiment: Experiment, printed: Mapping[str, PrintedTable], out: Path, hash_of: HashOf) -> Section:
    done = extent(experiment, out, hash_of)
    if not done.done:
        return Section(experiment, done)
    tables = {key: build_table(experiment, spec, printed, out, hash_of) for key, spec in experiment.tables.items()}
    tables = {key: table for key, table in tables.items() if _has_values(table)}
    return Section(
        experiment,
        done,
        tuple(FORMATS["html"](table, partial=True) for table in tables.values()),
        tuple(_pictures(experiment, tables, out)),
        tuple(origin for table in tables.values() for origin in origins(table)),
    )


def _has_values(table: ResultTable) -> bool:
    return any(cell.ours and cell.ours.values for row in table.rows.values() for cell in row.values())


def _pictures(experiment: Experiment, tables: Mapping[str, ResultTable], out: Path) -> list[Picture]:
    pictures = []
    for spec in experiment.figures.values():
        try:
            paths = draw_figure(experiment, spec, tables, out)
        except ValueError as error:  # its runs are not there yet: the page is of what is
            logging.info("%s, %s is not drawn: %s", experiment.id, spec.name, error)
            continue
        image = next(path for path in paths if path.suffix == ".png")
        data = base64.b64encode(image.read_bytes()).decode()
        pictures.append(Picture(spec.title or spec.name, data))
    return pictures
