"""Finished runs as models: `load_model`, `trained` with the data of the run, `predict` for test split or new graphs."""

from __future__ import annotations

import copy
import io
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.common.near_misses import near_misses
from graphgps_kmip.data import DatasetInfo, GraphDataset, find
from graphgps_kmip.data.dataset_record import LEVELS
from graphgps_kmip.data.graph_folder import FORMAT as FOLDER
from graphgps_kmip.data.node_loader import NODE2SUBGRAPH
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_loading import enter_settings, read_settings
from graphgps_kmip.gym.data_loading import current_loaders, load_new
from graphgps_kmip.gym.experiment import assemble
from graphgps_kmip.gym.network_building import build_model
from graphgps_kmip.gym.planned_runs import Run, configured, quiet, unchanged_config
from graphgps_kmip.gym.sparse_loading import is_sparse
from graphgps_kmip.gym.train_modes import current_settings, current_task
from graphgps_kmip.results.run_folder import best_checkpoint_file, best_or_newest, writing
from graphgps_kmip.results.run_record import config_file, examine_record, is_finished, read_record, rounded
from graphgps_kmip.task import Task
from graphgps_kmip.train.checkpoint import load_model_state, read_checkpoint
from graphgps_kmip.train.distributed import make_fabric
from graphgps_kmip.train.evaluation import predict_batches
from graphgps_kmip.train.loop import MetricAccumulator

if TYPE_CHECKING:
    import pandas as pd

TEST = "test"
ENDINGS = (".csv", ".npz")
LINK_TASKS = ("link_prediction", "link_ranking")


class Trained(NamedTuple):
    """A finished run: model (in eval mode, on the CPU), all graphs, and facts for those who read results."""

    model: nn.Module
    dataset: GraphDataset
    info: DatasetInfo
    facts: dict[str, Any]


@contextmanager
def trained(run_dir: Path) -> Iterator[Trained]:
    """Load a finished run; ``cfg`` is that of the run meanwhile. Errors are those of `load_model`."""
    record, path, content = open_run(run_dir)
    with configured(Run(run_dir.name, cfg.seed, cfg.dataset.split_index)):
        parts = assemble()
        load_model_state(parts.model, content["model_state"], path)
        facts = {
            "run": str(run_dir),
            "dataset": cfg.dataset.name,
            "sample": cfg.dataset.sample,
            "checkpoint": path.name,
            "epoch": content["epoch"],
            **{key: record.get(key, "?") for key in ("config_hash", "code_version")},
        }
        yield Trained(parts.model.eval(), parts.dataset, parts.info, facts)


def load_model(run_dir: str | Path) -> nn.Module:
    """Return the model of a finished run with the parameters of its best epoch, in eval mode, on the CPU.

    It needs no data. ``load_model(folder)(batch)`` returns predictions and labels, see `batch_of`.

    Args:
        run_dir (str or Path): Folder of the run, such as ``results/digits-kmip/0``.

    Raises:
        ConfigError: the folder holds no finished run, or the run kept no checkpoint.
        CheckpointError: the checkpoint is damaged or does not fit.
    """
    with unchanged_config():
        _, path, content = open_run(Path(run_dir))
        model = build_model(cfg)  # its file has the facts of the data and the chosen width
        load_model_state(model, content["model_state"], path)
    return model.eval()


def open_run(run_dir: Path) -> tuple[dict[str, Any], Path, dict[str, Any]]:
    """Enter the settings of a finished run into ``cfg``; return its record, and path and content of a checkpoint."""
    record = read_record(run_dir) or {}
    if not is_finished(record):
        beside = [*run_dir.glob("*/record.json"), *run_dir.parent.parent.glob("*/*/record.json")]
        folders = {file.parent for file in beside if is_finished(examine_record(file.parent)[0])}
        near = near_misses(str(run_dir), map(str, folders))
        raise ConfigError(f"{run_dir}: no finished run is there, give a folder such as results/digits-kmip/0.{near}")
    path = best_or_newest(run_dir)
    if path is None:
        raise ConfigError(
            f"{run_dir}: no checkpoint is left of this run, train it again with train.enable_ckpt True and "
            "train.ckpt_best True (and main.py --overwrite)"
        )
    if path != best_checkpoint_file(run_dir):
        hint = "of a later epoch; train.ckpt_best True keeps the best"
        logging.warning("%s: there is no best.ckpt, taken is %s, %s", run_dir, path.name, hint)
    content, file = read_checkpoint(path, record.get("config_hash", "")), config_file(run_dir, record)
    settings = [row for row in read_settings(file) if row[0].split(".")[0] not in ("run_dir", "pretrained")]
    with quiet():  # what the config says of itself is in the log of the run
        enter_settings(cfg, settings, file)  # no YAML may name the first, and the second is in the checkpoint
    return record, path, content


