"""Dataset card: what the record of a data set says, beside what was found in its files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from graphgps_kmip.data.dataset_info import DatasetInfo
from graphgps_kmip.data.dataset_record import DatasetRecord, Features

Row = tuple[str, str, str]  # what, published, found
# Means are published with one or two decimals: half a unit of the last of them, and a little for rounding twice.
TOLERANCE = 0.051
LEVELS = {
    "graph": "whole graphs",
    "inductive_node": "the nodes of each graph",
    "node": "the nodes of one graph",
    "link": "pairs of nodes",
}


def mismatches(record: DatasetRecord, info: DatasetInfo) -> list[str]:
    """Return one line for each published figure that the loaded data does not agree with."""
    return [
        f"{record.title}: {what} should be {published}, as published, but {found} were found: another release, or an "
        "incomplete one?"
        for what, published, found in _compared(record, info)
        if not _agree(published, found)
    ]


def card_text(record: DatasetRecord, root: str | Path, info: DatasetInfo | None) -> str:
    """Return the dataset card as text.

    Args:
        record: of the data set.
        root: folder of all data sets (``dataset.dir``).
        info: what was found in the loaded data; None if it is not on disk.
    """
    lines = [f"{name:<12} {text}" for name, text in _facts(record, root) if text]
    rows = list(_compared(record, info))
    if rows:
        header = ("", "published", "found" if info else "found (not loaded)")
        lines += ["", *(f"{what:<24} {one:>22}  {other:>22}".rstrip() for what, one, other in (header, *rows))]
    if info:
        lines += ["", *(f"warning: {line}" for line in mismatches(record, info))]
    return "\n".join(lines).rstrip()


def published_rows(record: DatasetRecord, info: DatasetInfo) -> list[tuple[str, str]]:
    """Return rows (what, value) on a data set that is not on disk: `DatasetInfo.describe` with published sizes.

    Args:
        record: of the data set.
        info: of its stand-in, whose dims are those of the data set; its sizes are not shown.
    """
    known = record.statistics
    unit = "nodes" if record.level == "node" else "graphs"
    sizes = known and known.sizes and " / ".join(f"{size:,}" for size in known.sizes)
    mean_edges = _text(known.mean_edges) if known and known.mean_edges is not None else ""
    once = " (each once)" if known and known.edges_once else ""
    shown = {
        f"{unit} (train / val / test)": sizes or "",
        "nodes of a graph": f"{_text(known.mean_nodes)} on average" if known else "",
        "edges of a graph": mean_edges and f"{mean_edges} on average{once}",
    }
    rows = dict(info.describe()) | {
        what: f"{value}, as published" if value else "not known" for what, value in shown.items()
    }
    return list(rows.items())


def _facts(record: DatasetRecord, root: str | Path) -> Iterator[tuple[str, str]]:
    source, raw = record.source, record.raw
    yield "data set", f"{record.title}: {record.summary}" if record.summary else record.title
    yield "in YAML", f"dataset.format {record.format}, dataset.name {record.name or 'none'}"
    yield "task", f"{record.task_type} of {LEVELS[record.level]}"
    yield "metric", record.metric and f"metric_best {record.metric}"
    yield "loss", record.loss and f"model.loss_fun {record.loss}"
    yield "split", record.split or f"none of its own: {_shares(record)} at random, the same in every run"
    yield "features", _features(record.features) if record.features else ""
    yield "citation", source.citation if source else ""
    yield "licence", source.licence if source else ""
    yield "page", source.page if source else ""
    if raw:
        folder = Path(root).expanduser().absolute() / raw.folder
        yield "files", f"{', '.join(raw.files[:8])}{', ...' if len(raw.files) > 8 else ''} in {folder}"
        yield "or", " and ".join(raw.archives) + " there, as downloaded" if raw.archives else ""


def _shares(record: DatasetRecord) -> str:
    return "/".join(f"{100 * share:g}" for share in record.fractions)


def _features(features: Features) -> str:
    def width(what: int | tuple[int, ...], of: str) -> str:
        if isinstance(what, tuple):
            return f"{len(what)} categories of {of} ({', '.join(map(str, what))} values)"
        return f"{what or 'no'} numbers of {of}"

    position = f", {features.positions} coordinates" if features.positions else ""
    return f"{width(features.node, 'a node')}, {width(features.edge, 'an edge')}{position}"


def _compared(record: DatasetRecord, info: DatasetInfo | None) -> Iterator[Row]:
    published, features = record.statistics, record.features
    if published:
        once = published.edges_once and not (info and info.directed)
        one = published.graphs == 1
        sizes = published.sizes or (None, None, None)
        yield "graphs", _text(published.graphs), _text(info and info.graphs)
        yield "nodes" if one else "mean nodes", _text(published.mean_nodes), _text(info and info.mean_nodes)
        if published.mean_edges is not None:
            found = info and (info.mean_edges / 2 if once else info.mean_edges)
            label = ("edges" if one else "mean edges") + (" (each once)" if published.edges_once else "")
            yield label, _text(published.mean_edges), _text(found)
        for split, size, found in zip(("train", "val", "test"), sizes, info.sizes if info else sizes, strict=True):
            if size is not None:
                yield f"{split} samples", _text(size), _text(info and found)
    if features and not isinstance(features.node, tuple):
        yield "node features", _text(features.node), _text(info and info.dim_in)
    if features and not isinstance(features.edge, tuple):
        yield "edge features", _text(features.edge), _text(info and info.dim_edge)
    if features:
        yield "classes or targets", _text(features.classes), _text(info and info.dim_out)


def _text(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.2f}" if isinstance(value, float) and value != int(value) else f"{int(value):,}"


def _agree(published: str, found: str) -> bool:
    if not (published and found) or published == found:
        return True
    one, other = (float(text.replace(",", "")) for text in (published, found))
    return "." in published + found and abs(one - other) <= TOLERANCE
