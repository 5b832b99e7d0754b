"""Train several configs on the same seeds and print their results side by side.

python run/compare.py A.yaml B.yaml [...] [--repeat 3] [--out_dir results] [--set key value ...]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from graphgps_kmip.report.comparison import comparison  # noqa: E402


def main(words: list[str]) -> int:
    """Train what is not finished yet, one config after the other, and print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="YAML files, the baseline first")
    parser.add_argument("--repeat", type=int, default=3, help="seeds for each (default 3)")
    parser.add_argument("--out_dir", type=Path, default=Path("results"), help="where results go (default results)")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY VALUE", help="overrides for all of them")
    args = parser.parse_args(words)
    for file in args.files:
        command = [sys.executable, str(ROOT / "main.py"), "--cfg", str(file), "--repeat", str(args.repeat)]
        code = subprocess.call([*command, "out_dir", str(args.out_dir), *args.set])
        if code:
            return code
    try:
        print(comparison([args.out_dir / file.stem for file in args.files], args.repeat))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
