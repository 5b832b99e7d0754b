"""The files of recorded outputs keep every bit, hold each array once, stay small, and no record is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.record_files import GOLDEN, kind_of_records, read, record, write

# kind -> records: all that are public and that a test compares
KINDS = {
    "A_layers": 48,
    "B_layers": 62,
    "C_spex": 15,
    "D_encoders": 17,
    "D_expander": 14,
    "D_stats": 7,
    "E_losses": 16,
    "E_metrics": 20,
    "E_schedules": 15,
    "F_attention": 8,
    "F_model": 24,
    "H_schedules": 4,
    "F_encodings": 19,
    "G_rrwp": 5,
    "I_brec": 4,
    "G_grit": 15,
}


def test_a_file_keeps_names_dtypes_shapes_and_every_bit(tmp_path: Path) -> None:
    odd = np.array([[np.nan, -0.0, np.inf], [5e-324, 0.1, -1.0]])
    records = {
        "first": {"in/x": odd, "in/edge_index": np.arange(6).reshape(2, 3), "out/none": np.zeros((0, 4))},
        "second": {"out/number": np.float32(0.1).reshape(()), "in/turned": odd.T, "in/same": odd.copy()},
    }
    write(tmp_path / "kind.xz", records)
    again = read(tmp_path / "kind.xz")
    assert {name: list(arrays) for name, arrays in again.items()} == {name: list(a) for name, a in records.items()}
    for name, arrays in records.items():
        for key, array in arrays.items():
            assert again[name][key].dtype == array.dtype
            assert again[name][key].shape == array.shape
            assert again[name][key].tobytes() == array.tobytes()


def test_every_record_is_in_the_repository_in_a_few_small_files() -> None:
    assert {file.name for file in GOLDEN.iterdir()} == {f"{kind}.xz" for kind in KINDS}
    assert {kind: len(kind_of_records(kind)) for kind in KINDS} == KINDS
    assert sum(file.stat().st_size for file in GOLDEN.iterdir()) < 6_000_000


def test_a_record_that_is_not_there_is_an_error_and_no_skip() -> None:
    with pytest.raises(KeyError, match="gps_none"):
        record("B_layers/gps_none")
