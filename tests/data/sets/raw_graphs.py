"""Raw files of sets of graphs, tiny, in their published form, and the graphs that they hold."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from graphgps_kmip.data import DatasetRecord, datasets
from graphgps_kmip.data.ogb_tables import END, UNKNOWN
from graphgps_kmip.data.sets.point_cloud_sets import BLOCKS, CATEGORIES, CLASSES, LISTS
from graphgps_kmip.encoding.feature_encoders import ATOM
from tests.data.sets.raw_files import write, write_tables

Values = dict[str, Any]
SPLITS = ("train", "val", "test")
SIZES = (3, 2, 1)  # graphs of the three parts, where a set has six
SIX = [[0, 1, 2], [3, 4], [5]]
EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])  # a path of three nodes, both ways


@dataclass
class Expected:
    """The graphs of a set: their attributes, and the indices of the parts (None: drawn)."""

    graphs: list[Values]
    splits: list[list[int]] | None


def in_parts(graphs: list[Any]) -> dict[str, list[Any]]:
    return dict(zip(SPLITS, (graphs[:3], graphs[3:5], graphs[5:]), strict=True))


LABELS = [[0, 13, 90], [27, 1, 0]]  # of even and odd graphs of COCO-SP, where 12 is not in use...
WITHOUT_GAPS = [[0, 12, 80], [25, 1, 0]]  # ...and what is then made of them


def lrgb(record: DatasetRecord, raw: Path) -> Expected:
    graphs, expected, features = [], [], record.features
    for number in range(sum(SIZES)):
        generator = torch.Generator().manual_seed(number)
        if record.level == "inductive_node":
            labels = LABELS[number % 2] if record.title == "COCO-SP" else [number, 20, 0]
            x = torch.randn(3, features.node, generator=generator, dtype=torch.float64)
            weights = torch.randn(4, features.edge, generator=generator, dtype=torch.float64)
            kind = (list, np.array, torch.tensor)[number % 3]  # labels are read from any of these
            graphs.append((x, weights, EDGES, kind(labels)))
            y = torch.tensor(WITHOUT_GAPS[number % 2] if record.title == "COCO-SP" else labels)
            expected.append({"x": x.float(), "edge_attr": weights.float(), "y": y})
            continue
        x, kinds = (
            torch.stack([torch.randint(size, (rows,), generator=generator) for size in sizes], dim=1)
            for sizes, rows in ((features.node, 3), (features.edge, 4))
        )
        if record.level == "link":
            pairs, touch = torch.tensor([[0, 2, number % 3], [2, 0, 1]]), torch.tensor([1, 1, 0], dtype=torch.int32)
            graphs.append((x, kinds, EDGES, pairs, touch))
            labels = {"edge_label_index": pairs, "edge_label": touch, "y": None}
        else:
            factor = min(number, 1) if record.task_type == "classification_multilabel" else number
            y = torch.arange(features.classes)[None] % 2 * float(factor)
            graphs.append((x, kinds, EDGES, y))
            labels = {"y": y}
        expected.append({"x": x, "edge_attr": kinds, **labels})
    for file, part in zip(record.raw.files, in_parts(graphs).values(), strict=True):
        write(raw.parent / file, part)
    return Expected([{**values, "edge_index": EDGES} for values in expected], SIX)


def gnn_benchmark(record: DatasetRecord, raw: Path) -> Expected:
    """Images have colour and position as features, and the distance of each edge."""
    graphs = []
    for number in range(sum(SIZES)):
        values: Values = {"edge_index": EDGES, "edge_attr": None}
        if record.features.positions:
            values["x"] = torch.full((3, record.features.node - 2), number / 10)
            values |= {"edge_attr": torch.tensor([0.1, 0.2, 0.3, 0.4]), "y": torch.tensor([number])}
            values["pos"] = torch.arange(6.0).view(3, 2) + number
        else:
            values |= {"x": torch.eye(record.features.node)[[number % 3, 1, 2]], "y": torch.tensor([number % 2, 1, 0])}
        graphs.append(values)
    write(raw.parent / record.raw.files[0], list(in_parts(graphs).values()))
    if not record.features.positions:
        return Expected(graphs, SIX)
    changed = [
        {"x": torch.cat([values["x"], values["pos"]], dim=1), "edge_attr": values["edge_attr"][:, None]}
        for values in graphs
    ]
    return Expected([{**values, **more} for values, more in zip(graphs, changed, strict=True)], SIX)


def circles(_record: DatasetRecord, raw: Path, count: int = 10, as_in_2019: bool = False) -> Expected:
    """Write circles with a self-loop at node 0 as scipy matrices, which is left out."""
    matrices, graphs = [], []
    for number in range(count):
        nodes = 4 + number
        row = [*range(nodes), 0]
        circle = scipy.sparse.coo_matrix(([1.0] * len(row), (row, [*range(1, nodes), 0, 0])), shape=(nodes, nodes))
        if as_in_2019:  # as scipy kept them then
            circle.__dict__["row"], circle.__dict__["col"] = circle.__dict__.pop("coords")
        matrices.append(circle)
        node = torch.arange(nodes)
        graphs.append({"edge_index": torch.stack([node, node.roll(-1)]), "x": torch.ones(nodes, 1)})
        graphs[-1]["y"] = torch.tensor([number % 10])
    content = pickle.dumps(matrices, protocol=3)  # that of 2019, which names modules in plain text
    content = content.replace(b"scipy.sparse._coo", b"scipy.sparse.coo") if as_in_2019 else content
    write(raw / "graphs_Kary_Deterministic_Graphs.pkl", content)
    write(raw / "y_Kary_Deterministic_Graphs.pt", torch.arange(count) % 10)
    return Expected(graphs, None)


def zinc(record: DatasetRecord, raw: Path) -> Expected:
    """Eight chains of three atoms, whose types and value come from their numbers; the subset has four of them."""
    graphs, molecules = [], []
    for number in range(8):
        bonds = torch.zeros(3, 3, dtype=torch.int8)
        bonds[0, 1] = bonds[1, 0] = 1 + number % 3
        bonds[1, 2] = bonds[2, 1] = 1
        molecule = {"num_atom": 3, "atom_type": torch.tensor([number, 27, 0], dtype=torch.int8), "bond_type": bonds}
        molecules.append({**molecule, "logP_SA_cycle_normalized": torch.tensor([number / 4])})
        kinds = torch.tensor([1 + number % 3, 1 + number % 3, 1, 1])
        graphs.append({"x": torch.tensor([[number], [27], [0]]), "edge_index": EDGES, "edge_attr": kinds})
        graphs[-1]["y"] = torch.tensor([number / 4])
    parts, selected = {"train": molecules[:4], "val": molecules[4:6], "test": molecules[6:]}, ("3,1\n", "1\n", "0\n")
    for (split, part), places in zip(parts.items(), selected, strict=True):
        write(raw / f"{split}.pickle", part)
        write(raw / f"{split}.index", places)
    if record.name == "full":
        return Expected(graphs, [[0, 1, 2, 3], [4, 5], [6, 7]])
    return Expected([graphs[number] for number in (3, 1, 5, 6)], [[0, 1], [2], [3]])


def aqsol(_record: DatasetRecord, raw: Path) -> Expected:
    """Two molecules are left out, as by the publication: one without bonds, one whose last atom has none."""

    def molecule(atoms: list[int], bonds: list[tuple[int, int]], value: float) -> tuple[Any, ...]:
        edges = np.array([pair for a, b in bonds for pair in ((a, b), (b, a))], dtype=np.int64).reshape(-1, 2)
        return np.array(atoms), np.repeat(np.arange(1, len(bonds) + 1), 2), edges.T, np.float64(value)

    chains = [molecule([64, number, 3], [(0, 1), (1, 2)], -number / 2) for number in range(4)]
    parts = [chains[0], molecule([1], [], 7), chains[1]], [molecule([1, 2, 3], [(0, 1)], 8), chains[2]], [chains[3]]
    for split, part in zip(SPLITS, parts, strict=True):
        write(raw / f"{split}.pickle", part)
    for name in ("atom_dict", "bond_dict"):  # of a class that is nowhere installed
        write(raw / f"{name}.pickle", b"c__main__\nDictionary\n.")
    kinds = torch.tensor([1, 1, 2, 2])
    graphs = [
        {"x": torch.tensor([[64], [number], [3]]), "edge_index": EDGES, "edge_attr": kinds, "y": -number / 2}
        for number in range(4)
    ]
    return Expected([{**graph, "y": torch.tensor([graph["y"]])} for graph in graphs], [[0, 1], [2], [3]])


def tu(record: DatasetRecord, raw: Path) -> Expected:
    """Twenty paths of 3, 4, 3, 4, ... nodes; a node's label is its place in the path, from 1."""
    lines: dict[str, list[str]] = {part: [] for part in ("A", "graph_indicator", "graph_labels", "node_labels")}
    labelled = any("node_labels" in file for file in record.raw.files)
    start, graphs = 1, []
    for graph in range(20):
        size = 3 + graph % 2
        pairs = sorted(pair for i in range(size - 1) for pair in ((i, i + 1), (i + 1, i)))
        lines["A"] += [f"{start + a}, {start + b}" for a, b in pairs]
        lines["graph_indicator"] += [str(graph + 1)] * size
        lines["node_labels"] += [str(1 + place) for place in range(size)]
        lines["graph_labels"].append(str((-1, 1)[graph % 2]))
        start += size
        x = torch.eye(4)[:size] if labelled else torch.ones(size, 1)
        graphs.append({"x": x, "edge_index": torch.tensor(pairs).T, "y": torch.tensor([graph % 2])})
    for part in lines if labelled else (*lines,)[:3]:
        write(raw / f"{record.name}_{part}.txt", "".join(f"{line}\n" for line in lines[part]))
    return Expected(graphs, None)


