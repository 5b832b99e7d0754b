"""Actions of the command line: component listing, dataset card, dry run, and training."""

from __future__ import annotations

import argparse
from functools import partial

from graphgps_kmip.common.project import find_config
from graphgps_kmip.gym import cfg
from graphgps_kmip.gym.component_list import listing
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.data_loading import show_data
from graphgps_kmip.gym.estimator_runs import scores_line, with_scores
from graphgps_kmip.gym.estimator_settings import adopt_estimator
from graphgps_kmip.gym.experiment import check_restarts, launch
from graphgps_kmip.gym.experiment_runs import train_runs
from graphgps_kmip.gym.parameter_count import dry_run
from graphgps_kmip.gym.planned_runs import configured, planned_runs, set_out_dir
from graphgps_kmip.gym.pretrained import adopt_settings
from graphgps_kmip.gym.sparse_settings import is_sparse


def carry_out(args: argparse.Namespace) -> None:
    """Do what the command line asks for.

    Args:
        args: parsed and checked by ``graphgps_kmip.command_line``.
    """
    args.cfg_file = args.cfg_file and find_config(args.cfg_file)
    if args.list is not None:
        if args.cfg_file:
            load_config(cfg, args.cfg_file, [])  # its custom modules register components
        print(listing([args.list, *args.opts]))
        return
    load_config(cfg, args.cfg_file, args.opts)  # a dataset card's, too: it may register data sets
    if args.data:
        print(show_data(args.data))
        return
    adopt_settings()
    adopt_estimator(args.opts)
    runs = planned_runs(args.repeat)
    if args.dry_run:
        scores = f"\n\n--- scores\n{scores_line(runs[0], args.opts)}" if is_sparse(cfg) else ""
        with configured(runs[0]):
            print(dry_run() + scores)
        return
    check_restarts(args.overwrite)
    fabric = launch()
    set_out_dir(args.cfg_file)
    prepare = partial(with_scores, words=args.opts, fabric=fabric, overwrite=args.overwrite) if is_sparse(cfg) else None
    train_runs(runs, fabric, args.overwrite, prepare=prepare)
    if fabric.is_global_zero and args.mark_done:
        args.cfg_file.rename(f"{args.cfg_file}_done")
