"""Train what a YAML file describes: ``python main.py --cfg FILE [flags] [key value ...]``."""

# No torch is imported here: help, and mistakes in the arguments and files alone, take a moment.
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from graphgps_kmip.common.environment import find_config, train_command
from graphgps_kmip.common.signals import close_screen, log_to_screen
from graphgps_kmip.common.yaml_files import parse_overrides, read_yaml
from graphgps_kmip.errors import DIVERGED_CODE, ConfigError, TrainingDiverged, is_users, one_line


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the parsed command line; keys and values, which flags may precede, separate and follow, in ``opts``."""
    about = __doc__.replace("python main.py", train_command())
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cfg", dest="cfg_file", type=Path, help="the YAML file")
    parser.add_argument("--repeat", type=int, default=1, help="number of seeds, from cfg.seed on (default 1)")
    parser.add_argument("--mark_done", action="store_true", help="rename FILE to FILE_done after success")
    parser.add_argument("--overwrite", action="store_true", help="repeat finished runs; old folders are kept aside")
    parser.add_argument("--dry-run", action="store_true", help="print model, data and cost, and stop")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --dry-run: every module and config key too")
    parser.add_argument(
        "--list",
        nargs="?",
        const="*",
        metavar="NAME*",
        help="print the registered components of such names, upper or lower case alike (default all), with --cfg "
        "those of its custom_modules too, and stop",
    )
    parser.add_argument("--data", metavar="NAME", help="print the dataset card of a data set, and stop")
    parser.add_argument("--predict", type=Path, metavar="RUN", help="write the predictions of a finished run, and stop")
    parser.add_argument(
        "--data-folder", type=Path, metavar="DIR", help="of --predict: new graphs, not the run's test split"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="of --predict: .csv or .npz (default RUN/predictions.csv)"
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("opts", nargs="*", help="config keys and values, such as gt.kmip.k 20")
    return parser.parse_intermixed_args(argv)


def check(args: argparse.Namespace) -> None:
    """Raise a ConfigError for what can never become a config, before anything is imported that takes seconds."""
    if args.predict is None and (args.data_folder or args.out):
        raise ConfigError(f"{'--data-folder' if args.data_folder else '--out'} belongs to --predict RUN: name the run")
    if args.predict is not None:
        if args.cfg_file or args.opts:
            raise ConfigError("--predict takes all settings from the run: leave out --cfg, keys and values")
        return
    if args.cfg_file is None and args.list is None and not args.data:
        raise ConfigError("--cfg is missing: give a YAML file, such as configs/quickstart/digits-kmip.yaml (or --list)")
    if args.cfg_file is not None:
        file = find_config(args.cfg_file)
        if args.mark_done and file != args.cfg_file:
            raise ConfigError(f"--mark_done: {file} is the package's own file: copy it here, or leave the flag out")
        read_yaml(file, "--cfg", on_duplicate=lambda *_: None)  # loading the config warns of it
    if args.list is None:
        list(parse_overrides(args.opts, lambda *_: None))


def run(argv: list[str] | None = None) -> int:
    """Run a command line, by default that of the process.

    Returns:
        0, 2 after a mistake of the user's, 3 if the training diverged, 130 after Ctrl-C. A mistake and a divergence
        are printed in one line.
    """
    args = parse(sys.argv[1:] if argv is None else argv)
    try:
        check(args)
        from graphgps_kmip.gym.experiment import carry_out

        log_to_screen()  # after the registration, whose log concerns nobody who trains
        carry_out(args)
    except KeyboardInterrupt:  # in training the loop itself saves and exits
        print("stopped; no training was under way", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `--list | head`
        close_screen()
        return 141
    except Exception as error:
        if args.debug or not is_users(error):
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        return DIVERGED_CODE if isinstance(error, TrainingDiverged) else 2
    return 0
