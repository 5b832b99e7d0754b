"""Config check: does every YAML file of a folder load, build its model and take two training steps on sample data?

  python run/check_configs.py ~/GraphGPS/configs           also for files that were written for another code
  python run/check_configs.py configs/LRGB --only kmip

No data set is needed, and no result is written. The exit code is 1 if a file does not run.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch_geometric.graphgym.optim import create_optimizer

from graphgps_kmip.errors import ConfigError, TrainingDiverged, is_users, one_line, report_mistakes
from graphgps_kmip.gym import cfg
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.data_loading import current_loaders
from graphgps_kmip.gym.estimator_runs import make_scores
from graphgps_kmip.gym.experiment import Parts, assemble, launch, run_experiment
from graphgps_kmip.gym.planned_runs import adopt_estimator, configured, planned_runs
from graphgps_kmip.gym.pretrained import adopt_settings
from graphgps_kmip.gym.sparse_loading import is_sparse
from graphgps_kmip.gym.train_modes import current_task

SMALL = "dataset.sample True train.batch_size 4 num_workers 0 num_threads 1 accelerator cpu devices 1".split()
ESTIMATOR = ["optim.max_epoch", "1"]  # of a sparse network, whose scores must be there before its two steps
STEPS = 2


@dataclass(frozen=True)
class Outcome:
    """The result of one file: its dialect and number of parameters, or the stage at which it failed and why."""

    file: Path
    stage: str = "runs"
    dialect: str = ""
    parameters: int = 0
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return f"no   {self.file}: {self.stage}: {self.why}"
        return f"yes  {self.file}: {self.dialect or 'ours'}, {self.parameters:,} parameters"


def check(file: Path) -> Outcome:
    """Load, build and train two steps until the first mistake of the file; faults of this package are raised.

    The estimator of a sparse network is trained for an epoch first, into a temporary folder.
    """
    stage, dialect = "load", ""
    try:
        load_config(cfg, file, SMALL)
        dialect = cfg.dialect
        stage = "build"
        adopt_settings()
        with TemporaryDirectory() as folder:
            run, fabric = planned_runs(1)[0], launch()
            settings = [*SMALL, *ESTIMATOR, "out_dir", f"{folder}/results"]
            adopt_estimator(settings)
            with configured(run):
                if is_sparse(cfg):
                    cfg.spexphormer.scores = make_scores(run, settings, fabric, run_experiment)
                parts = assemble()
                stage = "train"
                _train(parts, current_loaders(parts.dataset, parts.info.level, fabric)[0])
        return Outcome(file, dialect=dialect, parameters=sum(p.numel() for p in parts.model.parameters()))
    except Exception as error:
        if not is_users(error):
            raise
        return Outcome(file, stage, dialect, why=one_line(error))


def _train(parts: Parts, loader: object) -> None:
    model, task = parts.model, current_task(parts.info.dim_out)
    optimizer = create_optimizer(model.parameters(), cfg.optim)
    for batch in itertools.islice(loader, STEPS):
        batch.split, batch.progress = "train", 0.0
        total, weight = task.loss(*model(batch))
        loss = total / weight
        if not torch.isfinite(loss):
            raise TrainingDiverged(f"the loss is {loss.item()}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@report_mistakes
def main(argv: list[str]) -> int:
    """Print a line for each file and the counts; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="folders, searched below, or files")
    parser.add_argument("--only", default="", metavar="TEXT", help="files whose path has this text")
    args = parser.parse_args(argv)
    files = [path for root in args.folders for path in ([root] if root.is_file() else sorted(root.rglob("*.yaml")))]
    files = [file for file in files if args.only in str(file)]
    if not files:
        raise ConfigError(f"no YAML file in {', '.join(map(str, args.folders))}")
    running = 0
    for file in files:
        outcome = check(file)
        running += not outcome.why
        print(outcome, flush=True)
    print(f"{running} of {len(files)} run")
    return 0 if running == len(files) else 1


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.exit(main(sys.argv[1:]))