CALLS = torch.tensor([[0, 0, 1, 2], [1, 2, 2, 3]])
APPS = ["trojan/a/T1", "benign/b/B1", "adware/c/A1", "downloader/d/D1", "addisplay/e/S1", "trojan/a/T2"]


def malnet(record: DatasetRecord, raw: Path) -> Expected:  # noqa: ARG001
    """Six graphs: the edges above, and as many from node 3 to nodes 4, 5, ... as the number of the graph."""
    graphs = []
    for number, name in enumerate(APPS):
        edges = torch.cat([CALLS, torch.tensor([[3] * number, range(4, 4 + number)], dtype=torch.long)], dim=1)
        head = "# Directed graph\n# of calls\n# Nodes: 4\n# Edges: 4\n# FromNodeId\tToNodeId\n"
        lines = "".join(f"{a}\t{b}\n" for a, b in edges.T.tolist())
        write(raw / "malnet-graphs-tiny" / f"{name}.edgelist", head + lines)
        graphs.append({"edge_index": edges, "num_nodes": 4 + number, "y": torch.tensor([number % 5])})
    for split, names in zip(SPLITS, (APPS[:3], APPS[3:4], APPS[4:]), strict=True):
        write(raw / "split_info_tiny" / "type" / f"{split}.txt", "".join(f"{name}\n" for name in names))
    return Expected(graphs, [[0, 1, 2], [3], [4, 5]])


