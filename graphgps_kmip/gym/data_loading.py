"""Data loading: data set, derived facts and loaders as the config says."""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch_geometric.graphgym import register
from torch_geometric.graphgym.config import cfg
from yacs.config import CfgNode

from graphgps_kmip.common.near_misses import near_misses
from graphgps_kmip.compat.public_faults import PublicExpander, with_every_edge_reversed
from graphgps_kmip.data import (
    DatasetInfo,
    DatasetRecord,
    Encoding,
    GraphDataset,
    GraphLoader,
    NodeLoader,
    Sampling,
    at_hand,
    card_text,
    datasets,
    encoded,
    find,
    find_title,
    make_loaders,
    mismatches,
    missing_line,
    open_dataset,
    sampled,
)
from graphgps_kmip.data.dataset import SPLITS
from graphgps_kmip.data.dataset_info import columns, summarize
from graphgps_kmip.data.dataset_record import LEVELS
from graphgps_kmip.data.graph_changes import order_nodes, with_normalized_features, with_reverse_edges, with_self_loops
from graphgps_kmip.data.graph_folder import FORMAT as FOLDER
from graphgps_kmip.data.graph_folder import folder_record
from graphgps_kmip.data.graph_folder import load as load_folder
from graphgps_kmip.data.layer_loader import LayerLoader
from graphgps_kmip.data.loaders import with_node_budget
from graphgps_kmip.data.node_loader import FULL_BATCH, NODE2SUBGRAPH, around_nodes
from graphgps_kmip.data.sets.brec import NUM_PAIRS, parse_pairs, select_pairs
from graphgps_kmip.encoding.positional_encoding import PositionalEncoding, encoding_parts, from_settings
from graphgps_kmip.errors import ConfigError, DataError
from graphgps_kmip.gym.config_defaults import NAME
from graphgps_kmip.gym.graphgym_registries import choose_package
from graphgps_kmip.gym.network_building import set_values, with_values
from graphgps_kmip.gym.sparse_loading import is_sparse, sparse_loaders
from graphgps_kmip.networks.network_stack import check_head
from graphgps_kmip.registry import Spec, entries

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_standing_in: ContextVar[bool] = ContextVar("standing_in", default=False)
GRAPHGYM_SHARES = (0.8, 0.1, 0.1)  # its default of dataset.split
PAIR_HEADS = ("edge", "link_pred", "inductive_edge")
GRAPHGYM_FORMAT = "PyG"  # loaded by GraphGym itself where we have no record of that name


class Loaded(NamedTuple):
    """A data set with its encodings, and the facts that they derive from its graphs: ``share.<name>`` -> value."""

    dataset: GraphDataset
    facts: Mapping[str, int]


def load(format: str, name: str, root: str) -> Loaded | None:  # noqa: A002 (GraphGym's names)
    """Return the data set of ``dataset.format`` and ``dataset.name`` with its splits, prepared edges and encodings.

    None leaves a format that is not ours to GraphGym or to another registered loader; without one it is an error.
    """
    formats = {FOLDER, *(key[0] for key in datasets())}
    if format not in formats and set(register.loader_dict) - {NAME}:
        return None
    if format == GRAPHGYM_FORMAT and (format, name) not in datasets():
        if name == "none":
            raise ConfigError(f"dataset.name: of dataset.format {format} none is chosen: name one, such as Cora")
        return None
    record = _record(format, name, root)
    dataset, is_sample = _without_encodings(record, root)
    cache = None if is_sample else Path(root, "encodings", record.key.replace("/", "-"))
    derived = {name: value for spec in enabled() for name, value in current(spec).facts(dataset.graphs).items()}
    facts = {f"share.{name}": value for name, value in derived.items()}  # such as the width of ERN
    return Loaded(encoded(dataset, enabled_encodings(with_values(cfg, facts)), cache), facts)


