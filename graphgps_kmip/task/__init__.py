"""What is learned and how it is judged: losses, scores, metrics, and the `Task` that binds them."""

from graphgps_kmip.task.make_task import make_task
from graphgps_kmip.task.metrics import METRICS
from graphgps_kmip.task.table import LOSSES
from graphgps_kmip.task.task import Task

__all__ = ["LOSSES", "METRICS", "Task", "make_task"]
