"""Point clouds: ShapeNet-Part (parts of objects), S3DIS (blocks of rooms), ModelNet10 and ModelNet40 (CAD models).

`PyG-S3DISOnDisk` and `PyG-ModelNet...OnDisk` are the same points and split as the sets without these words (all are on
disk), with the distances of neighbours as edge features.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType

import numpy as np

from graphgps_kmip.data.dataset import SPLITS
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics
from graphgps_kmip.data.file_errors import reading
from graphgps_kmip.data.point_clouds import Cloud, CloudSource, listed, open_clouds, table
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
            listed_names = json.loads((raw / listing).read_text())
            names = ["/".join(name.split("/")[1:]) + ".txt" for name in listed_names]  # without "shape_data"
        for name in names:
            path = listed("ShapeNet-Part", raw, name, listing)
            with reading(path):
                values = table(path.read_text().splitlines(), 7)
            yield Cloud(values[:, NORMALS_THEN_POSITION], values[:, 6], split, path)


SHAPES = DatasetRecord(
    format="PyG-ShapeNet",
    title="ShapeNet-Part",
    load=partial(open_clouds, source=CloudSource(read_shapenet, 6, 3, 50, k=8)),  # x is (normal, position)
    task_type="classification",
    level="inductive_node",
    metric="f1",
    loss="weighted_cross_entropy",
    split="official: 12,137 / 1,870 / 2,874 objects",
    summary="16,881 objects of 16 categories as point clouds, 50 kinds of parts, 8 nearest neighbours",
    features=Features(node=6, classes=50, positions=3),
    statistics=Statistics(16881, 2616.2, 20929.6, directed=True, sizes=(12137, 1870, 2874)),
    source=Source(
        citation="Yi et al., A Scalable Active Framework for Region Annotation in 3D Shape Collections, "
        "SIGGRAPH Asia 2016",
        licence="not stated (ShapeNet: research and education only)",
        page="shapenet.org (part annotation benchmark, with normals)",
    ),
    raw=RawFiles(
        "ShapeNet",
        tuple(f"raw/{name}" for name in (*CATEGORIES, *LISTS.values())),
        archives=(SHAPENET,),
        urls={SHAPENET: MEDIA + SHAPENET},
    ),
)


S3DIS = "indoor3d_sem_seg_hdf5_data.zip"
LISTING, ROOMS = "all_files.txt", "room_filelist.txt"
BLOCKS = tuple(f"ply_data_all_{number}.h5" for number in range(24))
FILES = (LISTING, ROOMS, *BLOCKS)
TEST_AREA = "Area_6"
CHUNK = 64  # blocks read at once: 9 MB


def read_s3dis(raw: Path) -> Iterator[Cloud]:
    """Yield the blocks of all files, in the order in which the list of rooms names their rooms."""
    h5py = _h5py()
    rooms = (raw / ROOMS).read_text().split()
    names = [line.split("/")[-1] for line in (raw / LISTING).read_text().split()]
    number = 0
    for name in names:
        path = listed("S3DIS", raw, name, LISTING)
        for x, y in _blocks(h5py, path, len(rooms) - number):
            yield Cloud(x, y, "test" if TEST_AREA in rooms[number] else "train", path)
            number += 1
    if number != len(rooms):
        raise DataError(f"S3DIS: raw/{ROOMS} has {len(rooms):,} rooms for {number:,} blocks: put one download there")


def _blocks(h5py: ModuleType, path: Path, rooms: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield points and labels of the blocks of a file, of which there are ``rooms`` at most."""
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


def _h5py() -> ModuleType:
    try:
        import h5py
    except ImportError as error:
        raise DataError("S3DIS: its raw files are h5 files: pip install h5py, or 'graphgps_kmip[h5]'") from error
    return h5py


# x is (position, colour, position in the room)
ROOM_BLOCKS = CloudSource(read_s3dis, 9, 0, 13, k=32)


