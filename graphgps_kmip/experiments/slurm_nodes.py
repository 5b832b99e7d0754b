"""Trainings over several machines: an sbatch script that starts torchrun on every node of a Slurm job."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.jobs import Job, Place
from graphgps_kmip.experiments.run_status import State
from graphgps_kmip.experiments.slurm import option_items

# Options of sbatch; those about nodes, tasks and GPUs follow from --nodes and --gpus-per-node.
KNOWN = frozenset(
    "account comment constraint cpus_per_gpu cpus_per_task exclude exclusive job_name mail_type mail_user mem "
    "mem_per_cpu mem_per_gpu nodelist partition qos reservation time wckey".split()
)
RESTARTS = 3  # of all processes, when one or a whole node is lost
SAVING = 120  # seconds before the time limit, for the last completed epoch to be saved

SCRIPT = """\
# torchrun on every node starts {gpus} processes, and all again, from the newest checkpoint, when one of them is lost.
cd {root}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
threads=$((${{SLURM_CPUS_ON_NODE:-{gpus}}} / {gpus}))
export OMP_NUM_THREADS=$((threads > 0 ? threads : 1))

case $SLURM_ARRAY_TASK_ID in
{cases}
esac

time_is_up() {{  # torchrun hands the signal on, the run saves its last completed epoch, and the job is queued again
  kill -TERM "$step"
  wait "$step"
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
}}
trap time_is_up USR1

srun --kill-on-bad-exit=0 {python} -m torch.distributed.run \\
  --nnodes {nodes} --nproc-per-node {gpus} --max-restarts {restarts} \\
  --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$head:$((10000 + SLURM_JOB_ID % 20000))" \\
  "$@" &
step=$!
wait "$step"
"""


def run_over_nodes(jobs: Sequence[Job], place: Place, args: argparse.Namespace) -> int:
    """Write an sbatch script for the trainings that are not done, and submit it; or print it; return the exit code.

    Raises:
        ManifestError: an option is wrong, a job is no training, or there is no sbatch.
    """
    options = parsed_options(args.slurm)
    pending = [job for job in jobs if job.status().state is not State.DONE]
    if not pending:
        print("nothing is missing")
        return 0
    folder = place.root / place.out / "slurm"
    text = script_of(pending, place.root, folder, options, args.nodes, args.gpus_per_node)
    if args.slurm_dry_run:
        print(text, end="")
        return 0
    path = folder / f"{'-'.join(args.ids).replace('/', '-')}.sbatch"
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode())
    try:
        sent = subprocess.run(["sbatch", "--parsable", str(path)], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ManifestError(f"--slurm: this machine has no sbatch; where there is one, run sbatch {path}") from error
    if sent.returncode:
        raise ManifestError(f"--slurm: sbatch {path} failed: {sent.stderr.strip() or sent.returncode}")
    print(f"submitted {len(pending)} trainings on {args.nodes} nodes each, id {sent.stdout.strip()}, script {path}")
    return 0


def parsed_options(texts: Sequence[str]) -> dict[str, str]:
    """Return options ``key=value,key=value`` of sbatch, see `option_items`."""
    return dict(option_items(texts, KNOWN))


def script_of(jobs: Sequence[Job], root: Path, folder: Path, options: dict[str, str], nodes: int, gpus: int) -> str:
    """Return the sbatch script of some trainings: a job array of one element for each.

    Args:
        jobs (Sequence): Trainings.
        root (Path): The project's root, on a file system that all nodes share, as are the results.
        folder (Path): For Slurm's log files.
        options (dict): Of `parsed_options`.
        nodes (int): Machines for each training.
        gpus (int): GPUs, and processes, on each machine.

    Raises:
        ManifestError: one of the jobs is a command.
    """
    for job in jobs:
        if job.command is not None:
            raise ManifestError(
                f"--nodes: {job.label} is a command, which runs in one process: choose trainings (--only AXIS=VALUE), "
                "and run the commands without --nodes"
            )
    directives = {"job_name": "reproduce", **options, "nodes": nodes, "ntasks_per_node": 1, "gpus_per_node": gpus}
    directives |= {"array": f"0-{len(jobs) - 1}", "output": folder / "%A_%a.log", "open_mode": "append"}
    directives |= {"requeue": None, "signal": f"B:USR1@{SAVING}"}
    lines = [
        f"#SBATCH --{key.replace('_', '-')}" + ("" if value is None else f"={shlex.quote(str(value))}")
        for key, value in directives.items()
    ]
    cases = "\n".join(f"  {number}) set -- {shlex.join(_words(job))} ;;" for number, job in enumerate(jobs))
    body = SCRIPT.format(
        root=shlex.quote(str(root)),
        python=shlex.quote(sys.executable),
        nodes=nodes,
        gpus=gpus,
        restarts=RESTARTS,
        cases=cases,
    )
    return "\n".join(["#!/bin/bash", *lines, "", body])


def _words(job: Job) -> tuple[str, ...]:
    """Return the script and arguments for torchrun, whose flag for a module is ``--module``."""
    return ("--module", *job.words[1:]) if job.words[0] == "-m" else job.words
