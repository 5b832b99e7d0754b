"""Report page: one self-contained HTML file of all results, with tables, figures and the provenance of each number."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.common.progress import terminal_bar
from graphgps_kmip.experiments.experiment_spec import Experiment
from graphgps_kmip.experiments.manifest import PrintedTable
from graphgps_kmip.experiments.run_status import ComputeHash, State, extent, read_failure, statuses
from graphgps_kmip.report.draw_figure import draw_figure
from graphgps_kmip.report.result_table import experiment_tables
from graphgps_kmip.report.table_formats import FORMATS
from graphgps_kmip.report.table_notes import origins, total_time
from graphgps_kmip.results.run_folder import writing


def write_page(
    experiments: Mapping[str, Experiment],
    printed: Mapping[str, PrintedTable],
    out: Path,
    compute_hash: ComputeHash,
    published: bool = False,
) -> Path:
    """Write ``<out>/report.html`` and return its path: results first, then, folded, the experiments without any.

    Runs on sample data are not shown. With `published`, published runs fill rows of which none is finished here.
    """
    sections = []
    with terminal_bar(total=len(experiments), bar_format="report {bar:20} {n_fmt}/{total_fmt} {desc}") as bar:
        for experiment in experiments.values():
            bar.set_description_str(experiment.id, refresh=False)
            sections.append(_collect(experiment, experiments, printed, out, compute_hash, published))
            bar.update()
    shown = [section for section in sections if section.tables or section.pictures or section.failures]
    runs = {path: status for section in sections for path, status in section.runs.items()}  # experiments share runs
    sources = [origin for section in shown for origin in section.origins]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template("page.html").render(
        shown=shown,
        others=[section for section in sections if section not in shown],
        sampled=[section for section in sections if section.extent.sampled and not section.extent.done],
        date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        runs=sum(status.state is State.DONE for status in runs.values()),
        published=len({run for section in shown for run in section.published}),
        time=total_time(runs.values()),
        machines=sorted({origin.hardware for origin in sources} - {"?"}),
        versions=sorted({origin.code_version for origin in sources} - {"?"}),
    )
    path = out / "report.html"
    with writing(path):
        out.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode())
    return path


def _collect(
    experiment: Experiment,
    experiments: Mapping[str, Experiment],
    printed: Mapping[str, PrintedTable],
    out: Path,
    compute_hash: ComputeHash,
    published: bool,
) -> SimpleNamespace:
    """Return what the template shows of an experiment."""
    runs = statuses(experiment, out, compute_hash)
    section = SimpleNamespace(
        experiment=experiment,
        anchor=re.sub(r"[/.]", "-", experiment.id),
        extent=extent(experiment, out, compute_hash),
        runs=runs,
        time=total_time(runs.values()),
        failures=[
            {
                "run": str(status.path.relative_to(out)),
                "state": status.state,
                "error": status.error or "no reason was written",
                "log": str(read_failure(status.path).get("log", "")),
            }
            for status in runs.values()
            if status.state in (State.FAILED, State.DIVERGED)
        ],
        tables=[],
        printed=[],  # of an experiment without results
        published=set(),  # runs that tables show and that were not made here
        pictures=[],  # title and base64 of each
        undrawn=[],  # why figures are not drawn
        origins=[],
    )
    if not (section.extent.done or (published and experiment.published)):
        section.printed = [_printed_html(printed[key]) for key in experiment.tables if key in printed]
        return section
    tables = experiment_tables(experiment, experiments, printed, out, compute_hash, published=published)
    for table in tables.values():
        section.origins += origins(table)
        sides = [cell.ours for *_, cell in table.places() if cell.ours and cell.ours.values]
        sources = [item for side in sides if side.published for item in side.sources.items()]
        section.published |= {(status.record["config_hash"], seed) for seed, status in sources}
        if sides and not experiment.of:  # theirs are in their own sections
            section.tables.append(FORMATS["html"](table, partial=True))
    for spec in experiment.figures.values():
        try:
            image = draw_figure(experiment, spec, tables, out)[0]
        except ValueError as error:
            section.undrawn.append(str(error))
            continue
        section.pictures.append((spec.title or spec.name, base64.b64encode(image.read_bytes()).decode()))
    return section


def _printed_html(table: PrintedTable) -> str:
    """Return the title and the numbers of a printed table."""
    texts = {row: {column: cells[column].text for column in cells} for row, cells in table.rows.items()}
    frame = pd.DataFrame.from_dict(texts, orient="index", columns=list(table.columns), dtype=object).fillna("-")
    title = f'<p class="title">{html.escape(table.title)} ({html.escape(table.id)}, as printed)</p>'
    return f'{title}<div class="wide">{frame.to_html(classes="results", border=0)}</div>'
