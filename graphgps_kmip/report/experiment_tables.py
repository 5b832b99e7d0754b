"""Tables of a whole experiment: its own, or those of the experiments that it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from graphgps_kmip.experiments.experiment_spec import Experiment
from graphgps_kmip.experiments.printed_tables import PrintedTable
from graphgps_kmip.experiments.run_status import HashOf
from graphgps_kmip.report.result_table import ResultTable, build_table


def experiment_tables(
    experiment: Experiment,
    known: Mapping[str, Experiment],
    printed: Mapping[str, PrintedTable],
    out: Path,
    hash_of: HashOf,
    sample: bool = False,
    published: bool = False,
) -> dict[str, ResultTable]:
    """Return id -> table of all tables of an experiment, each with the notes and searches of the one that has it.

    Args:
        experiment: whose tables.
        known: all experiments, by id.
        printed: the papers' tables, by id.
        out: root of the results.
        hash_of: the config hash of a command line of main.py.
        sample: tables of samples.
        published: published runs fill rows of which none is finished here.

    Raises:
        ValueError: as `build_table` does.
    """
    owners = [known[key] for key in experiment.of] or [experiment]
    return {
        spec.id: build_table(one, spec, printed, out, hash_of, sample, published)
        for one in owners
        for spec in one.tables.values()
    }
