"""The command line of run/reproduce.py."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

HELP = {
    "list": "every experiment: what it makes and costs, and how much of it is done",
    "plan": "the exact commands of experiments, and how far each is",
    "run": "run what is missing: resumes what was interrupted, repeats what failed, skips what is done",
    "table": "the tables of experiments: our numbers beside the printed ones",
    "figure": "draw the figures of experiments into the folder of results",
    "report": "write one HTML page of everything that is done",
}
FORMATS = ("md", "tex", "csv", "html")


def parse(words: Sequence[str], description: str, actions: Mapping[str, Callable]) -> argparse.Namespace:
    """Return the parsed command line, its function as ``action``.

    Args:
        words: of the command line.
        description: for ``--help``.
        actions: subcommand -> what it does with the parsed line.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    subparsers = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
    parsers = {}
    for name, action in actions.items():
        one = parsers[name] = subparsers.add_parser(name, help=HELP[name], description=HELP[name])
        one.set_defaults(action=action)
        one.add_argument("--out", type=Path, default=Path("results"), help="root of the results (default results)")
        one.add_argument("--debug", action="store_true", help="show the traceback of an error")
        if name == "list":
            one.add_argument("--markdown", action="store_true", help="as a table in Markdown, without what is done")
        if name not in ("list", "report"):
            one.add_argument("ids", nargs="+", metavar="ID", help="experiments, as `list` names them")
            one.add_argument("--sample", action="store_true", help="on sample data and small sizes: quick, no results")
    for name in ("plan", "run"):
        _add_choice(parsers[name])
    _add_running(parsers["run"])
    parsers["table"].add_argument("--format", choices=FORMATS, default="md", help="(default md)")
    parsers["table"].add_argument(
        "--partial", action="store_true", help="average over the seeds that are done, saying n"
    )
    return parser.parse_args(words)


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=_positive, metavar="N", help="the first N seeds of each training, or more")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="AXIS=VALUE[+VALUE][,AXIS=...]",
        help="trainings at these values and no command, such as model=GCN+GPS+kMIP,dataset=CIFAR10; "
        "command=NAME: this command and what it needs",
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="dataset.dir of all trainings")


def _add_running(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=_positive, default=1, metavar="N", help="jobs at once (default 1)")
    parser.add_argument("--retry", action="store_true", help="repeat also what diverged, which tends to happen again")
    parser.add_argument(
        "--search",
        choices=("linear", "tpe"),
        help="search the hyper-parameters one at a time as the paper (linear), or by TPE; then run the best",
    )
    parser.add_argument("--trials", type=_positive, default=30, metavar="N", help="of --search tpe (default 30)")
    parser.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="KEY=VALUE[,KEY=VALUE]",
        help="on a cluster, with these options of sbatch, such as partition=gpu,gres=gpu:1,time=24:00:00; "
        "executor=local tries it on this machine",
    )
    parser.add_argument("--slurm-dry-run", action="store_true", help="print what --slurm would submit, and stop")
    parser.add_argument("--job", metavar="FOLDER", help="only the job of this folder of the results, and what it needs")


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, got {text!r}")
    return int(text)
