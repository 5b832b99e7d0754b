"""Comparison of configs: trains several on the same seeds and prints their results side by side.

python run/compare.py A.yaml B.yaml [...] [--repeat 3] [--out_dir results] [--set key value ...]
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
from pathlib import Path

from graphgps_kmip.errors import ResultsError, report_mistakes

MAIN = Path(__file__).resolve().parents[1] / "main.py"


def compare(args: argparse.Namespace) -> int:
    """Train the unfinished configs, one after the other, and print the table; return the exit code."""
    from graphgps_kmip.gym.planned_runs import planned_folder  # loads torch_geometric: seconds
    from graphgps_kmip.report.comparison import check_distinct, comparison

    settings = ["out_dir", str(args.out_dir), *args.set]
    # Asked of the config itself: a name_tag, an out_dir or sample data move the folder.
    folders = {str(file): planned_folder(["--cfg", str(file), *settings], Path()) for file in args.files}
    check_distinct(folders, len(args.files))
    for file, folder in folders.items():
        if folder != planned_folder(["--cfg", file, *settings, "dataset.sample", "False"], Path()):
            raise ResultsError(f"{file}: runs on sample data (dataset.sample True) enter no table: leave it out")
    for file in args.files:
        command = [sys.executable, str(MAIN), "--cfg", str(file), "--repeat", str(args.repeat), *settings]
        if code := subprocess.call(command):
            return code
    print(comparison(list(folders.values()), args.repeat))
    return 0


@report_mistakes
def main(argv: list[str]) -> int:
    """Return the exit code, that of a training that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="YAML files, the baseline first")
    parser.add_argument("--repeat", type=int, default=3, help="seeds for each (default 3)")
    parser.add_argument("--out_dir", type=Path, default=Path("results"), help="where results go (default results)")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY VALUE", help="overrides for all of them")
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    args, others = parser.parse_known_args(argv)
    if others:
        parser.error(f"{' '.join(others)}: unknown; settings of all files go after --set, as in --set gt.kmip.k 10")
    return compare(args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
