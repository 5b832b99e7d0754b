"""Splits of a data set: random, stratified, k-fold, of pairs of nodes; and opening a data set with one of them."""

from __future__ import annotations

import copy
import logging
import os
import random
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import RandomLinkSplit
from torch_geometric.utils import index_to_mask, is_undirected

from graphgps_kmip.common.torch_files import UnreadableFile, load_plain, save_plain
from graphgps_kmip.data.dataset import SPLITS, GraphDataset, Splits
from graphgps_kmip.data.dataset_info import check_not_empty, load_or_summarize
from graphgps_kmip.data.dataset_record import DatasetRecord
from graphgps_kmip.data.raw_files import prepared, processed_folder
from graphgps_kmip.data.synthetic_sample import make_sample
from graphgps_kmip.errors import DataError, InputError

FOLD_SEED = 123  # that of GraphGPS: its folds are ours


def random_split(
    num: int,
    fractions: Sequence[float] = (0.6, 0.2, 0.2),
    seed: int = 0,
    labels: Sequence[int] | np.ndarray | None = None,
) -> Splits:
    """Draw a split of ``num`` samples; the indices of each part come in increasing order.

    Args:
        num: number of samples.
        fractions: shares of training, validation and test, positive, summing to 1.
        seed: of the draw.
        labels: class of each sample: every class is divided by the same fractions. None: classes do not matter.
    """
    from sklearn.model_selection import train_test_split  # takes a second or two to import

    if len(fractions) != 3 or min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-6:
        raise InputError(
            f"dataset.split must be three positive shares that sum to 1, as [0.6, 0.2, 0.2], got {list(fractions)}"
        )
    train_share, val_share, test_share = fractions
    labels = None if labels is None else np.asarray(labels)
    try:
        train, rest = train_test_split(np.arange(num), train_size=train_share, random_state=seed, stratify=labels)
        rest_labels = None if labels is None else labels[rest]
        val_share = val_share / (val_share + test_share)
        val, test = train_test_split(rest, train_size=val_share, random_state=seed, stratify=rest_labels)
    except ValueError as error:
        class_text = "" if labels is None else " of each class"
        raise InputError(
            f"dataset.split: {num:,} samples cannot be divided into {list(fractions)}: each part needs one or more"
            f"{class_text}: give more samples, or your own split"
        ) from error
    return Splits(*(torch.from_numpy(np.sort(part)) for part in (train, val, test)))


def fold_split(num: int, folds: int, index: int, labels: Sequence[int] | Tensor | None = None) -> Splits:
    """Return one split of a cross-validation, as in GraphGPS: fold ``index`` tests, the next validates, others train.

    Args:
        num: number of samples.
        folds: number of parts, at least 3.
        index: which fold tests, from 0.
        labels: class of each sample: every fold gets its share of each class. None: classes do not matter.
    """
    from sklearn.model_selection import KFold, StratifiedKFold  # takes a second or two to import

    if folds < 3:
        raise InputError(f"dataset.split_mode: cross-validation needs 3 folds or more, got {folds}")
    if not 0 <= index < folds:
        raise InputError(f"dataset.split_index must be in 0..{folds - 1} for {folds} folds, got {index}")
    kind = KFold if labels is None else StratifiedKFold
    try:
        parts = [test for _, test in kind(folds, shuffle=True, random_state=FOLD_SEED).split(np.zeros(num), labels)]
    except ValueError as error:
        class_text = "" if labels is None else " of each class"
        raise InputError(
            f"dataset.split_mode: {num:,} samples cannot be divided into {folds} folds: each fold needs one or more"
            f"{class_text}: take fewer folds"
        ) from error
    test, val = parts[index], parts[(index + 1) % folds]
    train = np.setdiff1d(np.arange(num), np.concatenate([test, val]))
    return Splits(*(torch.from_numpy(np.sort(part)) for part in (train, val, test)))


log = logging.getLogger(__name__)
FOLDS = re.compile(r"cv-(stratified)?kfold-(\d+)")
MANY = 2_000  # graphs from which on a look at all of them is kept on disk
SPLIT_MODES = ("standard", "random", "cv-kfold-N", "cv-stratifiedkfold-N")