def predict(run_dir: str | Path, data_folder: str | Path | None = None) -> pd.DataFrame:
    """Return the predictions of a finished run, with the parameters of its best epoch, as a table.

    Args:
        run_dir (str or Path): Folder of the run, such as ``results/digits-kmip/0``.
        data_folder (str or Path, optional): Folder of new graphs, laid out as for ``dataset.format Folder``; labels may
            be absent. Edges, order of nodes and encodings are made as in training. None: the run's test split.
            (default: None)

    Returns:
        A row for each graph, node or pair: its numbers ``graph``, ``node``, ``source`` and ``target``; ``label`` where
        it is known; ``prediction``; ``p0``, ``p1``, ..., the probabilities of the classes. Two classes have ``p1`` and
        predict 1 above ``model.thresh``. Several labels or targets are numbered: ``label0``, ``prediction0``, ``p0``.
        ``table.attrs`` has ``score``, loss and metrics of labelled rows as in stats.json; ``metric``, which of them
        chose the epoch; ``epoch``; ``recorded``, the score in record.json if it is of the same epoch and graphs.

    Raises:
        ConfigError: the folder holds no finished run, or a run that does not predict a table.
        DataError: the new graphs cannot be read, or have other columns than the training data.
    """
    import pandas as pd

    with unchanged_config():
        record, path, content = open_run(Path(run_dir))
        for key, is_unfit in (
            ("gt.layer_type Spexphormer", is_sparse(cfg)),
            ("train.mode brec", cfg.train.mode == "brec"),
        ):
            if is_unfit:
                raise ConfigError(f"--predict: {run_dir} is a run of {key}, whose predictions are not supported")
        if data_folder is None:
            with trained(Path(run_dir)) as run:
                model, level, datasets, is_labelled = run.model, run.info.level, [run.dataset], True
        else:
            model = build_model(cfg)  # its file has the facts of the training data
            load_model_state(model, content["model_state"], path)
            level = _find_level(model)
            datasets, is_labelled = load_new(Path(data_folder), level)
        task = current_task(cfg.share.dim_out)
        rows, score = _predict_rows(model, datasets, level, task, content["epoch"], is_labelled)
        best = record.get("best", {})
        is_recorded = data_folder is None and best.get("epoch") == content["epoch"]
        table = pd.DataFrame(rows)
        table.attrs = {
            "score": rounded(score, current_settings().round),
            "metric": task.metric_best,
            "epoch": content["epoch"],
        }
        table.attrs["recorded"] = best.get(TEST, {}) if is_recorded else {}
    return table


def write_predictions(run_dir: str | Path, data_folder: str | Path | None = None, out: Path | None = None) -> str:
    """Write `predict` to a ``.csv`` or ``.npz`` file, by default ``predictions.csv`` of the run; return lines on it."""
    out = out or Path(run_dir) / "predictions.csv"
    if out.suffix not in ENDINGS:
        raise ConfigError(f"--out: {out} ends in {out.suffix or 'nothing'}: give a name that ends in .csv or .npz")
    table = predict(run_dir, data_folder)
    if out.suffix == ".csv":
        content = table.to_csv(index=False).encode()
    else:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **{name: table[name].to_numpy() for name in table})
        content = buffer.getvalue()
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(out, content)
    epoch, score, recorded = (table.attrs[key] for key in ("epoch", "score", "recorded"))
    graphs = f"the test split of {run_dir}" if data_folder is None else f"{data_folder} by {run_dir}"
    lines = [f"{len(table):,} predictions for {graphs}, epoch {epoch + 1}: {out}"]  # counted from 1, as the log does
    for name in {table.attrs["metric"]: 0} | score if score else ():
        written = f" (record.json: {recorded[name]:.6g})" if name in recorded else ""
        lines.append(f"  {name:<12} {score[name]:.6g}{written}")
    return "\n".join(lines)


def _find_level(model: nn.Module) -> str:
    """Return what the training data of the config has labels for, a key of `LEVELS`, without that data."""
    if cfg.dataset.format != FOLDER:
        return find(cfg.dataset.format, cfg.dataset.name).level
    if cfg.gnn.head in LEVELS:
        return cfg.gnn.head
    head = next((module for module in model.modules() if hasattr(module, "level")), None)
    if head is None:
        raise ConfigError(
            f"gnn.head: {cfg.gnn.head} has no attribute `level`, graph, node or link: add it to the class"
        )
    masked = cfg.train.sampler == NODE2SUBGRAPH or getattr(head, "masked", False)
    return "node" if masked else {"node": "inductive_node"}.get(head.level, head.level)


