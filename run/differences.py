"""Differences from the public codes: measures what each one does, on a small case and in training.

  python run/differences.py                       the table of docs/differences.md; trains what is missing
  python run/differences.py --only kmip_no_mask,gine_inner --effects-only

The cases are in differences.yaml: two models with the same weights on the same batches, then trainings of both.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from graphgps_kmip.data import make_loaders
from graphgps_kmip.errors import ConfigError, report_mistakes
from graphgps_kmip.gym import cfg
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.experiment import assemble
from graphgps_kmip.gym.planned_runs import configured, planned_runs
from graphgps_kmip.gym.train_modes import current_task
from graphgps_kmip.results.run_record import finished_runs

ROOT = Path(__file__).resolve().parents[1]
SIDES = ("published", "ours")
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """One difference."""

    name: str  # also of its results folders
    what: str  # description, as published
    cfg: str  # YAML file under configs/, of both sides
    published: dict[str, Any]  # settings of the public code
    both: dict[str, Any] = field(default_factory=dict)  # further settings of both sides, dotted key -> value
    ours: dict[str, Any] = field(default_factory=dict)  # settings of this package, where they are not the file's
    train: dict[str, Any] | None = field(default_factory=dict)  # of training runs only; None: not trained, see `what`

    def arguments(self, side: str, training: bool = False) -> list[str]:
        """Return the command line's keys and values of one side."""
        settings = self.both | (self.train or {} if training else {}) | getattr(self, side)
        return [word for key, value in settings.items() for word in (key, _to_yaml(value))]


def _to_yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()


def cases() -> list[Case]:
    """Return the cases of differences.yaml."""
    table = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return [Case(name, **row) for name, row in table.items()]


def effect(case: Case, dataset_dir: str) -> tuple[float, float, int]:
    """Return the relative change of outputs and of gradients, and the number of further parameters as published.

    Two batches of 4 graphs (or one graph twice), float64, no dropout, statistics of the batch, equal weights.
    """
    pred, grad, weights = _pass(case, "ours", dataset_dir, {})
    published, published_grad, published_weights = _pass(case, "published", dataset_dir, weights)
    common = [name for name in grad if name in published_grad and published_grad[name].shape == grad[name].shape]
    gradients = (torch.cat([grads[name].flatten() for name in common]) for grads in (published_grad, grad))
    size, published_size = (sum(p.numel() for p in params.values()) for params in (weights, published_weights))
    return _change(published, pred), _change(*gradients), published_size - size


def _pass(case: Case, side: str, dataset_dir: str, weights: Tensors) -> tuple[Tensor, Tensors, Tensors]:
    settings = case.arguments(side) + ["dataset.dir", dataset_dir, "train.batch_size", "4", "num_threads", "1"]
    load_config(cfg, ROOT / "configs" / case.cfg, settings)
    cfg.gt.dropout = cfg.gt.attn_dropout = cfg.gnn.dropout = 0.0
    with configured(planned_runs(1)[0]):
        parts = assemble()
        task = current_task(parts.info.dim_out)
        model = parts.model.double().train()
        for name, parameter in model.named_parameters():
            if name in weights and weights[name].shape == parameter.shape:
                parameter.data = weights[name].clone()
        weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        outputs = []
        for batch in itertools.islice(make_loaders(parts.dataset, parts.info.level, 4, seed=0)[0], 2):
            batch.split, batch.progress = "train", 0.0
            torch.manual_seed(0), np.random.seed(0)
            pred, true = model(batch.apply(lambda value: value.double() if value.is_floating_point() else value))
            total, weight = task.loss(pred, true)
            (total / weight / (2 if cfg.optim.accumulation_mean else 1)).backward()
            outputs.append(pred.detach().flatten())
        return torch.cat(outputs), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, weights


def _change(published: Tensor, ours: Tensor) -> float:
    return float((published - ours).norm() / ours.norm()) if published.shape == ours.shape else float("nan")


def trained(case: Case, side: str, seeds: int, out_dir: Path, dataset_dir: str) -> list[float]:
    """Return the test scores of one side, seed by seed; finished runs are not repeated."""
    settings = case.arguments(side, training=True) + ["dataset.dir", dataset_dir, "out_dir", str(out_dir)]
    command = [sys.executable, str(ROOT / "main.py"), "--cfg", str(ROOT / "configs" / case.cfg), "--repeat", str(seeds)]
    done = subprocess.run([*command, *settings, "name_tag", f"{case.name}-{side}"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{case.name}, {side}: {done.stderr.strip().splitlines()[-1]}")
    runs, _ = finished_runs(out_dir / f"{Path(case.cfg).stem}-{case.name}-{side}")
    return [record["best"]["test"][record["metric_best"]] for record in list(runs.values())[:seeds]]


def row(case: Case, args: argparse.Namespace) -> str:
    """Return the line of one case in the table."""
    outputs, gradients, more = effect(case, args.dataset_dir)
    cells = [f"`{case.name}`", case.what, _percent(outputs), _percent(gradients), f"{more:+,}" if more else ""]
    for side in SIDES:
        skipped = case.train is None or args.effects_only
        scores = [] if skipped else trained(case, side, args.seeds, args.out_dir, args.dataset_dir)
        spread = f" ± {statistics.stdev(scores):.3f}" if len(scores) > 1 else ""
        cells.append(f"{statistics.mean(scores):.3f}{spread} ({len(scores)})" if scores else "")
    return f"| {' | '.join(cells)} |"


def _percent(change: float) -> str:
    if change != change:  # noqa: PLR0124 (not a number: the shapes differ)
        return "other shape"
    percent = 100 * change
    return "0" if change < 1e-12 else f"{percent:.2g} %" if percent < 99 else f"{percent:.0f} %"


@report_mistakes
def main(argv: list[str]) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="NAMES", help="cases, joined by commas (default all)")
    parser.add_argument("--effects-only", action="store_true", help="small cases only, no training")
    parser.add_argument("--seeds", type=int, default=3, help="training runs of each side (default 3)")
    parser.add_argument("--out_dir", type=Path, default=Path("results/differences"), help="where the runs go")
    parser.add_argument("--dataset_dir", default="./datasets", help="where Cora is (dataset.dir)")
    args = parser.parse_args(argv)
    table = {case.name: case for case in cases()}
    names = [name for name in args.only.split(",") if name] or list(table)
    if unknown := [name for name in names if name not in table]:
        raise ConfigError(f"--only: no case {unknown[0]!r}: choose of {', '.join(table)}")
    print("| difference | as published | outputs | gradients | parameters | test score, published | ours |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        print(row(table[name], args), flush=True)
    return 0


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    sys.exit(main(sys.argv[1:]))
