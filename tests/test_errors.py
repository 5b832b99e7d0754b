"""Exception types of a user's mistakes: one line, picklable, kept across process boundaries, decided by type."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, Dataset

from graphgps_kmip import errors
from graphgps_kmip.errors import DataError, InputError, UserError, is_users, one_line

PACKAGE = Path(errors.__file__).parent
TYPES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, UserError)]
# Contracts between our own functions: whoever breaks one has found a bug, whose traceback is wanted.
CONTRACTS = {"ops/context.py", "ops/native/compile_kernels.py", "search/problem.py"}


class BrokenData(Dataset):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        raise DataError(f"graph {index}: x is missing: DataError: add it")


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_every_type_comes_out_of_pickle_as_it_went_in(kind: type[UserError]) -> None:
    again = pickle.loads(pickle.dumps(kind("gt.layers: expected 1 or more")))
    assert type(again) is kind
    assert one_line(again) == "gt.layers: expected 1 or more"


def test_an_error_in_a_dataloader_worker_keeps_its_type_and_its_one_line() -> None:
    with pytest.raises(DataError) as caught:
        next(iter(DataLoader(BrokenData(), num_workers=1)))
    assert is_users(caught.value)
    assert one_line(caught.value) == "graph 0: x is missing: DataError: add it"


def test_a_plain_valueerror_is_a_bug_wherever_it_was_raised() -> None:
    assert not is_users(ValueError("not enough values to unpack"))
    assert not is_users(RuntimeError("shapes do not match"))
    assert not is_users(KeyError("gt"))
    assert is_users(InputError("k must be >= 1"))


def test_what_the_system_refuses_and_a_lack_of_memory_are_one_line() -> None:
    assert one_line(PermissionError(13, "Permission denied", "a/b")) == (
        "a/b: Permission denied: check its owner and permissions"
    )
    assert one_line(OSError(28, "No space left on device", "a")).startswith("a: No space left on device")
    for error in (MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory:\n9 bytes")):
        assert is_users(error)
        assert one_line(error).startswith("out of memory")
        assert "\n" not in one_line(error)


def test_a_process_whose_partner_ended_says_so_in_one_line() -> None:
    error = RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:18357. This is typically caused by ...")
    assert is_users(error)
    assert one_line(error).startswith("another process of this run ended: ")


def test_no_module_raises_a_plain_valueerror_for_what_a_user_set() -> None:
    files = {str(file.relative_to(PACKAGE)): file.read_text() for file in sorted(PACKAGE.rglob("*.py"))}
    places = [name for name, text in files.items() if "raise ValueError(" in text and name not in CONTRACTS]
    assert not places, f"raise a type of graphgps_kmip.errors there, a plain ValueError shows a traceback: {places}"