def _rooms(format: str, title: str, distance: bool) -> DatasetRecord:  # noqa: A002 (the config key's name)
    return DatasetRecord(
        format=format,
        title=title,
        load=partial(open_clouds, source=ROOM_BLOCKS, distance=distance),
        task_type="classification",
        level="inductive_node",
        metric="mIoU",
        loss="weighted_cross_entropy",
        split="area 6 tests; as many random training blocks validate (drawn once, kept): 16,997 / 3,294 / 3,294",
        summary="23,585 indoor blocks of 4,096 points, 13 kinds of things, 32 nearest neighbours"
        + (" with their distances" if distance else ""),
        features=Features(node=9, edge=int(distance), classes=13, positions=3),
        statistics=Statistics(23585, 4096.0, 131072.0, directed=True, sizes=(16997, 3294, 3294)),
        source=Source(
            citation="Armeni et al., 3D Semantic Parsing of Large-Scale Indoor Spaces, CVPR 2016; blocks of Qi et al., "
            "PointNet, CVPR 2017",
            licence="not stated (request form of the Stanford 2D-3D-S data)",
            page="cvg-data.inf.ethz.ch/s3dis or shapenet.cs.stanford.edu/media",
        ),
        raw=RawFiles(
            "S3DIS",
            tuple(f"raw/{name}" for name in FILES),
            archives=(S3DIS,),
            urls={S3DIS: MEDIA + S3DIS},
        ),
    )


CLASSES = {
    10: "bathtub bed chair desk dresser monitor night_stand sofa table toilet".split(),
    40: (
        "airplane bathtub bed bench bookshelf bottle bowl car chair cone cup curtain desk door dresser flower_pot "
        "glass_box guitar keyboard lamp laptop mantel monitor night_stand person piano plant radio range_hood sink "
        "sofa stairs stool table tent toilet tv_stand vase wardrobe xbox"
    ).split(),
}

URLS = {
    10: "http://3dvision.princeton.edu/projects/2014/3DShapeNets/ModelNet10.zip",
    40: "http://modelnet.cs.princeton.edu/ModelNet40.zip",
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
    """Return the vertices of an OFF file, (N, 3) float32; its faces are not read.

    The format asks for a line ``OFF`` and a line of counts; many files of ModelNet40 have both in one, without a space.

    Raises:
        ValueError: this is no OFF file, or it has fewer vertices than it says.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = (text for line in file if (text := line.partition("#")[0].strip()))
        head = next(lines, "")
        if not head.startswith("OFF"):
            raise InputError(f"an OFF file begins with OFF, this one with {head[:20]!r}")
        number = int((head[3:].strip() or next(lines, "")).split()[0])
        points = table(list(islice(lines, number)), 3)
    if len(points) != number:
        raise InputError(f"it says {number} vertices and holds {len(points)}")
    return points


def _meshes(classes: int, distance: bool, statistics: Statistics) -> DatasetRecord:
    train, val, test = statistics.sizes
    source = CloudSource(partial(read_modelnet, names=tuple(CLASSES[classes])), 3, 0, classes, k=8)  # x is the position
    return DatasetRecord(
        format=f"PyG-ModelNet{classes}" + ("OnDisk" if distance else ""),
        title=f"ModelNet{classes}" + (" with distances" if distance else ""),
        load=partial(open_clouds, source=source, distance=distance),
        task_type="classification",
        level="graph",
        metric="accuracy",
        loss="cross_entropy",
        split=f"official test, as many random training models validate (drawn once): {train:,} / {val:,} / {test:,}",
        summary=f"{statistics.graphs:,} CAD models of {classes} kinds, 8 nearest neighbours of each vertex"
        + (" with their distances" if distance else ""),
        features=Features(node=3, edge=int(distance), classes=classes, positions=3),
        statistics=statistics,
        source=Source(
            citation="Wu et al., 3D ShapeNets: A Deep Representation for Volumetric Shapes, CVPR 2015",
            licence="academic use only",
            page="modelnet.cs.princeton.edu",
        ),
        raw=RawFiles(
            f"ModelNet{classes}",
            tuple(f"raw/{name}" for name in CLASSES[classes]),
            archives=(f"ModelNet{classes}.zip",),
            urls={f"ModelNet{classes}.zip": URLS[classes]},
        ),
    )


# ModelNet40's graphs have no published number of edges: torch_geometric prints those of its meshes.
SIZES = {
    10: Statistics(4899, 9508.2, 76065.6, directed=True, sizes=(3083, 908, 908)),
    40: Statistics(12311, 17744.4, directed=True, sizes=(7375, 2468, 2468)),
}
RECORDS = (
    SHAPES,
    _rooms("PyG-S3DIS", "S3DIS", distance=False),
    _rooms("PyG-S3DISOnDisk", "S3DIS with distances", distance=True),
    *(_meshes(classes, distance, SIZES[classes]) for classes in SIZES for distance in (False, True)),
)
