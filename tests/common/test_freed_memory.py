"""What a training frees stays in its process: the pages of the next batch are not new ones."""

from __future__ import annotations

import ctypes

import pytest

from graphgps_kmip.common.freed_memory import KEPT_BYTES, OWN_SETTINGS, keep_freed_memory
from tests.processes import forked

# Prints how many pages are new when a tensor is filled after some of the same size (a small object may have taken a
# part of the first one's memory): 4 KiB each without this setting.
NEW_PAGES = """
import resource, torch
from graphgps_kmip.common import freed_memory
from graphgps_kmip.train import distributed
{setting}
for _ in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones({size}, dtype=torch.uint8)
    pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(pages)
"""
BYTES = 48 * 2**20


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="no glibc")
def test_a_process_that_keeps_freed_memory_takes_no_new_pages_for_its_next_tensors() -> None:
    keep, fabric = "freed_memory.keep_freed_memory()", "distributed.make_fabric('cpu')"
    codes = [
        NEW_PAGES.format(setting=setting, size=size)
        for setting, size in (("", BYTES), (keep, BYTES), (fabric, BYTES), (keep, 2 * KEPT_BYTES))
    ]
    ended = forked("import graphgps_kmip.train.distributed", codes)
    alone, kept, trained, large = (int(one.stdout.split()[-1]) for one in ended)
    pages = BYTES // 4096
    assert alone > pages / 2
    assert max(kept, trained) < pages / 100
    assert large > pages  # goes back


@pytest.mark.parametrize("name", OWN_SETTINGS)
def test_settings_of_the_user_are_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert not keep_freed_memory()
