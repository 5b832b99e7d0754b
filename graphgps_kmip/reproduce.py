"""Reproduce the papers' tables and figures: one command per experiment, from its runs to a table beside the paper's.

python run/reproduce.py list                            every experiment: what it makes, what it costs, what is done
python run/reproduce.py plan quickstart/digits          the exact commands
python run/reproduce.py run quickstart/digits --jobs 2  runs what is missing; Ctrl-C saves, the same command goes on
python run/reproduce.py table quickstart/digits         our numbers beside the printed ones
python run/reproduce.py run fair/minesweeper --search   tunes all models of a table alike, then trains the best of each
python run/reproduce.py figure ID
python run/reproduce.py report                          one HTML page of everything that is done
python run/reproduce.py card results/digits-kmip/0      a Markdown page about one finished run
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.common.environment import installed, own_files, reproduce_command
from graphgps_kmip.errors import ManifestError, is_users, one_line
from graphgps_kmip.experiments.experiment_spec import Experiment
from graphgps_kmip.experiments.hyperparameter_search import (
    ENGINES,
    EQUAL,
    TRIALS,
    check_searched,
    make_runner,
    run_search,
    with_choices,
)
from graphgps_kmip.experiments.job_runner import JobsStopped, Outcome, Setup, run_jobs, summary
from graphgps_kmip.experiments.jobs import (
    Job,
    Place,
    check_configs,
    list_members,
    narrow_by_option,
    plan_jobs,
    plan_lines,
    plan_summary,
    with_needs,
    with_pending_needs,
)
from graphgps_kmip.experiments.manifest import load_manifest, load_printed, select, with_members
from graphgps_kmip.experiments.run_status import (
    TIMED,
    experiment_markdown,
    experiment_table,
    extent,
    published_file,
    row_key,
    with_published,
)
from graphgps_kmip.experiments.search_space import load_ranges
from graphgps_kmip.experiments.slurm import run_on_slurm

if TYPE_CHECKING:
    from graphgps_kmip.report.result_table import ResultTable

ROOT = Path.cwd()  # where jobs run and results go
MANIFESTS = own_files() / "run/experiments"
BUSY = 0.5  # mean number of processes that ran in the last minute, from which a timing is warned of
FORMATS = ("md", "tex", "csv", "html")


def list_experiments(args: argparse.Namespace) -> int:
    """Print every experiment: what it makes and costs, and how much of it is done."""
    every = experiments(args).values()
    if args.markdown:
        print(experiment_markdown(every))
        return 0
    width, out = shutil.get_terminal_size((120, 24)).columns, ROOT / args.out
    print(experiment_table(every, lambda experiment: extent(experiment, out, compute_hash), width))
    return 0


def plan(args: argparse.Namespace) -> int:
    """Print the exact commands of experiments, and the run status of each."""
    jobs = with_pending_needs(select_jobs(args))
    print("\n".join(plan_lines(jobs)))
    print(f"# {plan_summary(args.ids, jobs)}")
    return 0


def run(args: argparse.Namespace) -> int:
    """Run what is missing: resumes what was interrupted, repeats what failed, skips what is done."""
    if bool(args.nodes) != bool(args.gpus_per_node) or (args.nodes and not args.slurm):
        raise ManifestError("--nodes and --gpus-per-node go together, and with --slurm")
    if args.search:
        if args.slurm or args.slurm_dry_run or args.job or args.timing:
            raise ManifestError(
                "--search runs on this machine alone: leave out --slurm, --slurm-dry-run, --job and --timing"
            )
        return run_searches(args)
    jobs = timings(args) if args.timing else select_jobs(args)
    if args.slurm or args.slurm_dry_run:
        run_on_slurm(jobs, place(args), args)
        return 0
    print(plan_summary(args.ids, with_pending_needs(jobs)), flush=True)
    results = run_jobs(jobs, setup(args), sys.stdout)
    print(summary(results))
    return 0 if all(result.outcome is Outcome.DONE for result in results) else 1


def timings(args: argparse.Namespace) -> list[Job]:
    """Return the jobs that train the first seed of each training once more, one at a time."""
    if args.slurm or args.slurm_dry_run or args.job or args.seeds or args.jobs > 1:
        raise ManifestError("--timing trains one seed at a time: leave out --slurm, --job, --seeds and --jobs")
    args.seeds = 1
    jobs = [job for job in select_jobs(args) if job.command is None]
    if not jobs:
        raise ManifestError(f"--timing: {' '.join(args.ids)} has no trainings here")
    if (load := os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0) > BUSY:
        print(f"warning: load {load:.1f} in the last minute: other work makes the seconds too many", file=sys.stderr)
    return jobs


def run_searches(args: argparse.Namespace) -> int:
    """Search the hyper-parameters of some experiments."""
    ranges, finished, every = load_ranges(*folders("ranges")), True, manifest()
    for member in [part for key in args.ids for part in list_members(every, key, ",".join(args.only), args.seeds)]:
        published = with_published(member, *folders("published")).published if args.published else {}
        runner = make_runner(place(args), setup(args), sys.stdout, published)
        options = {"trials": args.trials, "sample": args.sample}
        for outcome in run_search(member, args.search, ranges, runner, ROOT / args.out, **options):
            print(f"{outcome.line}\n  trial log: {outcome.log}")
            finished &= outcome.finished
    return 0 if finished else 1


def table(args: argparse.Namespace) -> int:
    """Print the tables of experiments: our numbers next to the printed ones."""
    from graphgps_kmip.report.table_formats import FORMATS
    from graphgps_kmip.report.table_notes import rank_notes

    for experiment, tables in select_tables(args):
        if not tables:
            raise ManifestError(f"{experiment.id} makes no tables; `list` says what it makes")
        for built in tables.values():
            print(FORMATS[args.format](built, partial=args.partial))
        if experiment.of and args.format == "md":
            print(*("", *rank_notes(list(tables.values()))), sep="\n")
    return 0


def figure(args: argparse.Namespace) -> int:
    """Draw the figures of experiments into the folder of results."""
    from graphgps_kmip.report.draw_figure import draw_figure

    for experiment, tables in select_tables(args):
        if not experiment.figures:
            raise ManifestError(f"{experiment.id} makes no figures; `list` says what it makes")
        for spec in experiment.figures.values():
            print("\n".join(map(str, draw_figure(experiment, spec, tables, ROOT / args.out, args.sample))))
    return 0


def report(args: argparse.Namespace) -> int:
    """Write one HTML page of everything that is done."""
    from graphgps_kmip.report.report_page import write_page

    every, printed = experiments(args), load_printed(*folders("printed"))
    print(write_page(every, printed, ROOT / args.out, compute_hash, args.published))
    return 0


def card(args: argparse.Namespace) -> int:
    """Write model-card.md into the folders of finished runs: settings, data, scores, cost, how to load the model."""
    import graphgps_kmip.gym  # noqa: F401 (registers the data sets)
    from graphgps_kmip.gym.config_hash import changed_settings
    from graphgps_kmip.report.model_card import write_card

    for run_dir in args.runs:
        print(write_card(below_root(run_dir), changed_settings))
    return 0


def publish(args: argparse.Namespace) -> int:
    """Write the finished runs of experiments, with those published before, into run/experiments/published."""
    from graphgps_kmip.report.publishing import published_csv, published_rows

    every, ranges = manifest(), load_ranges(*folders("ranges"))
    for name in dict.fromkeys(name for key in args.ids for name in select(every, key).of or (key,)):
        experiment = with_published(every[name], *folders("published"))
        rows = published_rows(experiment, ranges, ROOT / args.out, compute_hash)
        file = published_file(name, MANIFESTS / "published")
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, published_csv(rows))
        dropped = len(experiment.published.keys() - {row_key(row) for row in rows})
        print(f"{file}: {len(rows)} runs{f'; {dropped} of other settings dropped' if dropped else ''}")
    return 0


def compute_hash(argv: list[str]) -> str:
    """Return the config hash of a command line of main.py."""
    from graphgps_kmip.gym.planned_runs import planned_hash  # loads torch_geometric: seconds

    return planned_hash(argv, ROOT)


def place(args: argparse.Namespace) -> Place:
    """Return where jobs run."""
    out = args.out / TIMED if getattr(args, "timing", False) else args.out
    return Place(ROOT, out, compute_hash, args.sample, args.data, None if ROOT == own_files() else own_files())


def setup(args: argparse.Namespace) -> Setup:
    """Return how jobs are run, with what this machine is."""
    import torch  # seconds

    from graphgps_kmip.train.run_recording import code_version, hardware, package_versions

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    facts = {"code_version": code_version(), "hardware": hardware(device), "packages": package_versions()}
    return Setup(ROOT, facts, args.sample, args.jobs, args.retry)


def experiments(args: argparse.Namespace) -> dict[str, Experiment]:
    """Return all experiments; those of equal tuning with the settings that searches on disk, or published, chose."""
    ranges, out, every = load_ranges(*folders("ranges")), ROOT / args.out, manifest()
    keys = {member for key in getattr(args, "ids", ()) for member in (key, *select(every, key).of)}
    if not keys and (out.exists() or getattr(args, "published", False)):
        keys = every.keys()  # else nothing is done, and `list` needs no torch_geometric, which takes seconds
    for key in keys:
        part = with_published(every[key], *folders("published"))
        every[key] = with_choices(part, ranges, out, compute_hash, getattr(args, "sample", False))
    return with_members(every)


def manifest() -> dict[str, Experiment]:
    """Return all experiments as written."""
    return load_manifest(*folders())


def folders(part: str = "") -> list[Path]:
    """Return the folders that experiments, or a part of them, are read from: ours, and the working directory's."""
    return [folder / part for folder in dict.fromkeys((MANIFESTS, ROOT / "run/experiments"))]