def modelnet(record: DatasetRecord, raw: Path) -> Expected:
    """Four meshes of each class, the last one to test; 9 to 12 vertices on a curve, the last one twice."""
    graphs = []
    for label, name in enumerate(CLASSES[record.features.classes]):
        for part in ("train", "train", "train", "test"):
            number = len(graphs)
            rows = [[i / 4, float(i * i), number / 8] for i in range(8 + number % 4)]
            rows.append(rows[-1])
            lines = "".join(f"{x} {y} {z}\n" for x, y, z in rows)
            content = f"OFF\n{len(rows)} 2 0\n{lines}3 0 1 2\n4 0 1 2 3\n"
            write(raw / name / part / f"{name}_{number:04}.off", content)
            graphs.append({"x": torch.tensor(rows), "pos": torch.tensor(rows), "y": torch.tensor([label])})
    return Expected(graphs, None)


def shapenet(record: DatasetRecord, raw: Path) -> Expected:  # noqa: ARG001
    """Sixteen objects of 9 and more points on a line, one in each category."""
    graphs, parts = [], ([3, 0, *range(6, 16)], [1, 4], [5, 2])
    for split, numbers in zip(SPLITS, parts, strict=True):
        write(raw / LISTS[split], json.dumps([f"shape_data/{CATEGORIES[number]}/object{number}" for number in numbers]))
        for number in numbers:
            place = torch.arange(9.0 + number)[:, None]
            normal = torch.tensor([0.25, -0.5, number / 8]).expand(len(place), 3)
            position, part = torch.cat([place / 4, place * 0, place * 0 + number], dim=1), (place + number) % 50
            rows = torch.cat([position, normal, part], dim=1).tolist()
            lines = "".join(" ".join(f"{value:.6f}" for value in row) + "\n" for row in rows)
            write(raw / CATEGORIES[number] / f"object{number}.txt", lines)
            graphs.append({"x": torch.cat([normal, position], 1), "pos": position, "y": part.flatten().long()})
    return Expected(graphs, [list(range(12)), [12, 13], [14, 15]])


