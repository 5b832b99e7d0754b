"""Run by test_restarts.py in each of four processes: trains the toy, or with ``--agent`` starts some like torchrun.

Here torchrun's agent gets its processes from a fork server, so that they share one import; it cannot fork them itself,
for it has threads, and a lock that one of them held would stay locked in the child.
"""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

from graphgps_kmip.results.run_folder import numbered
from graphgps_kmip.train.distributed import make_fabric
from tests.train import killed_rank
from tests.train.toy import make_loaders, run

EPOCHS = 7


def toy(folder: str) -> None:
    """Train with dropout, and say which checkpoints there are."""
    fabric = make_fabric("cpu")
    if fabric.is_global_zero:
        print("goes on from", *numbered(Path(folder)), flush=True)
    loaders = make_loaders(fabric.global_rank, fabric.world_size)
    run(Path(folder), loaders=loaders, fabric=fabric, max_epoch=EPOCHS, ckpt_period=3, auto_resume=True)


def agent(nodes: int, endpoint: str, preload: str, *arguments: str) -> None:
    """Start the processes of one of so many machines, and all of them again when one is killed, twice at most."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    store = {"rdzv_backend": "c10d", "rdzv_endpoint": endpoint, "run_id": "test"}
    options = {"max_restarts": 2, "start_method": "forkserver", "monitor_interval": 0.05}
    config = LaunchConfig(nodes, nodes, 4 // nodes, **options, **store)
    multiprocessing.set_forkserver_preload([preload])
    elastic_launch(config, killed_rank.main)(*arguments)


if __name__ == "__main__":
    if sys.argv[1] == "--agent":
        agent(int(sys.argv[2]), *sys.argv[3:])
    else:
        toy(sys.argv[1])
