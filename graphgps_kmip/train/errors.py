"""Exception types of a training run, under the names that they had here before they moved."""

from __future__ import annotations

from graphgps_kmip.errors import CheckpointError, OutOfMemory, RunError, RunFolderError, TrainingDiverged

__all__ = ["CheckpointError", "OutOfMemory", "RunError", "RunFolderError", "TrainingDiverged"]
