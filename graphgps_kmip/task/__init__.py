"""Tasks: losses, metrics, and the `Task` that combines them."""

from graphgps_kmip.task import losses, metrics  # noqa: F401 (imported for their registry entries)
from graphgps_kmip.task.make_task import functions_of, make_task
from graphgps_kmip.task.task import Task

__all__ = ["Task", "functions_of", "make_task"]