def load_new(folder: Path, level: str) -> tuple[list[GraphDataset], bool]:
    """Return new graphs as the test split of data sets, prepared by ``cfg``, which has the facts of the training data.

    At level "node" each graph is a data set. The second value says whether the graphs have labels; else these are 0.
    """
    if not folder.is_dir():
        near = near_misses(folder.name, [path.name for path in folder.parent.glob("*/")])
        raise DataError(f"--data-folder: there is no folder {folder}.{near}")
    label, task_type = "edge_label" if level == "link" else "y", cfg.dataset.task_type
    dataset = load_folder("", str(folder), task_type, label, is_optional=True)
    graphs, is_labelled, empty = list(dataset.graphs), label in dataset.graphs[0], torch.empty(0, dtype=torch.long)
    for place, graph in zip(dataset.files, graphs, strict=True):
        if level == "link" and "edge_label_index" not in graph:
            if cfg.dataset.task == "link_pred":
                raise DataError(f"{place}: edge_label_index is missing: give the pairs of nodes to predict, (2, L)")
            graph.edge_label_index = graph.edge_index
        if not is_labelled:
            rows = graph.edge_label_index.size(1) if level == "link" else 1 if level == "graph" else graph.num_nodes
            graph[label] = torch.zeros(rows, dtype=torch.long)
        if level == "node":
            for split in SPLITS:
                graph[f"{split}_mask"] = torch.full((graph.num_nodes,), split == "test")
    if level == "node":
        datasets = [GraphDataset([graph], files=[place]) for place, graph in zip(dataset.files, graphs, strict=True)]
    else:
        datasets = [GraphDataset(graphs, (empty, empty, torch.arange(len(graphs))), files=dataset.files)]
    record = DatasetRecord(FOLDER, lambda _root: dataset, task_type, str(folder), level, title=str(folder))
    for new in datasets:
        new.summary = summarize(new, record)
        for attribute, width, trained_width in (
            ("x", new.summary.dim_in, cfg.share.dim_in),
            ("edge_attr", new.summary.dim_edge, cfg.dataset.edge_dim),
        ):
            if width != trained_width:
                raise DataError(
                    f"{new.files[0]}: {attribute} has {width or 'no'} columns, and the model was trained with "
                    f"{trained_width or 'none'}: give the columns of the training data"
                )
    return [encoded(_prepare(new, record), enabled_encodings(cfg), None) for new in datasets], is_labelled


def load_dataset(format: str, name: str, root: str) -> GraphDataset | None:  # noqa: A002 (GraphGym's signature)
    """Return the data set as `load`, or None for a network of another package; GraphGym's ``cfg`` gets its facts."""
    is_ours = choose_package(cfg.model.type)
    owner = "those of graphgps_kmip" if is_ours else "left to the package that has it"
    logging.info("model.type %s: data set, encoders, network, head and training loop are %s", cfg.model.type, owner)
    for key, is_set in (
        ("train.max_nodes", cfg.train.max_nodes != 0),
        ("optim.weight_decay_layers", cfg.optim.weight_decay_layers != "all"),
        ("gt.layer_type", is_sparse(cfg)),
    ):
        if is_ours and is_set:
            raise ConfigError(
                f"{key}: GraphGym's own loaders and optimizers do not obey it: train by graphgps_kmip's main.py"
            )
    loaded = load(format, name, root) if is_ours else None
    if loaded is None:
        return None
    task = {"dataset.task": "graph"} if cfg.train.sampler == NODE2SUBGRAPH else {}
    set_values(cfg, {**loaded.facts, **task, "dataset.edge_dim": columns(loaded.dataset.graphs[0].edge_attr, name)})
    dataset = loaded.dataset
    return GraphDataset(dataset.graphs, dataset.splits, dataset_info(dataset), dataset.files)


def load_configured() -> Loaded:
    """Return the configured data set; refuse one that only GraphGym itself or another package could load."""
    choose_package(cfg.model.type)
    loaded = load(cfg.dataset.format, cfg.dataset.name, cfg.dataset.dir)
    if loaded is None:
        raise ConfigError(
            f"dataset.format: {cfg.dataset.format} {cfg.dataset.name} is loaded outside of this package, without the "
            "record that main.py needs: register_dataset one (docs/extending.md), or train it through GraphGym's own "
            "calls"
        )
    return loaded


@contextmanager
def stand_in() -> Iterator[None]:
    """Load a small sample of the same schema in place of a data set: a dry run needs its dims alone."""
    token = _standing_in.set(True)
    try:
        yield
    finally:
        _standing_in.reset(token)


def missing_data() -> str:
    """Return the line for the configured data set if its raw files are missing and its record has its dims, else ""."""
    format, name, root = cfg.dataset.format, cfg.dataset.name, cfg.dataset.dir  # noqa: A001
    if cfg.dataset.sample or any(current(spec).needs_data for spec in enabled()):
        return ""
    if format not in {key[0] for key in datasets()} or (format == GRAPHGYM_FORMAT and (format, name) not in datasets()):
        return ""
    record = find(format, name)
    if not record.has_sample or at_hand(record, root):
        return ""
    return missing_line(record, root, "a dry run downloads nothing")


