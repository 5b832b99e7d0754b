"""Training: loop, checkpoints, distributed training, writers, optimizers and learning-rate schedules."""

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.errors import CheckpointError, OutOfMemory, RunError, RunFolderError, TrainingDiverged
from graphgps_kmip.results.run_record import read_record
from graphgps_kmip.train.distributed import make_fabric, on_rank_zero
from graphgps_kmip.train.loop import train
from graphgps_kmip.train.reporter import MissingWriter, TensorBoardWriter, WandbWriter, Writer
from graphgps_kmip.train.run_recording import locked, prepare_run_dir
from graphgps_kmip.train.settings import TrainSettings

__all__ = [
    "CheckpointError",
    "OutOfMemory",
    "RunError",
    "RunFolderError",
    "MissingWriter",
    "TensorBoardWriter",
    "TrainSettings",
    "TrainingDiverged",
    "WandbWriter",
    "Writer",
    "locked",
    "make_fabric",
    "on_rank_zero",
    "prepare_run_dir",
    "read_record",
    "replace_file",
    "train",
]
