"""Train what a YAML file describes: ``python main.py --cfg FILE [flags] [key value ...]``."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from functools import partial
from pathlib import Path

from graphgps_kmip.common.project import find_config, train_command
from graphgps_kmip.errors import DIVERGED_CODE, ConfigError, TrainingDiverged, is_users, one_line
from graphgps_kmip.gym import cfg
from graphgps_kmip.gym.building.parameter_count import dry_run
from graphgps_kmip.gym.component_list import listing
from graphgps_kmip.gym.config.config_loading import load_config
from graphgps_kmip.gym.config.estimator_settings import adopt_estimator
from graphgps_kmip.gym.config.pretrained import adopt_settings
from graphgps_kmip.gym.config.sparse_settings import is_sparse
from graphgps_kmip.gym.running.data_loading import show_data
from graphgps_kmip.gym.running.estimator_runs import scores_line, with_scores
from graphgps_kmip.gym.running.experiment import close_screen, launch, log_to_screen
from graphgps_kmip.gym.running.experiment_runs import train_runs
from graphgps_kmip.gym.running.planned_runs import configured, planned_runs, set_out_dir
from graphgps_kmip.train.distributed import tells_error


def parse(words: list[str]) -> argparse.Namespace:
    """Return the parsed command line; the tail of keys and values is left in ``opts``."""
    about = __doc__.replace("python main.py", train_command())
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cfg", dest="cfg_file", type=Path, help="the YAML file")
    parser.add_argument("--repeat", type=int, default=1, help="number of seeds, from cfg.seed on (default 1)")
    parser.add_argument("--mark_done", action="store_true", help="rename FILE to FILE_done after success")
    parser.add_argument("--overwrite", action="store_true", help="repeat finished runs; old folders are kept aside")
    parser.add_argument("--dry-run", action="store_true", help="print config, model, parameters and data, and stop")
    parser.add_argument(
        "--list",
        nargs="?",
        const="*",
        metavar="NAME*",
        help="print the registered components of such names, upper or lower case alike (default all), and stop",
    )
    parser.add_argument("--data", metavar="NAME", help="print the data sheet of a data set, and stop")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="config keys and values, such as gt.kmip.k 20")
    return parser.parse_args(words)


def main(args: argparse.Namespace) -> None:
    """Do what the command line asks for."""
    given, args.cfg_file = args.cfg_file, args.cfg_file and find_config(args.cfg_file)
    if args.mark_done and args.cfg_file != given:
        raise ConfigError(f"--mark_done: {given} is the package's own file: copy it here, or leave the flag out")
    if args.list is not None:
        print(listing([args.list, *args.opts]))
        return
    if args.data:
        load_config(cfg, args.cfg_file, args.opts)  # a YAML may register data sets, and say where they are
        print(show_data(args.data))
        return
    if args.cfg_file is None:
        raise ConfigError("--cfg is missing: give a YAML file, such as configs/quickstart/digits-kmip.yaml (or --list)")
    load_config(cfg, args.cfg_file, args.opts)
    adopt_settings()
    adopt_estimator(args.opts)
    runs = planned_runs(args.repeat)
    if args.dry_run:
        scores = f"\n\n--- scores\n{scores_line(runs[0], args.opts)}" if is_sparse(cfg) else ""
        with configured(runs[0]):
            print(dry_run() + scores)
        return
    fabric = launch()
    set_out_dir(args.cfg_file)
    prepare = partial(with_scores, words=args.opts, fabric=fabric, overwrite=args.overwrite) if is_sparse(cfg) else None
    train_runs(runs, fabric, args.overwrite, prepare=prepare)
    if fabric.is_global_zero and args.mark_done:
        args.cfg_file.rename(f"{args.cfg_file}_done")


def run(words: list[str] | None = None) -> int:
    """Return the exit code: 0, 2 after a mistake of the user's, 3 if the training diverged, 130 after Ctrl-C.

    A mistake and a divergence are printed in one line.

    Args:
        words (default: those of the process): of the command line.
    """
    args = parse(sys.argv[1:] if words is None else words)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # main.py set it for the imports
    log_to_screen()
    try:
        main(args)
    except KeyboardInterrupt:  # in training the loop itself saves and exits
        print("stopped; no training was under way", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `--list | head`
        close_screen()
        return 141
    except Exception as error:
        if args.debug or not is_users(error):
            raise
        if tells_error():  # of several processes with one mistake, the first
            print(f"error: {one_line(error)}", file=sys.stderr)
        return DIVERGED_CODE if isinstance(error, TrainingDiverged) else 2
    return 0