def _record(format: str, name: str, root: str) -> DatasetRecord:  # noqa: A002
    if format != FOLDER:
        return find(format, name)
    if cfg.dataset.task == "link_pred":
        share = 1 - cfg.dataset.edge_message_ratio if cfg.dataset.edge_train_mode == "disjoint" else 0.0
        links = {"negatives": cfg.dataset.edge_negative_sampling_ratio, "supervision": share}
        return replace(folder_record(name, root, links=links), fractions=tuple(cfg.dataset.split))
    level = cfg.gnn.head if cfg.gnn.head in LEVELS else ""  # "": seen from the files
    level = "link" if cfg.gnn.head in PAIR_HEADS else level
    return folder_record(name, root, cfg.dataset.task_type, level)


def configured_graph() -> tuple[GraphDataset, str]:
    """Return the configured data set without encodings, and its level: for checks beforehand."""
    record = _record(cfg.dataset.format, cfg.dataset.name, cfg.dataset.dir)
    return _without_encodings(record, cfg.dataset.dir)[0], record.level


def _without_encodings(record: DatasetRecord, root: str) -> tuple[GraphDataset, bool]:
    """Return the data set with its splits and prepared edges, and whether it is sample data."""
    mode, index, folder = cfg.dataset.split_mode, cfg.dataset.split_index, cfg.dataset.split_dir
    if "Superpixels" in record.format and cfg.dataset.slic_compactness != 30:
        raise ConfigError(
            f"dataset.slic_compactness: {record.title} is published with 30 only, got {cfg.dataset.slic_compactness}"
        )
    if standing_in := cfg.dataset.sample or _standing_in.get():
        if cfg.dataset.sample:
            logging.warning("dataset.sample: synthetic data, which says nothing of scores of %s", record.title)
        graphs = 0 if cfg.train.mode == "brec" else cfg.dataset.sample_graphs  # BREC's come in pairs
        record, root, folder = sampled(record, graphs), "", ""
        index = 0 if mode == "standard" else index  # it has one split only
    elif cfg.dataset.cache_edges:
        if "cache" not in inspect.signature(record.load).parameters:
            raise ConfigError(f"dataset.cache_edges: {record.title} comes with its edges, set it to False")
        record = replace(record, load=partial(record.load, cache=True))
    shares = tuple(cfg.dataset.split)
    if mode != "random" and shares not in (GRAPHGYM_SHARES, tuple(record.fractions)):
        reason = f"dataset.split_mode {mode} takes the split of {record.title}; set dataset.split_mode random"
        logging.warning("dataset.split %s is not read: %s", list(shares), reason)
    dataset = open_dataset(record, root, mode, cfg.dataset.split, _seed(cfg.dataset.split_seed), index, folder)
    if cfg.train.mode == "brec":  # before encodings are computed, which can be large
        if standing_in:  # its pairs are others: of the setting only the form is checked
            parse_pairs(cfg.brec.pairs, range(NUM_PAIRS))
        dataset = select_pairs(dataset, "" if standing_in else cfg.brec.pairs)
    return _prepare(dataset, record), standing_in


def _prepare(dataset: GraphDataset, record: DatasetRecord) -> GraphDataset:
    """Return the graphs with the order of nodes, the edges and the features that ``prep`` and ``dataset`` ask for."""
    dataset = order_nodes(dataset, cfg.prep.node_order, cfg.seed)
    if record.level == "node":
        dataset = _prepare_graph(dataset, record)
    elif cfg.dataset.normalize_features:
        raise ConfigError(
            f"dataset.normalize_features: {record.title} is not one graph whose nodes are classified, set it to False"
        )
    if NODE2SUBGRAPH in (cfg.train.sampler, cfg.val.sampler):
        if cfg.train.sampler != NODE2SUBGRAPH or cfg.val.sampler not in (NODE2SUBGRAPH, FULL_BATCH):
            raise ConfigError(
                f"train.sampler {cfg.train.sampler} and val.sampler {cfg.val.sampler}: {NODE2SUBGRAPH} makes graphs of "
                f"the nodes of all splits: set train.sampler {NODE2SUBGRAPH} and val.sampler {FULL_BATCH}, or another "
                "train.sampler"
            )
        dataset = around_nodes(dataset, record, cfg.train.subgraph_hops, cfg.train.subgraph_nodes, cfg.seed)
    return dataset


def _seed(seed: int) -> int:
    return cfg.seed if seed < 0 else seed


def _prepare_graph(dataset: GraphDataset, record: DatasetRecord) -> GraphDataset:
    prep, raw = cfg.prep, dataset.graphs[0]
    graph = raw
    if prep.raw_reverse_edges:
        graph = with_every_edge_reversed(graph)
    elif prep.add_reverse_edges:
        graph = with_reverse_edges(graph)
    if prep.add_self_loops:
        graph = with_self_loops(graph)
    if graph is not raw:
        logging.info("prep: the %s edges of %s became %s", raw.num_edges, record.title, graph.num_edges)
    if cfg.dataset.normalize_features:
        graph = with_normalized_features(graph)
    if graph is raw:
        return dataset
    return GraphDataset([graph], dataset.splits, dataset.summary or summarize(dataset, record), dataset.files)


