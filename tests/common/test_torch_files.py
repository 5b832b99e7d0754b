"""Files of torch.save that carry numbers from run to run: read as written, or one reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from graphgps_kmip.common.torch_files import UnreadableFile, load_leaving_objects, load_plain, save_plain


def test_what_is_saved_is_loaded_and_nothing_else_is_left(tmp_path: Path) -> None:
    sparse = torch.eye(3).to_sparse_csr()
    save_plain(tmp_path / "a.pt", {"x": torch.arange(4), "sparse": sparse, "text": ["b", None, 1.5]})
    content = load_plain(tmp_path / "a.pt")
    assert torch.equal(content["x"], torch.arange(4))
    assert torch.equal(content["sparse"].to_dense(), torch.eye(3))
    assert content["text"] == ["b", None, 1.5]
    assert os.listdir(tmp_path) == ["a.pt"]


@pytest.mark.parametrize("read", [load_plain, load_leaving_objects])
def test_no_flipped_bit_of_a_tensor_is_believed(read: object, tmp_path: Path) -> None:
    save_plain(tmp_path / "a.pt", {"x": torch.arange(4)})
    content = (tmp_path / "a.pt").read_bytes()
    place = content.index(torch.arange(4).numpy().tobytes())
    for bit in range(0, 256, 5):
        at = place + bit // 8
        (tmp_path / "a.pt").write_bytes(content[:at] + bytes([content[at] ^ 1 << bit % 8]) + content[at + 1 :])
        with pytest.raises(UnreadableFile, match=r"the checksum of .*data/0 in it is wrong"):
            read(tmp_path / "a.pt")


def test_a_sparse_tensor_with_an_index_out_of_bounds_is_refused(tmp_path: Path) -> None:
    index = torch.tensor([[0, 10**6]])
    save_plain(tmp_path / "a.pt", {"x": torch.sparse_coo_tensor(index, torch.ones(2), (4,), check_invariants=False)})
    with pytest.raises(UnreadableFile, match="size is inconsistent with indices"):
        load_plain(tmp_path / "a.pt")
    assert not torch.sparse.check_sparse_tensor_invariants.is_enabled()
