"""City-Networks: road networks of four cities, one graph each, with shipped masks and encoded coordinates.

Longitude and latitude become sines and cosines (k-MIP paper, appendix on City-Networks, eq. 38).
"""

from __future__ import annotations

import io
import math
import tarfile
from functools import partial
from pathlib import Path, PurePath

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import index_to_mask, to_undirected

from graphgps_kmip.data.dataset_record import DatasetRecord, RawFiles, Source
from graphgps_kmip.data.file_errors import reading
from graphgps_kmip.data.safe_pickle import load_torch
from graphgps_kmip.data.sets.node_sets import node_record
from graphgps_kmip.errors import InputError

NUM_FREQUENCIES = 8  # 2^0 .. 2^7
SPAN = 0.9 * math.pi  # below pi: nodes a little outside the training nodes' box do not meet those at its other side


def encode_coordinates(features: Tensor, train: Tensor) -> Tensor:
    """Replace longitude and latitude, the first columns, by sines and cosines, and standardise the other features.

    The result is [sin lon, cos lon, sin lat, cos lat, others], the first four of `NUM_FREQUENCIES` columns 2^k x each.
    Training nodes span angles x in [-0.9 pi, 0.9 pi], and have mean 0 and variance 1; constant columns become 0.

    Shapes: features (N, 2 + C), train (N,) -> (N, 4 * NUM_FREQUENCIES + C) float32.
    """
    if features.dim() != 2 or features.size(1) < 2:
        raise InputError(f"features must be (N, 2 + C), longitude and latitude first, got {tuple(features.shape)}")
    if not bool(train.any()):
        raise InputError("there is no training node: coordinates and features are scaled by those")
    coordinates, others = features[:, :2].double(), features[:, 2:].double()
    low, high = coordinates[train].amin(0), coordinates[train].amax(0)
    angles = _divide(coordinates - (low + high) / 2, (high - low) / 2) * SPAN
    longitude, latitude = (column[:, None] * 2.0 ** torch.arange(NUM_FREQUENCIES).double() for column in angles.T)
    centred = others - others[train].mean(0)
    deviation = centred[train].square().mean(0).sqrt()
    constant = others[train].amin(0) == others[train].amax(0)  # where rounding makes 1e-17 of a 0
    others = _divide(centred, torch.where(constant, 0.0, deviation))
    return torch.cat([longitude.sin(), longitude.cos(), latitude.sin(), latitude.cos(), others], dim=1).float()


def _divide(values: Tensor, unit: Tensor) -> Tensor:
    return values / torch.where(unit == 0, torch.inf, unit)


PROCESSED = "processed_augmented"  # torch_geometric's folder may hold features of either kind and does not say which
URL = "https://github.com/LeonResearch/City-Networks/raw/refs/heads/main/data"
PARTS = {
    "x": "node_features_augmented.pt",
    "edge_index": "edge_indices.pt",
    "y": "10-chunk_16-hop_node_labels.pt",
    "train_mask": "train_mask.pt",
    "val_mask": "valid_mask.pt",
    "test_mask": "test_mask.pt",
}


def load(home: str, name: str) -> Data:
    """Return the graph with 32 columns of coordinates (eq. 38), then 35 others, scaled by shipped training nodes."""
    folder = Path(home, name.lower())
    archive, processed = folder / "raw" / f"{folder.name}.tar.gz", folder / PROCESSED / "graph.pt"
    if not processed.exists():
        with reading(archive):
            graph = _read(archive)
        processed.parent.mkdir(exist_ok=True)
        torch.save(graph, processed)
    data = load_torch(processed)
    data.x = encode_coordinates(data.x, data.train_mask)
    return data


def _read(archive: Path) -> Data:
    names, tensors = {file: part for part, file in PARTS.items()}, {}
    with tarfile.open(archive, "r:gz") as members:
        for member in members:
            part = names.get(PurePath(member.name).name)
            content = members.extractfile(member) if part and member.isfile() else None
            if content is not None:
                tensors[part] = load_torch(io.BytesIO(content.read()))
    if missing := [file for part, file in PARTS.items() if part not in tensors]:
        raise InputError(f"the archive holds no {', '.join(missing)}")
    nodes = tensors["x"].size(0)
    for part in ("train_mask", "val_mask", "test_mask"):  # the generator of the data stores indices
        mask = tensors[part]
        tensors[part] = mask.bool() if mask.numel() == nodes else index_to_mask(mask, nodes)
    tensors["edge_index"] = to_undirected(tensors["edge_index"], num_nodes=nodes)  # published segments count once
    return Data(**tensors)


SOURCE = (
    "Liang, Saez de Ocariz Borde, Sripathmanathan, Bronstein and Dong, Towards Quantifying Long-Range Interactions in "
    "Graph Machine Learning: a Large Graph Dataset and a Measurement, 2025"
)


def _record(name: str, nodes: int, edges: int) -> DatasetRecord:
    low, tenth = name.lower(), nodes // 10
    page = f"github.com/LeonResearch/City-Networks (data/{low}.tar.gz)"
    urls = {f"raw/{low}.tar.gz": f"{URL}/{low}.tar.gz"}
    return node_record(
        "CityNetwork",
        name,
        (nodes, edges, 67, 10),
        Source(SOURCE, "not stated; made from OpenStreetMap, which is under ODbL 1.0", page),
        urls,
        parts=(tenth, tenth, nodes - 2 * tenth),
        edges_once=True,
        load=partial(load, name=name),
        loss="weighted_cross_entropy",
        split="shipped masks: 10/10/80 percent at random",
        summary=f"road network, {nodes:,} junctions; tenths of their eccentricity within 16 hops",
        raw=RawFiles("CityNetwork", tuple(urls), base=low, archives=(f"{low}.tar.gz",), processed=PROCESSED, urls=urls),
    )


RECORDS = (
    _record("Paris", 114127, 182511),
    _record("Shanghai", 183917, 262092),
    _record("LA", 240587, 341523),
    _record("London", 568795, 756502),
)