AREAS = [1, 6, 2, 3, 4, 5] * 8  # of the 48 blocks of 40 points, two in each of the 24 files


def s3dis(record: DatasetRecord, raw: Path) -> Expected:  # noqa: ARG001
    write(raw / "all_files.txt", "".join(f"indoor3d_sem_seg_hdf5_data/{name}\n" for name in BLOCKS))
    write(raw / "room_filelist.txt", "".join(f"Area_{area}_office_{area}\n" for area in AREAS))
    rng = np.random.default_rng(0)
    data = rng.random((len(AREAS), 40, 9), dtype=np.float32)
    label = rng.integers(0, 13, data.shape[:2]).astype(np.uint8)
    for number, name in enumerate(BLOCKS):
        with h5py.File(raw / name, "w") as file:
            both = slice(2 * number, 2 * number + 2)
            file.create_dataset("data", data=data[both], compression="gzip")
            file.create_dataset("label", data=label[both], compression="gzip")
    graphs = [
        {"x": x, "pos": x[:, :3], "y": y.long()}
        for x, y in zip(torch.from_numpy(data), torch.from_numpy(label), strict=True)
    ]
    return Expected(graphs, None)


PATHS = {"edge": [(0, 1), (1, 2), (1, 0)], "num-node-list": [3, 2, 1], "num-edge-list": [2, 1, 0]}
# A tree of five nodes, given out of the order of its tokens; a tree of two; a tree of one.
TREES = {
    "edge": [(0, 1), (0, 2), (2, 3), (2, 4), (0, 1)],
    "num-node-list": [5, 2, 1],
    "num-edge-list": [4, 1, 0],
    "node-feat": [(97, 10029), (1, 2), (3, 4), (5, 6), (7, 8), (9, 10), (11, 12), (13, 14)],
    "node_is_attributed": [0, 1, 0, 1, 1, 0, 0, 1],
    "node_dfs_order": [0, 1, 2, 4, 3, 0, 1, 0],
    "node_depth": [0, 1, 1, 2, 2, 0, 1, 0],
    "graph-label": ["get item", "get rare get name of the thing", "set item item"],
}