def show_data(name: str) -> str:
    """Return the dataset card of a data set, with the statistics of its files if they are on disk."""
    record = find_title(name)
    root = cfg.dataset.dir
    info = DatasetInfo.of(open_dataset(record, root), record) if at_hand(record, root) else None
    return card_text(record, root, info)


def dataset_info(dataset: GraphDataset) -> DatasetInfo:
    """Return the facts of the configured data set; log where they are not the record's, refuse an unfit head."""
    record = _record(cfg.dataset.format, cfg.dataset.name, cfg.dataset.dir)
    level = "sampled" if is_sparse(cfg) else record.level
    check_head(cfg, "subgraph" if cfg.train.sampler == NODE2SUBGRAPH else level)
    info = DatasetInfo.of(dataset, record)
    part = cfg.train.mode == "brec" and cfg.brec.pairs
    if not (cfg.dataset.sample or _standing_in.get() or part):
        for line in mismatches(record, info):
            logging.warning(line)
    return info


def current_loaders(dataset: GraphDataset, level: str, fabric: Fabric) -> list[GraphLoader | NodeLoader | LayerLoader]:
    """Return the loaders of training, validation and test for this process."""
    if is_sparse(cfg):
        return sparse_loaders(dataset, level, fabric)
    train, *evaluation = make_loaders(
        dataset,
        level,
        cfg.train.batch_size,
        seed=cfg.seed,
        num_workers=cfg.num_workers,
        shuffle=cfg.train.shuffle,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        sampling=current_sampling(),
    )
    if (budget := cfg.train.max_nodes) == 0:
        return [train, *evaluation]
    if not isinstance(train, GraphLoader) or len(train.dataset) == 1:
        raise ConfigError(
            f"train.max_nodes: {budget} fills batches of whole graphs, and here is one graph: set it to 0"
        )
    return [with_node_budget(train, budget), *evaluation]


def current_sampling() -> Sampling:
    """Return how the config divides one graph into batches."""
    if cfg.train.sampler == NODE2SUBGRAPH:  # its nodes are graphs by then
        return Sampling()
    return Sampling(
        cfg.train.sampler, cfg.val.sampler, cfg.train.batch_size, tuple(cfg.train.neighbor_sizes), cfg.train.train_parts
    )


def current(spec: Spec) -> PositionalEncoding:
    """Return a registered encoding with the options that ``cfg`` gives it."""
    return from_settings(spec.component, spec.name, cfg)


def enabled() -> list[Spec]:
    """Return the encodings that the config enables."""
    return [spec for spec in entries("encoding").values() if spec.group in cfg and cfg[spec.group].enable]


def enabled_encodings(settings: CfgNode) -> list[Encoding]:
    """Return what is precomputed for each graph; refuse encoder parts that are not enabled."""
    for kind, parts in (("node", encoding_parts()), ("edge", encoding_parts(on_edges=True))):
        names = settings.dataset[f"{kind}_encoder_name"].split("+") if settings.dataset[f"{kind}_encoder"] else ()
        for name in names:
            if name in parts and not settings[parts[name].group].enable:
                raise ConfigError(f"dataset.{kind}_encoder_name: {name} needs {parts[name].group}.enable True")
    encodings = [from_settings(spec.component, spec.name, settings) for spec in enabled()]
    precomputed = [precomputation(encoding) for encoding in encodings if not encoding.computed_in_batch]
    if settings.prep.exp and not is_sparse(settings):  # the edges of a sparse network are those that have scores
        expander = from_settings(PublicExpander, "Expander", settings)
        precomputed.append(precomputation(replace(expander, seed=_seed(settings.prep.exp_seed))))
    return precomputed


def precomputation(encoding: PositionalEncoding) -> Encoding:
    """Return what is precomputed for an encoding, with the settings that key its cache on disk."""
    settings, source = encoding.settings(), {}
    if not type(encoding).__module__.startswith("graphgps_kmip."):  # a user's; those of this package have versions
        with suppress(TypeError, OSError):  # typed into an interpreter
            source = {"source": hashlib.sha256(Path(inspect.getfile(type(encoding))).read_bytes()).hexdigest()}
    return Encoding(
        encoding.name,
        settings | source,
        partial(encoding.attributes, settings=settings),
        version=encoding.version,
        random=encoding.random,
        float64=encoding.float64,
        reads=encoding.reads,
    )
