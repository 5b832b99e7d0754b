"""The errors of a run that a user can act on: one line each, printed as it is by main.py."""

from __future__ import annotations


class RunError(Exception):
    """Base of the errors below: what happened, where, and what to do."""


class CheckpointError(RunError, ValueError):
    """A checkpoint that is missing, damaged, of another configuration, or that cannot be written."""


class RunFolderError(RunError, ValueError):
    """A run folder that cannot be written, or that another process is writing."""


class TrainingDiverged(RunError, RuntimeError):
    """A loss or a parameter that became NaN or infinite."""


class OutOfMemory(RunError, RuntimeError):
    """A batch that did not fit into memory."""