def of_trees() -> list[Values]:
    """Edges of the trees and from token to token in the order of the code, both with their reverses."""
    tree, tokens = torch.tensor([[0, 0, 2, 2], [1, 2, 3, 4]]), torch.tensor([[1, 4], [4, 3]])
    edges = [
        ((tree, (0, 0)), (tree.flip(0), (0, 1)), (tokens, (1, 0)), (tokens.flip(0), (1, 1))),
        ((torch.tensor([[0], [1]]), (0, 0)), (torch.tensor([[1], [0]]), (0, 1))),
        (),
    ]
    names = [[0, 1, END, END, END], [0, UNKNOWN, 0, UNKNOWN, UNKNOWN], [UNKNOWN, 1, 1, END, END]]  # five words at most
    graphs = []
    for parts, name, rows in zip(edges, names, (slice(5), slice(5, 7), slice(7, 8)), strict=True):
        index = torch.cat([torch.empty(2, 0, dtype=torch.long), *(part for part, _ in parts)], dim=1)
        kinds = [kind for part, kind in parts for _ in range(part.size(1))]
        values = {"edge_index": index, "edge_attr": torch.tensor(kinds, dtype=torch.long).view(-1, 2)}
        depth = torch.tensor(TREES["node_depth"][rows])[:, None]
        graphs.append({**values, "x": torch.tensor(TREES["node-feat"][rows]), "y": torch.tensor([name])})
        graphs[-1]["node_depth"] = depth
    return graphs


def ogb_graph(record: DatasetRecord, raw: Path) -> Expected:
    """A path 0-1-2, a pair and a single node, or three trees."""
    split, parts = record.raw.files[-1].split("/")[1], {"train": [2], "valid": [0], "test": [1]}
    if record.name == "ogbg-code2":
        parts = {"train": [0], "valid": [1], "test": [2]}  # words of the training graph alone are known
        write_tables(raw, TREES)
        expected = of_trees()
    else:
        atoms = [[number, *(size - 1 for size in ATOM[1:])] for number in (5, 6, 7, 0, 118, 3)]
        bonds: Any = torch.tensor([(0, 1, 1), (3, 0, 0), (1, 5, 1)])
        labels: Any = torch.tensor([[1], [0], [1]])
        if record.name == "ogbg-molpcba":
            labels = torch.tensor([[float(number), torch.nan] * 64 for number in (0, 1, 0)])
        elif record.name == "ogbg-ppa":
            atoms, labels = [[0]] * 6, torch.tensor([[36], [0], [9]])
            bonds = torch.tensor([[number + column / 8 for column in range(7)] for number in range(3)])
        rows = [["" if value != value else value for value in row] for row in labels.tolist()]  # unknown: NaN
        features = {} if record.name == "ogbg-ppa" else {"node-feat": atoms}
        write_tables(raw, {**PATHS, **features, "edge-feat": bonds.tolist(), "graph-label": rows})
        x, expected = torch.tensor(atoms), []
        for number, (nodes, edges) in enumerate(((slice(3), [0, 0, 1, 1]), (slice(3, 5), [2, 2]), (slice(5, 6), []))):
            index = (EDGES, torch.tensor([[1, 0], [0, 1]]), torch.empty(2, 0, dtype=torch.long))[number]
            y = labels[number : number + 1] if labels.size(1) > 1 else labels[number]
            expected.append({"x": x[nodes], "edge_index": index, "edge_attr": bonds[edges], "y": y})
    write_tables(raw.parent / "split" / split, parts)
    return Expected(expected, list(parts.values()))


def saved_in_2020(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=False)
    return file.getvalue().replace(b"numpy._core", b"numpy.core")


