"""Model card: one Markdown page about a finished run: settings, data, scores, cost, versions, how to load it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from graphgps_kmip.common.atomic_write import is_number, replace_file
from graphgps_kmip.common.environment import duration, train_command
from graphgps_kmip.errors import InputError, ResultsError
from graphgps_kmip.report.comparison import read_side
from graphgps_kmip.report.table_notes import describe_hardware
from graphgps_kmip.report.welch import corrected_t
from graphgps_kmip.results.run_folder import run_folders, writing
from graphgps_kmip.results.run_record import finished_runs, is_finished, metric_names, read_record, read_run_config

SPLITS = {"val": "validation", "test": "test"}


def write_card(run_dir: Path, changed_settings: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Path:
    """Write ``<run_dir>/model-card.md`` and return its path; a `ResultsError` if there is no finished run.

    `changed_settings` returns key -> value of what differs from the defaults in a config.
    """
    record, path = read_record(run_dir), run_dir / "model-card.md"
    if not is_finished(record) or "best" not in record:
        runs = [folder for folder in run_folders(run_dir) if is_finished(read_record(folder))]
        hint = f"give one of its runs, such as {runs[0]}" if runs else "give a folder such as results/digits-kmip/0"
        raise ResultsError(f"{run_dir}: no finished training is there; {hint}")
    config = read_run_config(run_dir, record)
    sections = {
        "Scores": _scores(run_dir, record),
        "Settings": _settings(changed_settings(config)),
        "Data": _data(config["dataset"]),
        "Cost": _cost(record),
        "Versions": _versions(record),
        "Use it": _usage(run_dir),
    }
    lines = [f"# {record.get('name', run_dir)}", "", *_summary(record, config)]
    for title, content in sections.items():
        lines += ["", f"## {title}", "", *content]
    with writing(path):
        replace_file(path, ("\n".join(lines) + "\n").encode())
    return path


def _summary(record: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    if record.get("sample"):
        yield "> **SAMPLE, no result**: trained on synthetic data (`dataset.sample True`). Its scores say nothing."
        yield ""
    model, data = config["model"]["type"], config["dataset"]
    layers = f", {config['gt']['layers']} layers of {config['gt']['layer_type']}" if "GPS" in model else ""
    rule = f", the best by {record['metric_best']} on validation" if "val" in record["best"] else ""
    yield (
        f"A {model}{layers}, trained on {data['format']} {data['name']}. Its parameters are those of epoch "
        f"{record['best']['epoch'] + 1} of {record['epochs']}{rule}."
    )


def _scores(run_dir: Path, record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of the run's scores; the metric that chose the epoch comes first, with its mean over the seeds."""
    records, _ = finished_runs(run_dir.parent, record.get("experiment"))
    best, metric = record["best"], record["metric_best"]
    splits = {split: name for split, name in SPLITS.items() if split in best}
    yield f"| | {' | '.join(splits.values())} |"
    yield f"|---|{'---|' * len(splits)}"
    scored = {path: other for path, other in records.items() if all(metric in other["best"].get(s, {}) for s in splits)}
    note = []
    for name in dict.fromkeys([metric, *(name for split in splits for name in metric_names(best[split]))]):
        values = [best[split].get(name) for split in splits]
        texts = [f"{value:.4f}" if is_number(value) else "-" for value in values]
        yield f"| {name} | {' | '.join(texts)} |"
        if name == metric and len(scored) > 1:
            sides = [read_side(scored, metric, split) for split in splits]
            means = [corrected_t(side.values, side.overlap) for side in sides]
            texts = [
                f"{mean.value:.4f} [{', '.join(f'{x:.4f}' for x in mean[1:3] if x is not None)}]" for mean in means
            ]
            yield f"| {name}, mean of {len(scored)} runs [95 %] | {' | '.join(texts)} |"
            over_splits = "the corrected resampled t over splits (Nadeau and Bengio 2003)"
            kind = "Student's t" if sides[0].overlap == 0 else over_splits
            note = ["", f"The interval is that of {kind}; the runs are those in `{run_dir.parent}` of these settings."]
    yield from note


def _settings(settings: Mapping[str, Any]) -> Iterator[str]:
    yield "Those that differ from the defaults; `config.yaml` has all.\n"
    yield "```yaml"
    yield from (f"{key}: {value}" for key, value in settings.items())
    yield "```"


def _data(settings: Mapping[str, Any]) -> Iterator[str]:
    from graphgps_kmip.data import find  # loads torch_geometric: seconds

    try:
        data_set = find(settings["format"], settings["name"])
    except InputError:  # a folder of the user's, or of a module that is not imported here
        yield f"{settings['format']} {settings['name']}: no dataset card of this package."
        return
    source = data_set.source
    own_split = f"dataset.split_mode {settings['split_mode']}" if settings["split_mode"] != "standard" else ""
    facts = {
        "data set": f"{data_set.title}: {data_set.summary}" if data_set.summary else data_set.title,
        "split": own_split or data_set.split or f"at random, {settings['split']}",
        "source": source and " ".join(filter(None, (source.citation, source.page))),
        "licence": source and source.licence,
    }
    yield from (f"- {name}: {text or 'not known'}" for name, text in facts.items())


def _cost(record: Mapping[str, Any]) -> Iterator[str]:
    memory = ", ".join(
        f"{size / 2**20:,.0f} MiB {kind}" for kind, size in record.get("peak_memory", {}).items() if size
    )
    yield f"- parameters: {record['params']:,}"
    seconds = f"{duration(record['wall_time'])}, {record['seconds_per_epoch']:.3g} s each"
    yield f"- training: {record['epochs']:,} epochs in {seconds}"
    yield f"- peak memory: {memory or 'not known'}"
    yield f"- machine: {describe_hardware(record.get('hardware', {}))}"


def _versions(record: Mapping[str, Any]) -> Iterator[str]:
    packages = {"graphgps_kmip": record.get("code_version", "?"), **record.get("packages", {})}
    yield ", ".join(f"{name} {version}" for name, version in packages.items())
    yield f"\nConfig hash {record['config_hash']}, seed {record['seed']}, finished {record['finished_at'][:16]}."


def _usage(run_dir: Path) -> Iterator[str]:
    yield f"""```python
from graphgps_kmip import batch_of, load_model

model = load_model("{run_dir}")  # best epoch, eval mode, on the CPU
prediction, label = model(batch_of(graphs))
```

```bash
{train_command()} --predict {run_dir}
```"""
