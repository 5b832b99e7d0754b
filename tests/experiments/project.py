"""A project whose main.py trains nothing: it does what its `do` setting says, and writes what main.py would write."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest

from graphgps_kmip.experiments.experiment_spec import Command, Experiment, Need, Training
from graphgps_kmip.experiments.jobs import Place

MAIN = """
import json, os, sys, time
from pathlib import Path

words = sys.argv[3:]
cfg = dict(zip(words[::2], words[1::2]))
root = cfg["out_dir"] + ("-sample" if cfg.get("dataset.sample") == "true" else "")
tag = "".join(f"-{name}" for name in [cfg["name_tag"].strip("'\\"")] if name)
run = Path(root) / (Path(sys.argv[2]).stem + tag) / cfg["seed"]
key = "|".join(f"{k}={cfg[k]}" for k in sorted(cfg) if k in ("do", "seed", "k"))
(run / "train").mkdir(parents=True, exist_ok=True)
record = {"finished": False, "config_hash": key}
(run / "record.json").write_text(json.dumps(record))
(run / "config.yaml").write_text("optim:\\n  max_epoch: 4\\n")
Path("order").open("a").write(f"{run.parent.name}/{run.name}\\n")
stats = run / "train/stats.json"
done = len(stats.read_text().splitlines()) if stats.exists() else 0
print("epochs there:", done)
if cfg.get("do") == "fail" and not Path("mended").exists():
    print("Traceback: long", file=sys.stderr)
    sys.exit("error: no such dataset 'x'")
if cfg.get("do") == "diverge":
    print("error: the loss is nan", file=sys.stderr)
    sys.exit(3)
for epoch in range(done, 4):
    with stats.open("a") as file:
        file.write(json.dumps({"epoch": epoch, "eta": 60.0}) + "\\n")
    if cfg.get("do") == "wait" and epoch >= 1:
        until = time.time() + 1200  # an orphan of a killed test ends too
        while not Path("go").exists() and time.time() < until:
            time.sleep(0.02)
record |= {"finished": True, "finished_at": "2026-01-01T00:00:00+00:00", "wall_time": 2.0, "best": {}}
(run / "record.json").write_text(json.dumps(record))
"""
TOOL = """
import sys
from pathlib import Path

out, needs = Path(sys.argv[1]), [Path(one) for one in sys.argv[2:]]
assert all((need / "record.json").exists() for need in needs)
with Path("order").open("a") as order:
    order.write(f"{out.name}\\n")
(out / "cells.json").write_text("{}")
"""

MANIFEST = """
axes: {model: {GCN: gcn, GPS+kMIP: kmip}}
experiments:
  A:
    title: Two models
    makes: [table 1]
    cost: {hours: 2, card: V100, memory_gb: 16}
    trainings:
      - {over: {model: all}, cfg: "set/{model.file}.yaml", seeds: 2}
    commands:
      look:
        run: tool.py {out} {need0}
        sample: tool.py {out} {need0}
        produces: [cells.json]
        needs: [{point: {model: GCN}, seed: 1}]
  bad:
    title: Fails
    trainings:
      - {over: {model: [GCN]}, cfg: "set/{model.file}.yaml", seeds: 1, set: {do: fail}, tag: bad}
  slow:
    title: Waits
    trainings:
      - {over: {model: [GCN]}, cfg: "set/{model.file}.yaml", seeds: 1, set: {do: wait}, tag: slow}
"""


def fake_hash(argv: list[str]) -> str:
    """The hash of the fake main.py: what of the settings it reads."""
    settings = dict(zip(argv[2::2], argv[3::2], strict=True))
    return "|".join(f"{key}={settings[key]}" for key in sorted(settings) if key in ("do", "seed", "k"))


def make_project(root: Path, sample: bool = False) -> Place:
    root.mkdir(exist_ok=True)
    (root / "main.py").write_text(MAIN)
    (root / "tool.py").write_text(TOOL)
    return Place(root, Path("results"), fake_hash, sample)


def make_command_line(reproduce: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_project(root)
    (root / "experiments").mkdir()
    (root / "configs/set").mkdir(parents=True)
    for name in ("gcn", "kmip"):
        (root / f"configs/set/{name}.yaml").touch()
    (root / "experiments/all.yaml").write_text(MANIFEST)
    monkeypatch.setattr(reproduce, "ROOT", root)
    monkeypatch.setattr(reproduce, "own_files", lambda: root)
    monkeypatch.setattr(reproduce, "MANIFESTS", root / "experiments")
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # which `main` adds to
    monkeypatch.setattr(reproduce, "compute_hash", fake_hash)
    monkeypatch.setattr("graphgps_kmip.train.run_recording.code_version", lambda: "v1")
    monkeypatch.chdir(root)


def training(name: str, seeds: int = 1, **settings: object) -> Training:
    return Training({"model": name}, f"set/{name.lower()}.yaml", tuple(range(seeds)), settings)


def command(name: str, *needs: Need, run: str = "") -> Command:
    """A command that checks that its needs are there."""
    text = run or " ".join(["tool.py {out}", *(f"{{need{index}}}" for index in range(len(needs)))])
    return Command(name, text, text, ("cells.json",), needs)


def experiment(name: str, *trainings: Training, commands: tuple[Command, ...] = ()) -> Experiment:
    return Experiment(name, name, trainings=trainings, commands={entry.name: entry for entry in commands})


def order(root: Path) -> list[str]:
    file = root / "order"
    return file.read_text().split() if file.exists() else []
