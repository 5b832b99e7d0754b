"""Report page: one self-contained HTML file of all results, with tables, figures and the provenance of each number."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.experiments.experiment_spec import Experiment
from graphgps_kmip.experiments.printed_tables import PrintedTable
from graphgps_kmip.experiments.run_status import Extent, HashOf, State, Status, extent, statuses
from graphgps_kmip.report.draw_figure import draw_figure
from graphgps_kmip.report.experiment_tables import experiment_tables
from graphgps_kmip.report.provenance import Failure, Origin, failures, origins, total_time
from graphgps_kmip.report.result_table import ResultTable
from graphgps_kmip.report.table_formats import FORMATS
from graphgps_kmip.results.run_folder import writing


@dataclass(frozen=True)
class Picture:
    """A figure, its bytes inside the page."""

    title: str
    data: str


@dataclass(frozen=True)
class Section:
    """One experiment of the page: its runs by folder, its tables as HTML, and why some figures are not drawn."""

    experiment: Experiment
    extent: Extent
    runs: Mapping[Path, Status]
    failures: tuple[Failure, ...] = ()
    tables: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    undrawn: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()

    @property
    def time(self) -> str:
        """How long its finished runs took together."""
        return total_time(self.runs.values())

    @property
    def anchor(self) -> str:
        """Name of its place in the page."""
        return self.experiment.id.replace("/", "-").replace(".", "-")


def write_page(
    experiments: Mapping[str, Experiment],
    printed: Mapping[str, PrintedTable],
    out: Path,
    hash_of: HashOf,
    published: bool = False,
) -> Path:
    """Write ``<out>/report.html`` and return its path.

    Experiments of which nothing is done or failed are listed, not shown; runs on sample data are counted apart, and
    none of their numbers is in the page. With `published`, published runs fill rows of which none is finished here.
    """
    facts = {"known": experiments, "printed": printed, "out": out, "hash_of": hash_of, "published": published}
    tables_of = partial(experiment_tables, **facts)
    sections = [_section(one, tables_of, out, hash_of, published) for one in experiments.values()]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = [one for one in sections if one.tables or one.pictures or one.failures]
    sections.sort(key=lambda one: one not in shown)
    runs = {path: status for one in sections for path, status in one.runs.items()}  # experiments share runs
    text = environment.get_template("page.html").render(
        sections=sections,
        shown=shown,
        sampled=[one for one in sections if one.extent.sampled and not one.extent.done],
        date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        runs=sum(status.state is State.DONE for status in runs.values()),
        time=total_time(runs.values()),
        machines=sorted({origin.hardware for section in shown for origin in section.origins} - {"?"}),
        versions=sorted({origin.code_version for section in shown for origin in section.origins} - {"?"}),
    )
    path = out / "report.html"
    with writing(path):
        out.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode())
    return path


def _section(
    experiment: Experiment,
    tables_of: Callable[[Experiment], dict[str, ResultTable]],
    out: Path,
    hash_of: HashOf,
    published: bool,
) -> Section:
    done, runs = extent(experiment, out, hash_of), statuses(experiment, out, hash_of)
    failed = tuple(failures(runs.values(), out))
    if not (done.done or (published and experiment.published)):
        return Section(experiment, done, runs, failed)
    tables = tables_of(experiment)
    shown = [] if experiment.of else list(filter(_has_values, tables.values()))  # theirs are in their own sections
    pictures, undrawn = _pictures(experiment, tables, out)
    return Section(
        experiment,
        done,
        runs,
        failed,
        tables=tuple(FORMATS["html"](table, partial=True) for table in shown),
        pictures=tuple(pictures),
        undrawn=tuple(undrawn),
        origins=tuple(origin for table in tables.values() for origin in origins(table)),
    )


def _has_values(table: ResultTable) -> bool:
    return any(cell.ours and cell.ours.values for row in table.rows.values() for cell in row.values())


def _pictures(experiment: Experiment, tables: Mapping[str, ResultTable], out: Path) -> tuple[list[Picture], list[str]]:
    """Return the figures, and why there is none where its runs are not there yet."""
    pictures, undrawn = [], []
    for spec in experiment.figures.values():
        try:
            paths = draw_figure(experiment, spec, tables, out)
        except ValueError as error:
            undrawn.append(str(error))
            continue
        image = next(path for path in paths if path.suffix == ".png")
        pictures.append(Picture(spec.title or spec.name, base64.b64encode(_small(image)).decode()))
    return pictures, undrawn


def _small(png: Path) -> bytes:
    """Return a picture in 256 colours, which a drawing does not look different in: a third of the bytes."""
    file = io.BytesIO()
    with Image.open(png) as image:
        image.convert("RGB").quantize(256).save(file, "PNG", optimize=True)
    return file.getvalue()
