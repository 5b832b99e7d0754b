"""Tasks: losses, metrics, and the `Task` that combines them."""

from graphgps_kmip.task.task import Task, functions_of, make_task

__all__ = ["Task", "functions_of", "make_task"]
