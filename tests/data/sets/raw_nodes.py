"""Raw files of single graphs with labelled nodes, tiny, in their published form, and the graphs that they hold."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tarfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from scipy.io import savemat

from graphgps_kmip.data import DatasetRecord, datasets
from tests.data.sets.raw_files import write, write_tables

NODES = 10
NODE = np.arange(NODES)
RANDOM = np.random.default_rng(0).standard_normal((NODES, 3)).astype(np.float32)
Edges = list[tuple[int, int]]
Masks = dict[str, np.ndarray]


def both_ways(edges: Edges) -> Edges:
    return sorted({edge for source, target in edges for edge in ((source, target), (target, source))})


def split_masks(number: int = 0) -> Masks:
    """Return three masks: by number, other nodes validate and test; the last node is in no part."""
    part, inside = (NODE + number) % 5, NODE < NODES - 1  # 0, 1, 2 train, 3 validates, 4 tests
    masks = {"train": (part < 3) & inside, "val": (part == 3) & inside, "test": (part == 4) & inside}
    return {f"{split}_mask": mask for split, mask in masks.items()}


@dataclass
class Expected:
    """A graph: features, labels, sorted edges, masks of a split by its number (None: drawn), and numbers to try."""

    x: Any
    y: Any
    edges: Edges
    masks: Callable[[int], Masks] | None = split_masks
    numbers: tuple[int, ...] = (0,)


def links(edges: Edges) -> np.ndarray:
    matrix = np.zeros((NODES, NODES))
    matrix[tuple(np.array(edges).T)] = 1
    return matrix


def compressed(prefix: str, matrix: np.ndarray) -> dict[str, np.ndarray]:
    """Return a matrix as the four arrays of a compressed sparse one."""
    sparse = scipy.sparse.csr_matrix(matrix)
    parts = {"data": sparse.data, "indices": sparse.indices, "indptr": sparse.indptr, "shape": np.array(sparse.shape)}
    return {f"{prefix}{name}": part for name, part in parts.items()}


class Python2Pickler(pickle._Pickler):
    """Write bytes as Python 2, by which the published files were made, wrote its strings."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_bytes(self, content: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)
        self.memoize(content)

    dispatch[bytes] = save_bytes


def pickled(content: Any) -> bytes:
    buffer = io.BytesIO()
    Python2Pickler(buffer, protocol=2).dump(content)
    return buffer.getvalue()


def planetoid(record: DatasetRecord, raw: Path) -> Expected:
    """Node n has the features (n, 0, 1) and the class n % 2; CiteSeer leaves numbers of test nodes out."""
    tests = [508, 505, 507] if record.name == "CiteSeer" else [507, 505, 506]
    first, last, num_labelled = min(tests), max(tests), 505  # of which 500 validate
    graph = {0: [1, 1, 0], 1: [0, 2], 2: [], 3: [first], first: [3], last: []}  # an edge twice, one to itself
    content: dict[str, Any] = {"graph": defaultdict(list, graph)}
    for name, numbers in {"x": range(3), "allx": range(num_labelled), "tx": tests}.items():
        content[name] = scipy.sparse.csr_matrix(np.array([[number, 0, 1] for number in numbers], dtype=np.float32))
        content[name.replace("x", "y")] = np.eye(2, dtype=np.int32)[[number % 2 for number in numbers]]
    low = record.name.lower()
    for name, value in content.items():
        write(raw / f"ind.{low}.{name}", pickled(value))
    write(raw / f"ind.{low}.test.index", "".join(f"{number}\n" for number in tests))
    present = [*range(num_labelled), *tests]
    number = np.arange(last + 1)
    masks = {"train_mask": number < 3, "val_mask": (number >= 3) & (number < 503), "test_mask": np.isin(number, tests)}
    return Expected(
        [[n, 0, 1] if n in present else [0, 0, 0] for n in range(last + 1)],
        [n % 2 if n in present else 0 for n in range(last + 1)],
        [(0, 1), (1, 0), (1, 2), (3, first), (first, 3)],
        lambda _: masks,
    )


def compressed_npz(record: DatasetRecord, raw: Path) -> Expected:
    word_counts = np.array([[node % 3, 0, (node == 5) * 0.5, 1] for node in range(NODES)], dtype=np.float32)
    edges = [(0, 1), (1, 0), (2, 1), (9, 4), (3, 3)]  # one both ways, one to itself
    arrays = {
        **compressed("adj_", links(edges).astype(np.float32)),
        **compressed("attr_", word_counts),
        "labels": NODE % 3,
    }
    np.savez(raw.parent / record.raw.files[0], **arrays)
    return Expected((word_counts > 0).astype(float), NODE % 3, both_ways([(0, 1), (1, 2), (4, 9)]), None)


