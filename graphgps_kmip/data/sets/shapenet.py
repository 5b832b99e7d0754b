"""ShapeNet-Part: objects of 16 categories as point clouds, each point with the part that it belongs to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from graphgps_kmip.data.dataset import SPLITS, GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics
from graphgps_kmip.data.file_errors import reading
from graphgps_kmip.data.point_clouds import Cloud, CloudSource, listed, open_clouds, table

ARCHIVE = "shapenetcore_partanno_segmentation_benchmark_v0_normal.zip"
CATEGORIES = (
    "02691156 02773838 02954340 02958343 03001627 03261776 03467517 03624134 "
    "03636649 03642806 03790512 03797390 03948459 04099429 04225987 04379243"
).split()
LISTS = {split: f"train_test_split/shuffled_{split}_file_list.json" for split in SPLITS}
NORMALS_THEN_POSITION = [3, 4, 5, 0, 1, 2]


def load(home: str, cache: bool = False) -> GraphDataset:
    """Return the clouds of all categories with their 8 nearest neighbours; ``x`` is (normal, position)."""
    return open_clouds(home, CloudSource(read, 6, 3, 50, k=8), cache=cache)


def read(raw: Path) -> Iterator[Cloud]:
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


RECORDS = (
    DatasetRecord(
        format="PyG-ShapeNet",
        title="ShapeNet-Part",
        load=load,
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
            archives=(ARCHIVE,),
            urls={ARCHIVE: f"https://shapenet.cs.stanford.edu/media/{ARCHIVE}"},
        ),
    ),
)
