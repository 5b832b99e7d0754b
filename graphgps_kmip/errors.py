"""Exception types for mistakes that a user can fix: each message is one line with what is wrong, where, how to fix it.

Their only argument is the message, so that they pass through pickle.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable


class UserError(Exception):
    """Base of all errors that a user can fix."""


class ConfigError(UserError, ValueError):
    """A mistake in a YAML file, on the command line or in a registration."""


class InputError(UserError, ValueError):
    """An argument that a function or module does not allow; where a config key set it, the message names the key."""


class DataError(UserError, ValueError):
    """The files or graphs of a data set are missing, damaged or not of the expected form."""


class UnsafeFile(DataError):
    """A file asks for something that data never needs; nothing of it was run."""


class ManifestError(UserError, ValueError):
    """An experiment's manifest or a printed table that is not valid."""


class ResultsError(UserError, ValueError):
    """Results on disk that are missing or do not fit what is to be made of them."""


class RunError(UserError):
    """Base of the errors of a training run."""


class CheckpointError(RunError, ValueError):
    """A checkpoint that is missing, damaged, of another configuration, or that cannot be written."""


class RunFolderError(RunError, ValueError):
    """A run folder that cannot be written, or that another process is writing."""


class TrainingDiverged(RunError, RuntimeError):
    """A loss or a parameter that became NaN or infinite."""


DIVERGED_CODE = 3  # exit code of a training that raised `TrainingDiverged`


class OutOfMemory(RunError, RuntimeError):
    """A model or a batch that did not fit into memory."""


# What the allocators of CUDA, of the CPU (Linux, Windows) and of KeOps say, in lower case, in a plain RuntimeError.
NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "std::bad_alloc")

_NO_WORKER = re.compile(r"DataLoader worker .*(killed by signal|exited unexpectedly)")
_NO_PARTNER = ("Connection closed by peer", "Connection reset by peer", "remote process exited")


def lost_partner(error: BaseException) -> bool:
    """Return whether an error is that another process of the same run ended, in a collective that waited for it."""
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_PARTNER)


def lost_worker(error: BaseException) -> bool:
    """Return whether an error is that a process that loads data was killed, which torch raises wherever a run is."""
    return isinstance(error, RuntimeError) and _NO_WORKER.match(str(error)) is not None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory is exhausted, on the CPU or on an accelerator."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error).lower() for text in NO_MEMORY)
    )


def is_users(error: BaseException) -> bool:
    """Return whether an error is one that a user can fix, rather than a bug: by its type alone."""
    return (
        isinstance(error, (UserError, OSError)) or is_out_of_memory(error) or lost_partner(error) or lost_worker(error)
    )


def report_mistakes(main: Callable[[list[str]], int]) -> Callable[[list[str]], int]:
    """Let the main function of a command report a user's mistake in one line with code 2; an interrupt has code 130."""

    @functools.wraps(main)
    def run(argv: list[str]) -> int:
        try:
            return main(argv)
        except KeyboardInterrupt:
            return 130
        except Exception as error:
            if not is_users(error):
                raise
            print(f"error: {one_line(error)}", file=sys.stderr)
            return 2

    return run


def one_line(error: BaseException) -> str:
    """Return an error's message as one line for the command line; of a DataLoader worker's traceback, its last line."""
    text = str(error)
    if "Original Traceback (most recent call last):" in text:
        module = "" if type(error).__module__ == "builtins" else f"{type(error).__module__}."
        text = text.rpartition(f"\n{module}{type(error).__qualname__}: ")[2]  # how the last entry begins
    if isinstance(error, OSError) and not isinstance(error, UserError):
        return _describe_system_error(error)
    if lost_partner(error) and not isinstance(error, UserError):
        return "another process of this run ended: its own error line or traceback, here or in its log, says why"
    if lost_worker(error):
        return (
            "num_workers: a process that loads data was killed: it may have needed more memory: set num_workers lower; "
            "0 loads in the main process"
        )
    if is_out_of_memory(error) and not isinstance(error, UserError):
        detail = f" ({' '.join(text.split())[:160]})" if text else ""
        return f"out of memory{detail}: a smaller train.batch_size, model or data set needs less"
    return " ".join(text.split()) or type(error).__name__


def _describe_system_error(error: OSError) -> str:
    places = " -> ".join(str(place) for place in (error.filename, error.filename2) if place is not None)
    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    hints = {
        PermissionError: "check its owner and permissions",
        FileNotFoundError: "check the path",
        IsADirectoryError: "give a file",
        NotADirectoryError: "a part of this path is a file: check the path",
    }
    hint = hints.get(type(error), "fix this and start again" if places else "--debug shows where it happened")
    return f"{places}: {reason}: {hint}" if places else f"{reason}: {hint}"