def open_dataset(
    record: DatasetRecord,
    root: str | Path = "",
    split_mode: str = "standard",
    fractions: Sequence[float] | None = None,
    seed: int = 0,
    split_index: int = 0,
    split_dir: str | Path = "",
) -> GraphDataset:
    """Load a data set and choose its split.

    Args:
        record: which data set.
        root: folder of the data (``dataset.dir``).
        split_mode: "standard": that of the data set, or a random one that is the same in every run; "random": one by
            ``seed``; "cv-kfold-N", "cv-stratifiedkfold-N": fold ``split_index`` tests, the next one validates.
        fractions: shares of training, validation and test for "random"; None: those of the record.
        seed: of a "random" split.
        split_index: which of several splits.
        split_dir: where drawn splits that do not depend on ``seed`` are stored; "": ``root/splits``, if any.
    """
    folds = FOLDS.fullmatch(split_mode)
    if not folds and split_mode not in SPLIT_MODES[:2]:
        raise InputError(f"dataset.split_mode must be one of {', '.join(SPLIT_MODES)}, got {split_mode!r}")
    dataset = _load(record, root)
    if record.divide:
        if folds:
            raise InputError(f"dataset.split_mode: {record.title} divides pairs of nodes: set standard or random")
        is_random = split_mode == "random"
        shares = fractions if is_random and fractions else record.fractions
        return record.divide(dataset, shares, seed if is_random else 0)
    if record.level == "link" and split_mode != "standard" and dataset.splits and max(map(len, dataset.splits)) == 1:
        raise InputError(f"dataset.split_mode: {record.title} divides the pairs of nodes of one graph: set standard")
    # Seed 0 whatever the run's seed: runs that differ in their seed must be tested on the same samples.
    if split_mode == "random":
        return _divide(dataset, record, random_split(_samples(dataset, record), fractions or record.fractions, seed))
    folder = Path(split_dir) if split_dir else Path(root, "splits") if root else None
    if folds:
        labels = _labels(dataset, record) if folds[1] else None
        split = fold_split(_samples(dataset, record), int(folds[2]), split_index, labels)
        return _divide(dataset, record, _load_or_save_split(record, folder, f"{split_mode}-{split_index}", split))
    if dataset.splits is None and not (record.level == "node" and "train_mask" in dataset.graphs[0]):
        split = random_split(_samples(dataset, record), record.fractions, seed=0)
        dataset = _divide(dataset, record, _load_or_save_split(record, folder, "random-0", split))
    return _choose_split(dataset, record, split_index)


def sampled(record: DatasetRecord, max_graphs: int = 0) -> DatasetRecord:
    """Return the record of a small synthetic stand-in for a data set: no files, no network, the same schema.

    Of more graphs than ``max_graphs`` it keeps the first ones of each split, in their shares; 0: all.
    """
    make = record.sample or make_sample
    return replace(record, raw=None, load=lambda _root: _keep_first(make(record, seed=0), max_graphs))


def _keep_first(dataset: GraphDataset, max_graphs: int) -> GraphDataset:
    if not 0 < max_graphs < len(dataset):
        return dataset
    splits = dataset.splits or (torch.arange(len(dataset)),)
    parts = [split[: max(1, round(len(split) * max_graphs / len(dataset)))] for split in splits]
    graphs = [dataset.graphs[number] for number in torch.cat(parts).tolist()]
    return GraphDataset(graphs, dataset.splits and torch.arange(len(graphs)).split([len(part) for part in parts]))


def _load(record: DatasetRecord, root: str | Path) -> GraphDataset:
    loaded = prepared(record, root, record.load) if record.raw else record.load(str(root))
    graphs = [loaded] if isinstance(loaded, Data) else loaded
    dataset = graphs if isinstance(graphs, GraphDataset) else GraphDataset(graphs)
    check_not_empty(dataset, record)
    if record.raw and len(dataset) > MANY and dataset.summary is None:
        dataset.summary = load_or_summarize(dataset, record, processed_folder(record, root))
    return dataset


def _samples(dataset: GraphDataset, record: DatasetRecord) -> int:
    return dataset.graphs[0].num_nodes if record.level == "node" else len(dataset)


def _labels(dataset: GraphDataset, record: DatasetRecord) -> Tensor:
    if record.level == "node":
        return dataset.graphs[0].y.reshape(-1)
    if record.level != "graph" or record.task_type != "classification":
        raise InputError(f"{record.title}: cv-stratifiedkfold needs one class for each graph: use cv-kfold")
    get = getattr(dataset.graphs, "points", dataset.graphs.__getitem__)  # point clouds: without building their edges
    return torch.cat([torch.as_tensor(get(number).y).reshape(-1) for number in range(len(dataset))])


def _divide(dataset: GraphDataset, record: DatasetRecord, split: Splits) -> GraphDataset:
    if record.level != "node":
        return GraphDataset(dataset.graphs, split, dataset.summary, dataset.files)
    graph = copy.copy(dataset.graphs[0])
    for name, index in zip(SPLITS, split, strict=True):
        graph[f"{name}_mask"] = index_to_mask(index, graph.num_nodes)
    return GraphDataset([graph], files=dataset.files)


def _choose_split(dataset: GraphDataset, record: DatasetRecord, split_index: int) -> GraphDataset:
    graph = dataset.graphs[0]
    several = record.level == "node" and graph.train_mask.dim() == 2
    count = graph.train_mask.size(1) if several else 1
    if not 0 <= split_index < count:
        raise InputError(f"dataset.split_index: {record.title} has {count} splits, numbered from 0, got {split_index}")
    if not several:
        return dataset
    graph = copy.copy(graph)
    for name in SPLITS:
        mask = graph[f"{name}_mask"]
        graph[f"{name}_mask"] = mask[:, split_index] if mask.dim() == 2 else mask  # WikiCS has one test mask
    return GraphDataset([graph], files=dataset.files)