def select_tables(args: argparse.Namespace) -> Iterator[tuple[Experiment, dict[str, ResultTable]]]:
    """Yield the experiments that the command line names, with their tables."""
    from graphgps_kmip.report.result_table import experiment_tables

    every, printed = experiments(args), load_printed(*folders("printed"))
    options = (ROOT / args.out, compute_hash, args.sample, args.published)
    for experiment in [select(every, key) for key in args.ids]:
        yield experiment, experiment_tables(experiment, every, printed, *options)


def select_jobs(args: argparse.Namespace) -> list[Job]:
    """Return the jobs that the command line names."""
    every, only = experiments(args), ",".join(args.only)
    same = [*(["--sample"] if args.sample else []), *(["--only", only] if only else [])]
    for key in args.ids:
        check_searched(narrow_by_option(select(every, key), only, args.seeds), same)
    published = getattr(args, "published", False) and not args.timing
    jobs = plan_jobs(every, args.ids, place(args), only, args.seeds, published)
    check_configs(jobs, ROOT)
    if not getattr(args, "job", None):
        return jobs
    by_folder = {str(job.path.relative_to(ROOT / args.out)): job for job in with_needs(jobs)}
    if args.job not in by_folder:
        raise ManifestError(f"--job: {' '.join(args.ids)} has no job in {args.job}")
    return [by_folder[args.job]]


