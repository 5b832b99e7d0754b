"""ModelNet10 and ModelNet40: CAD models by kind of object; the points are the vertices of the meshes.

`...OnDisk` has the same points and split (both are on disk), and the distances of neighbours as edge features.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics
from graphgps_kmip.data.file_errors import reading
from graphgps_kmip.data.point_clouds import Cloud, CloudSource, open_clouds, table
from graphgps_kmip.errors import DataError, InputError

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


def load(home: str, classes: int, distance: bool = False, cache: bool = False) -> GraphDataset:
    """Return the models with the 8 nearest neighbours of each vertex; ``x`` is its position."""
    source = CloudSource(partial(read, names=tuple(CLASSES[classes])), 3, 0, classes, k=8)
    return open_clouds(home, source, distance, cache)


def read(raw: Path, names: tuple[str, ...]) -> Iterator[Cloud]:
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


def _record(classes: int, distance: bool, statistics: Statistics) -> DatasetRecord:
    train, val, test = statistics.sizes
    return DatasetRecord(
        format=f"PyG-ModelNet{classes}" + ("OnDisk" if distance else ""),
        title=f"ModelNet{classes}" + (" with distances" if distance else ""),
        load=partial(load, classes=classes, distance=distance),
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
RECORDS = tuple(_record(classes, distance, SIZES[classes]) for classes in SIZES for distance in (False, True))
