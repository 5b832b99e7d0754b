r"""BREC's protocol: a model is trained to tell one pair of graphs apart, and Hotelling's T-square says whether it does.

Wang and Zhang (2024), section 4. A pair is 32 relabelings of G and of H. A new model is trained on it with the cosine
embedding loss of margin 0, mean max(0, cos(f(G_r), f(H_r))). Then, in eval mode, with the differences
D_r = f(G_r) - f(H_r) of width d,

.. math:: T^2 = \bar D^T \, \mathrm{cov}(D)^+ \, \bar D

and the pair is distinguished if T^2 is above 72.34, and not close to the T^2 of 64 relabelings of one of the two graphs
(the reliability test, which fails from 72.34 on). As in the public script the factor q = 32 of Hotelling's statistic is
left out. Unlike there, each pair has its own seed, and outputs that are not finite are reported.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_embedding_loss
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch_geometric.data import Batch, Data

from graphgps_kmip.common.atomic_write import Damaged, parsed_object, replace_file
from graphgps_kmip.common.forked_work import as_done
from graphgps_kmip.errors import InputError, ResultsError

log = logging.getLogger(__name__)
Result = dict[str, Any]
TOTAL = "total"
THRESHOLD = 72.34  # of T-square; the benchmark's constant
CLOSE = {"atol": 1e-6, "rtol": 1e-5}  # T-square of the pair and of its reliability test, the benchmark's isclose rule
BATCH = 16  # graphs in a batch: 8 relabelings of each graph
PairGraphs = tuple[Sequence[Data], Sequence[Data]]  # 64 graphs, G and H in turn; 64 of the reliability test


@dataclass(frozen=True)
class Protocol:
    """How a model is trained on a pair before it is tested."""

    graphs: int  # in a batch of training, the first of each `BATCH` graphs; 0: the initial weights are tested
    # end the training when the loss of an epoch is exactly 0, with the batch norms of the remaining epochs
    stops_at_zero: bool = False


PROTOCOLS: dict[str, Protocol] = {
    # the public script: 4 batches of 8 pairs in the order of the file, all epochs, the last weights
    "literal": Protocol(BATCH),
    # 8 relabelings of a pair give the loss and the gradient of one of them; where the loss is 0, the gradient is 0
    "economical": Protocol(2, stops_at_zero=True),
    "untrained": Protocol(0),
}


@dataclass(frozen=True)
class PairTest:
    """How pairs are tested.

    Args:
        model (callable): Returns a new model, ``model(batch) -> (outputs, labels)`` with a row for each graph.
        optimization (callable): Model -> its optimizer, and its schedule (stepped once per epoch) or None.
        epochs (int): Epochs of training.
        protocol (str, optional): A key of `PROTOCOLS`. (default: ``"literal"``)
        seed (int, optional): With the number of a pair it decides the initial weights. (default: ``0``)
        dtype (torch.dtype, optional): Of weights, features and the statistic. (default: ``torch.float32``)
        device (torch.device, optional): Where the model runs. (default: CPU)
        loss_threshold (float, optional): End the training when the loss of an epoch is below. (default: ``0.0``)
    """

    model: Callable[[], nn.Module]
    optimization: Callable[[nn.Module], tuple[Optimizer, Any]]
    epochs: int
    protocol: str = "literal"
    seed: int = 0
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    loss_threshold: float = 0.0

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise InputError(f"brec.protocol: expected one of {', '.join(PROTOCOLS)}, got {self.protocol!r}")
        if self.epochs < 1:
            raise InputError(f"optim.max_epoch: BREC needs at least 1 epoch, got {self.epochs}")

    @property
    def settings(self) -> dict[str, Any]:
        """All settings that decide the numbers of a model, as plain values."""
        names = ("protocol", "epochs", "seed", "loss_threshold")
        return {**{name: getattr(self, name) for name in names}, "precision": str(self.dtype).removeprefix("torch.")}


def hotelling_t2(first: Tensor, second: Tensor) -> float:
    r"""Return T-square of two samples of pairs, without the factor q.

    .. math:: \bar D^T \, \mathrm{cov}(D)^+ \, \bar D, \quad D = X - Y

    cov is the unbiased sample covariance, + the pseudo-inverse with torch's cut-off; equal differences give 0.

    Args:
        first (Tensor): Outputs X for the relabelings of one graph.
        second (Tensor): Outputs Y for those of the other.

    Shapes: (q, d) each, q at least 2.
    """
    difference = first - second
    mean = difference.mean(0)
    covariance = torch.cov(difference.T).reshape(len(mean), len(mean))
    return float(mean @ torch.linalg.pinv(covariance) @ mean)


def is_distinguished(t2: float, t2_reliability: float) -> bool:
    """Return whether a pair is distinguished: T-square above `THRESHOLD` and not that of the reliability test."""
    return t2 > THRESHOLD and not bool(np.isclose(t2, t2_reliability, **CLOSE))


def run_to_file(
    test: PairTest,
    pairs: Sequence[int],
    read_graphs: Callable[[int], PairGraphs],
    path: Path,
    num_workers: int = 1,
    tell: Callable[[Result], None] = lambda _result: None,
) -> dict[int, Result]:
    """Test the pairs that a file has no result of yet, append each result, and return all by pair.

    Args:
        test (PairTest): How pairs are tested.
        pairs (Sequence[int]): Numbers of the pairs.
        read_graphs (callable): Number of a pair -> its graphs.
        path (Path): The file, JSON lines; a new one is made.
        num_workers (int, optional): As of `run_pairs`. (default: ``1``)
        tell (callable, optional): Called with each new result. (default: nothing)
    """
    results = resume_results(path, test.settings)
    missing = [pair for pair in pairs if pair not in results]
    for result in run_pairs(test, missing, read_graphs, num_workers):
        with open(path, "ab") as file:  # on disk before the next pair
            file.write(_to_lines([result]))
            file.flush()
            os.fsync(file.fileno())
        results[result["pair"]] = result
        tell(result)
    return {pair: results[pair] for pair in pairs}


def run_pairs(
    test: PairTest, pairs: Sequence[int], read_graphs: Callable[[int], PairGraphs], num_workers: int = 1
) -> Iterator[Result]:
    """Yield the result of each pair as soon as it is there, from `num_workers` processes; see `run_to_file`."""

    def work(pair: int) -> Result:
        return run_pair(test, pair, read_graphs(pair))

    return (result for _, result in as_done("BREC pairs", work, pairs, num_workers))


def run_pair(test: PairTest, pair: int, graphs: PairGraphs) -> Result:
    """Train a new model on a pair as the protocol says, and test it.

    Args:
        test (PairTest): How the pair is tested.
        pair (int): Number of the pair.
        graphs (tuple): 64 graphs of the pair, G and H in turn, and as many of its reliability test.

    Returns:
        ``pair``; ``distinguished``; ``reliable``; ``t2`` and ``t2_reliability``, None where outputs are not finite;
        ``failed``, the reason, or ""; ``epochs``; ``first_loss``, ``last_loss``; ``loss`` of the test; ``seconds``.
    """
    began = time.perf_counter()
    with torch.random.fork_rng(devices=[]), _default_dtype(torch.float32):
        state = np.random.SeedSequence((test.seed, pair)).generate_state(1, np.uint64)[0]
        torch.manual_seed(int(state >> np.uint64(1)))
        model = test.model().to(test.device, test.dtype)
        torch.set_default_dtype(test.dtype)
        losses = _train(test, model, graphs[0]) if PROTOCOLS[test.protocol].graphs else []
        (t2, loss), (t2_reliability, _) = (_evaluate(test, model, part) for part in graphs)
    finite = math.isfinite(t2) and math.isfinite(t2_reliability)
    return {
        "pair": pair,
        "distinguished": finite and is_distinguished(t2, t2_reliability),
        "reliable": finite and t2_reliability < THRESHOLD,
        "t2": t2 if finite else None,
        "t2_reliability": t2_reliability if finite else None,
        "failed": "" if finite else "the outputs are not finite",
        "epochs": len(losses),
        "first_loss": _finite_or_none(losses[0]) if losses else None,
        "last_loss": _finite_or_none(losses[-1]) if losses else None,
        "loss": _finite_or_none(loss),
        "seconds": round(time.perf_counter() - began, 3),
    }


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _train(test: PairTest, model: nn.Module, graphs: Sequence[Data]) -> list[float]:
    """Train a model on a pair and return the loss of each epoch, up to one that is not finite."""
    protocol = PROTOCOLS[test.protocol]
    batches = [_make_batch(test, graphs[at : at + protocol.graphs], "train") for at in range(0, len(graphs), BATCH)]
    optimizer, scheduler = test.optimization(model)
    losses: list[float] = []
    model.train()
    for epoch in range(test.epochs):
        losses.append(_train_epoch(model, batches, optimizer, epoch / max(1, test.epochs - 1)))
        if isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step(losses[-1])
        elif scheduler is not None:
            scheduler.step()
        if protocol.stops_at_zero and losses[-1] == 0.0:
            _settle_batch_norms(model, batches[-1], epoch / max(1, test.epochs - 1))
            break
        if losses[-1] < test.loss_threshold or not math.isfinite(losses[-1]):
            break
    return losses


@torch.no_grad()
def _settle_batch_norms(model: nn.Module, batch: Batch, progress: float) -> None:
    """Set the running statistics of all batch norms to those of a batch, as further epochs would.

    Statistics that are still near their start can hide a difference below the rounding.
    """
    norms = [module for module in model.modules() if getattr(module, "running_mean", None) is not None]
    momenta = {norm: norm.momentum for norm in norms}
    for norm in norms:
        norm.momentum = 1.0
    batch = batch.clone()
    batch.progress = progress
    model(batch)
    for norm, momentum in momenta.items():
        norm.momentum = momentum


def _train_epoch(model: nn.Module, batches: Sequence[Batch], optimizer: Optimizer, progress: float) -> float:
    total = 0.0
    for batch in batches:
        batch = batch.clone()  # a network of another package writes into its batch
        batch.progress = progress
        outputs = model(batch)[0]
        loss = pair_loss(outputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(batches)


def pair_loss(outputs: Tensor) -> Tensor:
    """Return the mean of max(0, cos) over outputs (2 q, d) of G and H in turn."""
    apart = -torch.ones_like(outputs[0::2, 0])
    return cosine_embedding_loss(outputs[0::2], outputs[1::2], apart, margin=0.0)


@torch.no_grad()
def _evaluate(test: PairTest, model: nn.Module, graphs: Sequence[Data]) -> tuple[float, float]:
    """Return T-square and loss of 64 graphs in eval mode; NaN if an output is not finite."""
    model.eval()
    parts = []
    for at in range(0, len(graphs), BATCH):
        batch = _make_batch(test, graphs[at : at + BATCH], "test")
        batch.progress = 1.0
        parts.append(model(batch)[0].cpu())
    outputs = torch.cat(parts)  # (64, d)
    if outputs.dim() != 2 or len(outputs) != len(graphs):
        raise InputError(
            f"a model for BREC gives a row of numbers for each graph, this one {tuple(outputs.shape)} for "
            f"{len(graphs)} graphs: set gnn.head to a head of graphs"
        )
    if not bool(torch.isfinite(outputs).all()):
        return math.nan, math.nan
    return hotelling_t2(outputs[0::2], outputs[1::2]), float(pair_loss(outputs))


def _make_batch(test: PairTest, graphs: Sequence[Data], split: str) -> Batch:
    batch = Batch.from_data_list(list(graphs)).to(test.device)
    batch = batch.apply(lambda tensor: tensor.to(test.dtype) if tensor.is_floating_point() else tensor)
    batch.split = split
    return batch


def resume_results(path: Path, settings: Mapping[str, Any]) -> dict[int, Result]:
    """Return the results of a file by pair, ready to be continued; a new file gets its first line, the settings."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, _to_lines([{"settings": dict(settings)}]))
        return {}
    stored, results, damaged = _read_lines(path)
    if stored != json.loads(json.dumps(dict(settings))):
        raise ResultsError(f"{path} has results of other settings ({stored}): move it away, or set another out_dir")
    if damaged:
        log.warning("%s: the last line, which a killed run left, is removed, and its pair repeated", path)
        replace_file(path, _to_lines([{"settings": stored}, *results.values()]))
    return results