@torch.no_grad()
def _predict_rows(
    model: nn.Module, datasets: Sequence[GraphDataset], level: str, task: Task, epoch: int, is_labelled: bool
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return the columns of the table, and loss and metrics of the labelled rows."""
    fabric, settings = make_fabric("auto", 1, cfg.train.precision), current_settings()
    model = fabric.setup_module(model).eval()
    progress = epoch / max(1, cfg.optim.max_epoch - 1)  # as when this epoch was found to be the best
    accumulator, names = MetricAccumulator(), []
    for number, dataset in enumerate(datasets):
        is_divided = dataset.splits is None
        if is_divided:
            dataset = GraphDataset([_number_nodes(dataset.graphs[0])], summary=dataset.summary)
        loader = current_loaders(dataset, level, fabric)[-1]
        numbers = _number_graphs(dataset, number, len(loader))
        for batch, pred, true in predict_batches(model, loader, settings, fabric, TEST, progress):
            total, weight = task.loss(pred, true) if is_labelled else pred.new_zeros(2)
            accumulator.add(torch.stack([total, weight.to(total)]), task.score(pred), true)
            names.append(_name_rows(batch, level, numbers[: batch.num_graphs], is_divided))
            numbers = numbers[batch.num_graphs :]
    score, true = torch.cat(accumulator.scores), torch.cat(accumulator.labels)
    rows = {name: torch.cat([part[name] for part in names]).cpu().numpy() for name in names[0]}
    rows |= _make_columns(task.name, score, true if is_labelled else None)
    return rows, accumulator.summary(task, fabric.device) if is_labelled else {}


def _number_nodes(graph: Data) -> Data:
    """Return a graph whose nodes carry their numbers, which the batches of a loader then keep."""
    graph = copy.copy(graph)
    graph.node_id = graph.get("node_id", torch.arange(graph.num_nodes))  # prep.node_order has set it
    return graph


def _number_graphs(dataset: GraphDataset, number: int, batches: int) -> Tensor:
    """Return the number of each graph in the order of the test loader; ``number`` where each batch is of one graph."""
    if dataset.splits is None:
        return torch.full((batches,), number)
    numbers = dataset.splits.test
    if dataset.files:  # the graphs of link prediction are there three times, with the pairs of each split
        first = {place: index for index, place in reversed(list(enumerate(dataset.files)))}
        numbers = torch.tensor([first[dataset.files[index]] for index in numbers.tolist()])
    return numbers


def _name_rows(batch: Batch, level: str, numbers: Tensor, is_divided: bool) -> dict[str, Tensor]:
    """Return the columns that say what the rows of a batch's predictions are of.

    Args:
        batch: of B graphs.
        level: of the data set.
        numbers: of its graphs, (B,), or of the nodes that they surround where ``is_divided`` is False at level "node".
        is_divided: the nodes of one graph are divided by masks.
    """
    batch = batch.to("cpu")
    if level == "graph":
        return {"graph": numbers}
    if level == "node" and not is_divided:
        return {"graph": torch.zeros_like(numbers), "node": numbers}
    graph = batch.batch
    node_id = batch.get("node_id", torch.arange(len(graph)) - batch.ptr[graph])
    if level == "link":
        source, target = batch.edge_label_index
        return {"graph": numbers[graph[source]], "source": node_id[source], "target": node_id[target]}
    nodes = batch[f"{TEST}_mask"].nonzero().squeeze(1) if is_divided else torch.arange(len(graph))
    return {"graph": numbers[graph[nodes]], "node": node_id[nodes]}


def _make_columns(task: str, score: Tensor, true: Tensor | None) -> dict[str, np.ndarray]:
    """Return labels, predictions and probabilities of all rows; numbered where a row has several of them."""
    probabilities = None
    if task in LINK_TASKS:  # of several columns the first is the logit, the others are ranks
        score, task = score.reshape(len(score), -1)[:, :1].sigmoid(), "classification_binary"
    if task == "classification_multi":
        probabilities, prediction, first = score.exp(), score.argmax(1), 0
    elif task == "classification_binary":
        probabilities, prediction, first = score, (score > cfg.model.thresh).long(), 1
    elif task == "classification_multilabel":
        probabilities, prediction, first = score.sigmoid(), (score.sigmoid() > cfg.model.thresh).long(), 0
    else:  # numbers, or the words of a name
        prediction = score
    columns = {"label": true, "prediction": prediction, "p": probabilities}
    table = {}
    for name, values in columns.items():
        if values is None:
            continue
        parts = values.reshape(len(values), -1).T.numpy()
        start = first if name == "p" else 0
        is_numbered = name == "p" or len(parts) > 1
        table |= {f"{name}{start + number}" if is_numbered else name: part for number, part in enumerate(parts)}
    return table