def platonov(record: DatasetRecord, raw: Path) -> Expected:
    edges = [(0, 1), (2, 3), (8, 9)]
    splits = [split_masks(number) for number in range(10)]
    masks = {f"{name}s": np.stack([split[name] for split in splits]) for name in splits[0]}
    np.savez(
        raw.parent / record.raw.files[0], node_features=RANDOM, node_labels=NODE % 2, edges=np.array(edges), **masks
    )
    return Expected(RANDOM, NODE % 2, both_ways(edges), numbers=(0, 7))


def geom_gcn(record: DatasetRecord, raw: Path) -> Expected:
    """Actors list the numbers of their words, others say 0 or 1 of each word."""
    word_lists, edges = [[0, 2], [1], *([[3]] * (NODES - 2))], [(0, 1), (9, 2), (0, 1), (4, 4)]
    x = [[int(word in of_node) for word in range(4)] for of_node in word_lists]
    values = word_lists if record.title == "Actor" else x
    nodes = [f"{node}\t{','.join(map(str, values[node]))}\t{node % 5}" for node in range(NODES)]
    write(raw / "out1_node_feature_label.txt", "\n".join(["node_id\tfeature\tlabel", *nodes, ""]))
    lines = [f"{source}\t{target}" for source, target in edges]
    write(raw / "out1_graph_edges.txt", "\n".join(["node_id\tnode_id", *lines, ""]))
    for number, file in enumerate(record.raw.files[2:]):
        np.savez(raw.parent / file, **{name: mask.astype(np.uint8) for name, mask in split_masks(number).items()})
    return Expected(x, NODE % 5, [(0, 1), (4, 4), (9, 2)], numbers=(0, 3))


def wikics(record: DatasetRecord, raw: Path) -> Expected:  # noqa: ARG001
    def masks(number: int) -> Masks:
        role = np.where(NODE < 7, (NODE + number) % 3, 3)  # 0 to 6 train, validate or stop early, 7 to 9 test
        return {
            name: role == kind for kind, name in enumerate(("train_mask", "val_mask", "stopping_mask", "test_mask"))
        }

    x = [[number / 2, -1.0] for number in range(NODES)]
    content = {"features": x, "labels": (NODE % 4).tolist(), "links": [[1, 2], [0], *([[]] * 7), [3]]}
    content["test_mask"] = masks(0)["test_mask"].tolist()
    for name in ("train_mask", "val_mask", "stopping_mask"):
        content[f"{name}s"] = [masks(number)[name].tolist() for number in range(20)]
    write(raw / "data.json", json.dumps(content))
    return Expected(x, NODE % 4, both_ways([(0, 1), (0, 2), (9, 3)]), masks, (0, 19))


EDGES = [(0, 1), (2, 1), (9, 4)]
GENDER = np.array([1, 2, 2, 1, 2, 1, 1, 2, 1, 0])  # 0: unknown, in no part


def indices(number: int = 0) -> list[np.ndarray]:
    return [np.flatnonzero(mask) for mask in split_masks(number).values()]


def write_splits(path: Path) -> None:
    splits = [dict(zip(("train", "valid", "test"), indices(number), strict=True)) for number in range(5)]
    np.save(path, np.array(splits, dtype=object), allow_pickle=True)


def penn94(record: DatasetRecord, raw: Path) -> Expected:
    profile = np.stack([NODE % 2 * 7, GENDER, NODE % 3], axis=1).astype(np.int32)
    friends = scipy.sparse.csc_matrix(links(both_ways(EDGES)))
    savemat(raw / "data.mat", {"A": friends, "local_info": profile})
    write_splits(raw.parent / record.raw.files[1])
    x = [[n % 2 == 0, n % 2 == 1, n % 3 == 0, n % 3 == 1, n % 3 == 2] for n in range(NODES)]  # one-hot
    return Expected(np.array(x, dtype=float), GENDER - 1, both_ways(EDGES), numbers=(0, 4))


def pokec(record: DatasetRecord, raw: Path) -> Expected:
    edges = np.array(EDGES, dtype=np.int32).T
    savemat(raw / "pokec.mat", {"edge_index": edges, "node_feat": RANDOM, "label": GENDER - 1})
    write_splits(raw.parent / record.raw.files[1])
    return Expected(RANDOM, GENDER - 1, sorted(EDGES), numbers=(0, 4))


def graphsaint(record: DatasetRecord, raw: Path) -> Expected:
    labels = [[int(n % 2 == 0), int(n > 3)] for n in NODE] if record.title == "Yelp" else (NODE % 7).tolist()
    np.savez(raw / "adj_full.npz", **compressed("", links(EDGES)))
    np.save(raw / "feats.npy", RANDOM.astype(np.float64))
    write(raw / "class_map.json", json.dumps({str(node): labels[node] for node in reversed(range(NODES))}))
    parts = (part.tolist() for part in indices())
    write(raw / "role.json", json.dumps(dict(zip(("tr", "va", "te"), parts, strict=True))))
    return Expected(RANDOM, labels, sorted(EDGES))


