"""Tasks: losses, metrics, and the `Task` that combines them."""

from graphgps_kmip.task.task import Task, list_functions, make_task

__all__ = ["Task", "list_functions", "make_task"]
