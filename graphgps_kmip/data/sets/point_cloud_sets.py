"""Point clouds: ShapeNet-Part, S3DIS (blocks of rooms), ModelNet10 and ModelNet40 (CAD models), digits of scikit-learn.

`PyG-S3DISOnDisk` and `PyG-ModelNet...OnDisk` are the same points and split as the sets without these words (all are on
disk), with the distances of neighbours as edge features.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from graphgps_kmip.data.dataset import SPLITS, GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics
from graphgps_kmip.data.file_errors import reading
from graphgps_kmip.data.point_clouds import Cloud, CloudSource, find_listed_file, open_clouds, parse_table
from graphgps_kmip.data.splits import random_split
from graphgps_kmip.encoding.knn import KNNGraph
from graphgps_kmip.errors import DataError, InputError

MEDIA = "https://shapenet.cs.stanford.edu/media/"
SHAPENET = "shapenetcore_partanno_segmentation_benchmark_v0_normal.zip"
CATEGORIES = (
    "02691156 02773838 02954340 02958343 03001627 03261776 03467517 03624134 "
    "03636649 03642806 03790512 03797390 03948459 04099429 04225987 04379243"
).split()
LISTS = {split: f"train_test_split/shuffled_{split}_file_list.json" for split in SPLITS}
NORMALS_THEN_POSITION = [3, 4, 5, 0, 1, 2]


def read_shapenet(raw: Path) -> Iterator[Cloud]:
    """Yield the clouds in the order of the lists; a file has lines of position, normal and part."""
    for split, listing in LISTS.items():
        with reading(raw / listing):
            paths = json.loads((raw / listing).read_text())
            names = [path.partition("/")[2] + ".txt" for path in paths]  # without "shape_data"
        for name in names:
            path = find_listed_file("ShapeNet-Part", raw, name, listing)
            with reading(path):
                values = parse_table(path.read_text().splitlines(), 7)
            yield Cloud(values[:, NORMALS_THEN_POSITION], values[:, 6], split, path)


S3DIS = "indoor3d_sem_seg_hdf5_data.zip"
LISTING, ROOMS = "all_files.txt", "room_filelist.txt"
BLOCKS = tuple(f"ply_data_all_{number}.h5" for number in range(24))
TEST_AREA = "Area_6"
CHUNK = 64  # blocks read at once: 9 MB


def read_s3dis(raw: Path) -> Iterator[Cloud]:
    """Yield the blocks of all files, in the order in which the list of rooms names their rooms."""
    try:
        import h5py
    except ImportError as error:
        raise DataError("S3DIS: its raw files are h5 files: pip install h5py, or 'graphgps_kmip[h5]'") from error
    rooms = (raw / ROOMS).read_text().split()
    names = [line.split("/")[-1] for line in (raw / LISTING).read_text().split()]
    number = 0
    for name in names:
        path = find_listed_file("S3DIS", raw, name, LISTING)
        for x, y in _blocks(h5py, path, len(rooms) - number):
            yield Cloud(x, y, "test" if TEST_AREA in rooms[number] else "train", path)
            number += 1
    if number != len(rooms):
        raise DataError(f"S3DIS: raw/{ROOMS} has {len(rooms):,} rooms for {number:,} blocks: put one download there")


def _blocks(h5py: ModuleType, path: Path, rooms: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    start, blocks = 0, 1
    while start < blocks:
        with reading(path), h5py.File(path, "r") as content:
            data, label = content["data"], content["label"]
            blocks = len(data)
            if blocks != len(label) or blocks > rooms:
                raise InputError(f"{blocks} blocks, {len(label)} labels, {rooms} rooms left in {ROOMS}")
            chunk = list(zip(data[start : start + CHUNK], label[start : start + CHUNK], strict=True))
        yield from chunk
        start += CHUNK


CLASSES = {
    10: "bathtub bed chair desk dresser monitor night_stand sofa table toilet".split(),
    40: (
        "airplane bathtub bed bench bookshelf bottle bowl car chair cone cup curtain desk door dresser flower_pot "
        "glass_box guitar keyboard lamp laptop mantel monitor night_stand person piano plant radio range_hood sink "
        "sofa stairs stool table tent toilet tv_stand vase wardrobe xbox"
    ).split(),
}


def read_modelnet(raw: Path, names: tuple[str, ...]) -> Iterator[Cloud]:
    """Yield the vertices of each model, classes and their files in alphabetical order."""
    for label, name in enumerate(names):
        for part in ("train", "test"):
            files = sorted((raw / name / part).glob("*.off"))
            if not files:
                raise DataError(
                    f"ModelNet{len(names)}: raw/{name}/{part} holds no .off files: unpack the archive again"
                )
            for path in files:
                with reading(path):
                    points = vertices(path)
                yield Cloud(points, np.array([label]), part, path)


def vertices(path: Path) -> np.ndarray:
    """Return the vertices of an OFF file, (N, 3) float32; ModelNet40 has ``OFF`` and the counts in a single line."""
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = (text for line in file if (text := line.partition("#")[0].strip()))
        head = next(lines, "")
        if not head.startswith("OFF"):
            raise InputError(f"an OFF file begins with OFF, this one with {head[:20]!r}")
        number = int((head[3:].strip() or next(lines, "")).split()[0])
        points = parse_table(list(islice(lines, number)), 3)
    if len(points) != number:
        raise InputError(f"it says {number} vertices and holds {len(points)}")
    return points


DIGIT_NEIGHBORS = 8


def load_digits(_root: str = "") -> GraphDataset:
    """Return a directed 8-nearest-neighbour graph for each 8x8 image, with one stratified 60/20/20 split for all runs.

    ``pos`` is the centre of a pixel with ink in [-1, 1]^2 (y upwards), ``x`` is (pos, intensity), ``y`` the digit.
    """
    graphs = _digit_graphs()
    labels = [int(graph.y) for graph in graphs]
    return GraphDataset(graphs, random_split(len(graphs), (0.6, 0.2, 0.2), seed=0, labels=labels))


@cache  # a second or two, which the further seeds of an experiment need not spend again
def _digit_graphs() -> tuple[Data, ...]:
    from sklearn import datasets  # takes a second or two to import

    digits = datasets.load_digits()
    knn = KNNGraph(DIGIT_NEIGHBORS)
    return tuple(knn(_digit_points(image, label)) for image, label in zip(digits.images, digits.target, strict=True))


def _digit_points(image: np.ndarray, label: int) -> Data:
    row, column = np.nonzero(image)
    # Pixel c covers [c, c + 1] of 8. These centres are exact in binary: pixels at equal distance tie exactly.
    pos = np.stack([(column + 0.5) / 4 - 1, 1 - (row + 0.5) / 4], axis=1)
    intensity = image[row, column, None] / 16
    points = torch.from_numpy(np.concatenate([pos, intensity], axis=1)).float()  # (N, 3)
    return Data(x=points, pos=points[:, :2].clone(), y=torch.tensor([label]))


def _record(
    name: str, clouds: CloudSource, raw_names: Sequence[str], urls: Mapping[str, str], distance: bool, **facts: Any
) -> DatasetRecord:
    usual = {"title": name, "task_type": "classification", "level": "inductive_node", "loss": "weighted_cross_entropy"}
    usual |= facts
    if distance:
        usual["title"] += " with distances"
        usual["summary"] += " with their distances"
    return DatasetRecord(
        format=f"PyG-{name}" + ("OnDisk" if distance else ""),
        load=partial(open_clouds, source=clouds, distance=distance),
        features=Features(clouds.num_features, int(distance), clouds.num_classes, positions=3),
        raw=RawFiles(name, tuple(f"raw/{file}" for file in raw_names), urls=urls),
        **usual,
    )


def _rooms(distance: bool) -> DatasetRecord:
    return _record(
        "S3DIS",
        CloudSource(read_s3dis, 9, 0, 13, k=32),  # x is (position, colour, position in the room)
        (LISTING, ROOMS, *BLOCKS),
        {S3DIS: MEDIA + S3DIS},
        distance,
        metric="mIoU",
        split="area 6 tests; as many random training blocks validate (drawn once, kept): 16,997 / 3,294 / 3,294",
        summary="23,585 indoor blocks of 4,096 points, 13 kinds of things, 32 nearest neighbours",
        statistics=Statistics(23585, 4096.0, 131072.0, directed=True, sizes=(16997, 3294, 3294)),
        source=Source(
            "Armeni et al., 3D Semantic Parsing of Large-Scale Indoor Spaces, CVPR 2016; blocks of Qi et al., "
            "PointNet, CVPR 2017",
            "not stated (request form of the Stanford 2D-3D-S data)",
            "cvg-data.inf.ethz.ch/s3dis or shapenet.cs.stanford.edu/media",
        ),
    )


def _meshes(classes: int, distance: bool, url: str, statistics: Statistics) -> DatasetRecord:
    name, (train, val, test) = f"ModelNet{classes}", statistics.sizes
    return _record(
        name,
        CloudSource(partial(read_modelnet, names=tuple(CLASSES[classes])), 3, 0, classes, k=8),  # x is the position
        CLASSES[classes],
        {f"{name}.zip": f"{url}/{name}.zip"},
        distance,
        level="graph",
        metric="accuracy",
        loss="cross_entropy",
        split=f"official test, as many random training models validate (drawn once): {train:,} / {val:,} / {test:,}",
        summary=f"{statistics.graphs:,} CAD models of {classes} kinds, 8 nearest neighbours of each vertex",
        statistics=statistics,
        source=Source(
            "Wu et al., 3D ShapeNets: A Deep Representation for Volumetric Shapes, CVPR 2015",
            "academic use only",
            "modelnet.cs.princeton.edu",
        ),
    )


URL_10, URL_40 = "http://3dvision.princeton.edu/projects/2014/3DShapeNets", "http://modelnet.cs.princeton.edu"
SIZE_10 = Statistics(4899, 9508.2, 76065.6, directed=True, sizes=(3083, 908, 908))
# ModelNet40's graphs have no published number of edges: torch_geometric prints those of its meshes.
SIZE_40 = Statistics(12311, 17744.4, directed=True, sizes=(7375, 2468, 2468))
RECORDS = (
    _record(
        "ShapeNet",
        CloudSource(read_shapenet, 6, 3, 50, k=8),  # x is (normal, position)
        (*CATEGORIES, *LISTS.values()),
        {SHAPENET: MEDIA + SHAPENET},
        distance=False,
        title="ShapeNet-Part",
        metric="f1",
        split="official: 12,137 / 1,870 / 2,874 objects",
        summary="16,881 objects of 16 categories as point clouds, 50 kinds of parts, 8 nearest neighbours",
        statistics=Statistics(16881, 2616.2, 20929.6, directed=True, sizes=(12137, 1870, 2874)),
        source=Source(
            "Yi et al., A Scalable Active Framework for Region Annotation in 3D Shape Collections, SIGGRAPH Asia 2016",
            "not stated (ShapeNet: research and education only)",
            "shapenet.org (part annotation benchmark, with normals)",
        ),
    ),
    *(_rooms(distance) for distance in (False, True)),
    *(_meshes(10, distance, URL_10, SIZE_10) for distance in (False, True)),
    *(_meshes(40, distance, URL_40, SIZE_40) for distance in (False, True)),
    DatasetRecord(
        format="sklearn",
        name="digits",
        load=load_digits,
        task_type="classification",
        title="digits",
        metric="accuracy",
        loss="cross_entropy",
        split="stratified 60/20/20, the same in every run",
        summary="1,797 scanned digits as point clouds with a directed 8-nearest-neighbour graph; no download",
        features=Features(node=3, classes=10, positions=2),
        statistics=Statistics(1797, 32.69, 261.48, directed=True, sizes=(1078, 359, 360)),
        source=Source(
            "Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI repository, 1998", "CC BY 4.0"
        ),
    ),
)
