"""Train the quickstart and say what came out: python run/demo.py [--compare] [--repeat 1] [--set key value ...]."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    "k-MIP attention": "configs/quickstart/digits-kmip.yaml",
    "full attention": "configs/quickstart/digits-full.yaml",
}
NEXT = (
    ("every registered part", "python main.py --list"),
    ("another k, without running", f"python main.py --cfg {FILES['k-MIP attention']} --dry-run gt.kmip.k 10"),
    ("an attention of your own", "python main.py --cfg examples/my_attention/digits-linear.yaml"),
)


def main(words: list[str]) -> int:
    """Train, then print accuracy, seconds, parameters, where results lie, the pictures, and what to try next."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", action="store_true", help="train full attention too, and print both")
    parser.add_argument("--repeat", type=int, default=1, help="number of seeds (default 1)")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY VALUE", help="overrides, as for main.py")
    args = parser.parse_args(words)
    files = [ROOT / file for file in FILES.values()][: 2 if args.compare else 1]
    for file in files:
        command = [sys.executable, ROOT / "main.py", "--cfg", file, "--repeat", str(args.repeat)]
        code = subprocess.call([*command, "out_dir", "results", *args.set], cwd=ROOT)
        if code:
            return code
    folders = [ROOT / "results" / file.stem for file in files]
    print(summary(folders[0]))
    if args.compare:
        sys.path.insert(0, str(ROOT))
        from graphgps_kmip.report.comparison import comparison  # here: importing the package takes seconds

        print(f"\n{comparison(folders, args.repeat)}")
    print("\nTry next (in the project folder, after `source .venv/bin/activate`):")
    for what, command in NEXT:
        print(f"  {what + ':':<28} {command}")
    return 0


def summary(folder: Path) -> str:
    """Return what a new user wants to know about the runs in a results folder."""
    lines = []
    for run_dir in sorted(path.parent for path in folder.glob("[0-9]*/record.json") if path.parent.name.isdigit()):
        record = json.loads((run_dir / "record.json").read_text(encoding="utf-8"))
        if not record["finished"]:
            continue
        best = record["best"]
        facts = {
            "test accuracy": f"{100 * best['test']['accuracy']:.1f} % (epoch {best['epoch'] + 1}, best on validation)",
            "training": f"{record['wall_time']:.0f} s, {record['seconds_per_epoch']:.2f} s an epoch with evaluation",
            "parameters": f"{record['params']:,}",
            "results": str(run_dir.relative_to(ROOT)),
            "pictures": ", ".join(path.name for path in sorted(run_dir.glob("*.png"))) or "none",
        }
        lines += [f"  {what:<15} {value}" for what, value in facts.items()]
    return "\n".join(["", f"{folder.name}:", *lines])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