ACTIONS = {
    "list": list_experiments,
    "plan": plan,
    "run": run,
    "table": table,
    "figure": figure,
    "report": report,
    "card": card,
    "publish": publish,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 if something is not done, 2 after a mistake of the user's, 130 after Ctrl-C."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse(argv)
    if not installed():  # the scripts that are started import this checkout's package, and run.bench
        paths = [str(own_files()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))
    args.out, args.data = (path and below_root(path) for path in (args.out, getattr(args, "data", None)))
    try:
        code = args.action(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `list | head`; what is left in the buffer has no reader, either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except JobsStopped as stopped:
        print(summary(stopped.results))
        print(f"{stopped}; this goes on where it stopped:\n  {reproduce_command()} {shlex.join(argv)}")
        return 128 + stopped.signum
    except Exception as error:
        if args.debug or not is_users(error):
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2


def below_root(path: Path) -> Path:
    """Return a path as seen from the working directory, absolute if it is not below it."""
    whole = path.expanduser().absolute()
    return whole.relative_to(ROOT) if whole.is_relative_to(ROOT) else whole


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the parsed command line, with the function of its subcommand as ``action``."""
    description = __doc__.replace("python run/reproduce.py", reproduce_command())
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    subparsers = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
    parsers = {}
    for name, action in ACTIONS.items():
        about = f"{action.__doc__[0].lower()}{action.__doc__[1:-1]}"
        parsers[name] = subparsers.add_parser(name, help=about, description=about)
        parsers[name].set_defaults(action=action)
        add = parsers[name].add_argument
        add("--out", type=Path, default=Path("results"), help="root of the results (default results)")
        add("--debug", action="store_true", help="show the traceback of an error")
        if name == "list":
            add("--markdown", action="store_true", help="as a table in Markdown, without what is done")
        if name == "card":
            add("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs, such as results/digits-kmip/0")
        if name not in ("list", "report", "card"):
            add("ids", nargs="+", metavar="ID", help="experiments, as `list` names them")
        if name not in ("list", "report", "card", "publish"):
            add("--sample", action="store_true", help="on sample data and small sizes: quick, no results")
        if name in ("table", "figure", "report"):
            published = "published runs, marked as such, for what was not trained here"
            add("--published", action="store_true", help=published)
    for name in ("plan", "run"):
        _add_choice(parsers[name])
    _add_running(parsers["run"])
    parsers["table"].add_argument("--format", choices=FORMATS, default="md", help="(default md)")
    partial = "average over the seeds that are done, saying n"
    parsers["table"].add_argument("--partial", action="store_true", help=partial)
    return parser.parse_args(argv)


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
    parser.add_argument(
        "--timing",
        action="store_true",
        help="train the first seed of each training once more, alone, for the seconds and the memory of tables",
    )
    parser.add_argument("--retry", action="store_true", help="repeat also what diverged, which tends to happen again")
    parser.add_argument(
        "--search",
        nargs="?",
        const=EQUAL,
        choices=ENGINES,
        help="search the hyper-parameters by random (default), tpe or linear (one at a time); then run the best",
    )
    published = "published runs, and trials of --search, of today's settings are not trained again"
    parser.add_argument("--published", action="store_true", help=published)
    parser.add_argument(
        "--trials", type=_positive, metavar="N", help=f"of random or tpe (default: of the ranges, else {TRIALS})"
    )
    parser.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="KEY=VALUE[,KEY=VALUE]",
        help="on a cluster, with these options of sbatch, such as partition=gpu,gres=gpu:1,time=24:00:00",
    )
    parser.add_argument("--nodes", type=_positive, metavar="N", help="with --slurm: nodes of each training")
    parser.add_argument(
        "--gpus-per-node", type=_positive, metavar="G", help="with --nodes: GPUs, and processes, of each"
    )
    parser.add_argument("--slurm-dry-run", action="store_true", help="print what --slurm would submit, and stop")
    parser.add_argument("--job", metavar="FOLDER", help="only the job of this folder of the results, and what it needs")


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, got {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
