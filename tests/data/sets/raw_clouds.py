"""What the tests of point clouds share: archives, refusals, and summaries without a look."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from graphgps_kmip.data import DataError, DatasetInfo, DatasetRecord, GraphDataset
from graphgps_kmip.data.dataset_info import summarize
from tests.data.sets.raw_files import opened


def pack(raw: Path, archive: Path) -> None:
    """Move raw files into an archive as it is downloaded: in a folder of its own name."""
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(raw.rglob("*")):
            if path.is_file():
                file.write(path, f"{archive.stem}/{path.relative_to(raw)}")
                path.unlink()


def check_refused(record: DatasetRecord, root: Path, path: Path, reason: str) -> None:
    """A bad raw file is named with the reason and set aside."""
    with pytest.raises(DataError, match=rf"{path.name} cannot be used \(.*{reason}.*\); it was renamed to .*damaged-1"):
        opened(record, root)
    assert not path.exists()
    assert path.with_name(f"{path.name}.damaged-1").exists()


def check_summary(dataset: GraphDataset, record: DatasetRecord) -> None:
    """What is known without a look at the graphs is what a look at each of them tells."""
    assert dataset.summary == summarize(dataset, record)
    assert DatasetInfo.of(dataset, record).sizes == tuple(len(part) for part in dataset.splits)