def collab(record: DatasetRecord, raw: Path) -> Expected:
    """Six authors, of whom two worked together in several years; pairs of the parts, and ogb's negatives."""
    edges, unknown = [(0, 1), (1, 2), (3, 1), (0, 1)], [(5, 0), (5, 1), (5, 2)]
    x = [[node + column / 128 for column in range(128)] for node in range(6)]
    tables = {"edge": edges, "num-node-list": [6], "num-edge-list": [4], "node-feat": x, "edge_weight": [1, 2, 1, 1]}
    write_tables(raw, {**tables, "edge_year": [2015, 2016, 2017, 2017]})
    graphs = []
    for file, pairs in zip(record.raw.files[-3:], (edges, [(0, 3)], [(4, 5), (2, 4)]), strict=True):
        content = {"edge": np.array(pairs), "weight": np.ones(len(pairs)), "year": np.full(len(pairs), 2017)}
        content |= {} if pairs is edges else {"edge_neg": np.array(unknown)}
        write(raw.parent / file, saved_in_2020(content))
        both = torch.tensor([[0, 1, 1, 2, 3, 1, 0, 1], [1, 0, 2, 1, 1, 3, 1, 0]])
        graphs.append({"x": torch.tensor(x), "edge_index": both})
        labels = [1] * len(pairs) + [0] * (4 if pairs is edges else 3)
        graphs[-1]["edge_label"] = torch.tensor(labels)
        if pairs is not edges:  # those of training are drawn
            graphs[-1]["edge_label_index"] = torch.tensor(pairs + unknown).T
    return Expected(graphs, [[0], [1], [2]])


SMILES = ["C", "CC", "C#N", "C=O", "CO", "CN", "OCC", "CCl", "CBr", "CF", "NN", "OO", "CS", "CI", "CCC", "CCCC"]
SMILES += ["c1ccccc1", "N", "O", "S", "C=C", "C#C", "CCO", "CCN"]
OFFICIAL = {"train": range(18), "valid": range(18, 20), "test-dev": range(20, 22), "test-challenge": range(22, 24)}


def pcqm(record: DatasetRecord, raw: Path) -> Expected:  # noqa: ARG001
    gaps = [str(number / 2) if number < 20 else "" for number in range(24)]
    rows = ["idx,smiles,homolumogap", *(f"{i},{SMILES[i]},{gaps[i]}" for i in range(24))]
    write(raw / "data.csv.gz", gzip.compress("\n".join(rows).encode() + b"\n"))
    write(raw.parent / "split_dict.pt", {part: np.array(rows) for part, rows in OFFICIAL.items()})
    return Expected([], None)


Writer = Callable[[DatasetRecord, Path], Expected]
WRITERS: dict[str, Writer] = {"LRGBDataset": lrgb, "GNNBenchmarkDataset": gnn_benchmark, "ZINC": zinc, "AQSOL": aqsol}
WRITERS |= {"TUDataset": tu, "MalNetTiny": malnet, "ModelNet10": modelnet, "ModelNet40": modelnet}
WRITERS |= {"ShapeNet": shapenet, "S3DIS": s3dis, "ogb": ogb_graph}
SINGLE: dict[str, Writer] = {"CSL": circles, "ogbl-collab": collab}
SINGLE |= {f"PCQM4Mv2-{name}": pcqm for name in ("full", "subset", "inference")}
RECORDS = [
    record
    for record in datasets().values()
    if record.raw and record.level != "node" and record.raw.home != "BREC" and not record.name.startswith("PCQM4Mv2-")
]


def place(record: DatasetRecord, root: Path) -> Expected:
    raw = root / record.raw.folder / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    return SINGLE.get(record.name, WRITERS.get(record.raw.home))(record, raw)


def same(result: Any, expected: Any) -> bool:
    if isinstance(expected, Tensor):
        return isinstance(result, Tensor) and result.dtype == expected.dtype and torch.equal(
            result.nan_to_num(-1), expected.nan_to_num(-1)
        )  # fmt: skip
    return result == expected
