"""S3DIS: rooms of six indoor areas, cut into blocks of 4,096 points, each point with what it belongs to.

`PyG-S3DIS` and `PyG-S3DISOnDisk` are the same points and the same split (both on disk); the second has the distances of
neighbours as edge features.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np

from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics
from graphgps_kmip.data.file_errors import reading
from graphgps_kmip.data.point_clouds import Cloud, CloudSource, listed, open_clouds
from graphgps_kmip.errors import DataError, InputError

ARCHIVE = "indoor3d_sem_seg_hdf5_data.zip"
LISTING, ROOMS = "all_files.txt", "room_filelist.txt"
BLOCKS = tuple(f"ply_data_all_{number}.h5" for number in range(24))
FILES = (LISTING, ROOMS, *BLOCKS)
TEST_AREA = "Area_6"
CHUNK = 64  # blocks read at once: 9 MB


def load(home: str, distance: bool = False, cache: bool = False) -> GraphDataset:
    """Return the blocks with their 32 nearest neighbours; ``x`` is (position, colour, position in the room)."""
    return open_clouds(home, CloudSource(read, 9, 0, 13, k=32), distance, cache)


def read(raw: Path) -> Iterator[Cloud]:
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


def _record(format: str, title: str, distance: bool) -> DatasetRecord:  # noqa: A002 (the config key's name)
    return DatasetRecord(
        format=format,
        title=title,
        load=partial(load, distance=distance),
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
            archives=(ARCHIVE,),
            urls={ARCHIVE: f"https://shapenet.cs.stanford.edu/media/{ARCHIVE}"},
        ),
    )


RECORDS = (
    _record("PyG-S3DIS", "S3DIS", distance=False),
    _record("PyG-S3DISOnDisk", "S3DIS with distances", distance=True),
)