def read_results(path: Path) -> tuple[dict[str, Any], dict[int, Result]]:
    """Return settings and results by pair, in the order of pairs."""
    if not path.exists():
        raise ResultsError(f"{path} is missing: run train.mode brec first")
    settings, results, _ = _read_lines(path)
    return settings, dict(sorted(results.items()))


def _read_lines(path: Path) -> tuple[dict[str, Any], dict[int, Result], bool]:
    """Return settings, results, and whether the last line has no end, as a killed run leaves it."""
    *lines, rest = path.read_bytes().split(b"\n")
    try:
        first, *results = map(parsed_object, lines)
        return first["settings"], {result["pair"]: result for result in results}, bool(rest)
    except (Damaged, ValueError, KeyError):
        raise ResultsError(f"{path} is no file of results: move it away and run again") from None


def _to_lines(contents: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(content, allow_nan=False) + "\n" for content in contents).encode()


@dataclass(frozen=True)
class CategoryRow:
    """Counts of the pairs of a category; those that fail the reliability test may count as distinguished."""

    category: str
    pairs: int
    tested: int
    distinguished: int
    unreliable: int
    failed: int  # outputs that are not finite


def category_rows(results: Mapping[int, Result], categories: Mapping[str, Sequence[int]]) -> list[CategoryRow]:
    """Return the row of each category (name -> its pairs), and of all pairs."""
    every = sorted({pair for pairs in categories.values() for pair in pairs})
    rows = []
    for name, pairs in [*categories.items(), (TOTAL, every)]:
        tested = [results[pair] for pair in pairs if pair in results]
        distinguished = sum(result["distinguished"] for result in tested)
        failed = sum(bool(result.get("failed")) for result in tested)
        unreliable = sum(not (result.get("reliable", True) or result.get("failed")) for result in tested)
        rows.append(CategoryRow(name, len(pairs), len(tested), distinguished, unreliable, failed))
    return rows


def table_text(rows: Sequence[CategoryRow]) -> str:
    """Return the rows as text; as in the public script, failures of reliability are counted apart."""
    lines = [f"{'':<12}{'pairs':>7}{'tested':>8}{'distinguished':>15}{'unreliable':>12}{'not finite':>12}"]
    for row in rows:
        counts = f"{row.pairs:>7}{row.tested:>8}{row.distinguished:>15}{row.unreliable:>12}{row.failed:>12}"
        lines.append(f"{row.category:<12}{counts}")
    total = rows[-1]
    if total.tested:
        share = 100 * total.distinguished / total.tested
        lines.append(f"{total.distinguished} of {total.tested} tested pairs are distinguished ({share:.1f} %)")
    return "\n".join(lines)
