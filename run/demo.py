"""Train the quickstart and say what came out: python run/demo.py [--compare] [--repeat 1] [--set key value ...]."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KMIP, FULL = "configs/quickstart/digits-kmip.yaml", "configs/quickstart/digits-full.yaml"
NEXT = f"""
Try next (in the project folder, after `source .venv/bin/activate`):
  every registered part:       python main.py --list
  another k, without running:  python main.py --cfg {KMIP} --dry-run gt.kmip.k 10
  an attention of your own:    python main.py --cfg examples/my_attention/digits-linear.yaml"""


def main(argv: list[str]) -> int:
    """Train, then print accuracy, seconds, parameters, folders of results, the pictures, and what to try next."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", action="store_true", help="train full attention too, and print both")
    parser.add_argument("--repeat", type=int, default=1, help="number of seeds (default 1)")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY VALUE", help="overrides, as for main.py")
    args = parser.parse_args(argv)
    files = [KMIP, FULL] if args.compare else [KMIP]
    for file in files:
        command = [sys.executable, ROOT / "main.py", "--cfg", ROOT / file, "--repeat", str(args.repeat)]
        if code := subprocess.call([*command, "out_dir", "results", *args.set], cwd=ROOT):
            return code
    folders = [ROOT / "results" / Path(file).stem for file in files]
    print(summary(folders[0]))
    if args.compare:
        from graphgps_kmip.report.comparison import comparison  # here: importing the package takes seconds

        print(f"\n{comparison(folders, args.repeat)}")
    print(NEXT)
    return 0


def summary(folder: Path) -> str:
    """Return what a new user wants to know about the runs in a results folder."""
    lines = ["", f"{folder.name}:"]
    for run_dir in sorted(path.parent for path in folder.glob("[0-9]*/record.json") if path.parent.name.isdigit()):
        record = json.loads((run_dir / "record.json").read_text(encoding="utf-8"))
        if record["finished"]:
            best, seconds = record["best"], record["seconds_per_epoch"]
            accuracy, pictures = 100 * best["test"]["accuracy"], sorted(path.name for path in run_dir.glob("*.png"))
            lines += [
                f"  test accuracy   {accuracy:.1f} % (epoch {best['epoch'] + 1}, best on validation)",
                f"  training        {record['wall_time']:.0f} s, {seconds:.2f} s an epoch with evaluation",
                f"  parameters      {record['params']:,}",
                f"  results         {run_dir.relative_to(ROOT)}",
                f"  pictures        {', '.join(pictures) or 'none'}",
            ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