def reddit(record: DatasetRecord, raw: Path) -> Expected:  # noqa: ARG001
    roles = sum(number * mask for number, mask in enumerate(split_masks().values(), start=1))
    np.savez(raw / "reddit_data.npz", feature=RANDOM, label=NODE, node_types=roles)
    scipy.sparse.save_npz(raw / "reddit_graph.npz", scipy.sparse.coo_matrix(links(EDGES)))
    return Expected(RANDOM, NODE, sorted(EDGES))


# Junctions 0, 1, 2, 5, 6, 7 train: they span longitudes 2.0 to 2.7 and latitudes 48.0 to 48.7; the last column is
# constant. The archive holds further files, and other features.
PLACES = torch.arange(NODES)[:, None]
CITY_FEATURES = torch.cat([2 + PLACES / 10, 48 + PLACES / 10, PLACES**2 * torch.ones(34), torch.full((10, 1), 4.2)], 1)
SEGMENTS = [(0, 1), (1, 2), (5, 9)]


def city_network(record: DatasetRecord, raw: Path, **changed: Any) -> Expected:
    masks = {name: torch.from_numpy(mask) for name, mask in split_masks().items()}
    files = {
        "node_features_augmented": CITY_FEATURES,
        "node_features": CITY_FEATURES[:, :12] * 0,
        "edge_indices": torch.tensor(SEGMENTS).T,
        "10-chunk_16-hop_node_labels": torch.arange(NODES),
        "train_mask": masks["train_mask"],
        "valid_mask": masks["val_mask"],
        "test_mask": masks["test_mask"],
        "../../../../outside": 1,  # its path leads elsewhere
    }
    with tarfile.open(raw.parent / record.raw.files[0], "w:gz") as archive:
        for name, content in {**files, **changed}.items():
            buffer = io.BytesIO()
            torch.save(content, buffer)
            member = tarfile.TarInfo(f"paris/{name}.pt")
            member.size = buffer.tell()
            buffer.seek(0)
            archive.addfile(member, buffer)
    return Expected(None, NODE, both_ways(SEGMENTS))  # features: see the test of coordinates


def ogb_node(record: DatasetRecord, raw: Path) -> Expected:
    """Citations keep their direction, other edges go both ways; proteins have the mean of their edges as features."""
    edges = [(0, 1), (0, 2), (2, 1)]
    split = record.raw.files[-1].split("/")[1]
    weights = torch.tensor([[number + column / 8 for column in range(8)] for number in range(3)])
    functions = [[(node + label) % 2 for label in range(112)] for node in range(4)]
    proteins = record.name == "ogbn-proteins"
    y = functions if proteins else [record.features.classes - 1, 0, 5, 5]
    x = [[node + column / 128 for column in range(record.features.node)] for node in range(4)]
    parts = {"train": [3, 0], "valid": [1], "test": [2]}
    tables = {"edge": edges, "num-node-list": [4], "num-edge-list": [3], "node-label": y, "node_year": [2000] * 4}
    tables |= {"edge-feat": weights.tolist()} if proteins else {"node-feat": x}
    write_tables(raw, tables)
    write_tables(raw.parent / "split" / split, parts)
    if proteins:
        first, second, third = weights
        x = torch.stack([(first + second) / 2, (first + third) / 2, (second + third) / 2, torch.zeros(8)]).tolist()
    names = ("train_mask", "val_mask", "test_mask")
    masks = {name: np.isin(np.arange(4), part) for name, part in zip(names, parts.values(), strict=True)}
    return Expected(x, y, edges if record.name == "ogbn-arxiv" else both_ways(edges), lambda _: masks)


WRITERS: dict[str, Callable[[DatasetRecord, Path], Expected]] = {
    "Planetoid": planetoid,
    "CitationFull": compressed_npz,
    "Amazon": compressed_npz,
    "Coauthor": compressed_npz,
    "WikiCS": wikics,
    "HeterophilousGraphDataset": platonov,
    "WebKB": geom_gcn,
    "WikipediaNetwork": geom_gcn,
    "Actor": geom_gcn,
    "LINKXDataset": penn94,
    "Pokec": pokec,
    "Flickr": graphsaint,
    "Yelp": graphsaint,
    "Reddit": reddit,
    "CityNetwork": city_network,
    "ogb": ogb_node,
}
RECORDS = [record for record in datasets().values() if record.raw and record.level == "node"]


def place(record: DatasetRecord, root: Path) -> Expected:
    raw = root / record.raw.folder / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    return WRITERS[record.raw.home](record, raw)