def _load_or_save_split(record: DatasetRecord, folder: Path | None, name: str, drawn: Splits) -> Splits:
    """Return the split that an earlier run stored under this name, or store the one that was drawn."""
    if folder is None:
        return drawn
    path = folder / f"{record.key.replace('/', '-')}-{name}.pt"
    total = sum(len(part) for part in drawn)
    if os.path.exists(path):
        try:
            stored = load_plain(path)
        except UnreadableFile as error:
            raise DataError(
                f"{path}: this split cannot be read ({error}): restore it, or remove it to draw a new one"
            ) from error
        if sum(len(part) for part in stored.values()) != total:
            raise DataError(f"{path}: this split is not one of {total:,} samples: remove it to draw a new one")
        return Splits(**stored)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_plain(path, drawn._asdict())
    except OSError as error:
        log.warning("%s: its random split is not kept: %s cannot be written (%s)", record.title, path, error.strerror)
    return drawn


def divide_links(
    dataset: GraphDataset,
    fractions: Sequence[float],
    seed: int = 0,
    negatives: float = 1.0,
    supervision: float = 0.0,
) -> GraphDataset:
    """Return each graph three times, with the pairs that train, validate and test, by torch_geometric's split.

    ``edge_index`` holds the edges that carry messages: those of training, in the test those of validation, too. An edge
    and its reverse stay together. ``edge_label_index`` (2, L) holds edges that are predicted and pairs without an edge,
    ``edge_label`` (L,) is 1 and 0. Self loops and repeated edges are removed first: a copy would tell the label.

    Args:
        dataset: graphs without a split.
        fractions: shares of the edges that train, validate and test.
        seed: of the draws.
        negatives: pairs without an edge for each edge that is predicted (`dataset.edge_negative_sampling_ratio`).
        supervision: share of the training edges that are predicted and carry no messages; 0: all do both (1 -
            `dataset.edge_message_ratio` with `dataset.edge_train_mode` disjoint).
    """
    if dataset.splits is not None:
        raise DataError(
            "dataset.task link_pred divides the edges of each graph: put the graphs into one folder, without a split"
        )
    parts: dict[str, list[Data]] = {split: [] for split in SPLITS}
    with torch.random.fork_rng(devices=[]), ExitStack() as stack:
        # torch_geometric draws by both generators; those of the run must not move
        stack.callback(random.setstate, random.getstate())
        torch.manual_seed(seed), random.seed(seed)
        for number in range(len(dataset)):
            graph = _drop_copies(dataset.graphs[number])
            both_ways = is_undirected(graph.edge_index, num_nodes=graph.num_nodes)
            divide = RandomLinkSplit(
                num_val=float(fractions[1]),
                num_test=float(fractions[2]),
                is_undirected=both_ways,
                neg_sampling_ratio=negatives,
                disjoint_train_ratio=supervision,
            )
            try:
                divided = divide(graph)
            except ValueError as error:
                raise DataError(f"{dataset.place(number)}: {graph.num_edges} edges are too few to divide") from error
            for split, part in zip(SPLITS, divided, strict=True):
                pairs = part.edge_label_index
                if both_ways:  # edges come with the smaller node first, pairs without an edge do not
                    pairs = torch.where(torch.rand(pairs.size(1)) < 0.5, pairs, pairs.flip(0))
                part.edge_label_index, part.edge_label = pairs, part.edge_label.long()
                parts[split].append(part)
    for split, graphs in parts.items():
        if not any(bool(graph.edge_label.any()) for graph in graphs):
            raise InputError(f"dataset.split: the {split} split of {len(graphs)} graphs has no edges: give it more")
    return _stack(list(parts.values()), dataset.files)


def divide_labels(
    dataset: GraphDataset, fractions: Sequence[float], seed: int = 0, split: Splits | None = None
) -> GraphDataset:
    """Return the one graph three times, with the labelled pairs that train, validate and test; ``split`` or a draw.

    All edges carry messages in all three.
    """
    graph, parts = dataset.graphs[0], []
    for rows in split or random_split(graph.edge_label_index.size(1), fractions, seed):
        part = copy.copy(graph)
        part.edge_label_index, part.edge_label = graph.edge_label_index[:, rows], graph.edge_label[rows]
        parts.append([part])
    return _stack(parts, dataset.files)


def _drop_copies(graph: Data) -> Data:
    """Return a graph with each edge once, its first copy, without self loops and labels of pairs."""
    graph = copy.copy(graph)
    source, target = graph.edge_index
    number, first = (source * graph.num_nodes + target).unique(return_inverse=True)
    edges = torch.full((len(number),), len(source)).scatter_reduce_(0, first, torch.arange(len(source)), "amin")
    edges = edges[source[edges] != target[edges]].sort().values
    graph.edge_index = graph.edge_index[:, edges]
    if isinstance(graph.edge_attr, Tensor):
        graph.edge_attr = graph.edge_attr[edges]
    for key in ("edge_label", "edge_label_index"):
        if key in graph:
            del graph[key]
    return graph


def _stack(parts: Sequence[Sequence[Data]], files: Sequence[str] | None) -> GraphDataset:
    count = len(parts[0])
    numbers = torch.arange(3 * count).split(count)
    return GraphDataset([graph for part in parts for graph in part], numbers, files=files and [*files] * 3)
