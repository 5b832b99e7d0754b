"""One measured pass of a contestant in a setting: seconds by stage; and the share of true keys a search finds."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from graphgps_kmip.attention.gather import softmax_weight
from run.bench.attention_inputs import Inputs
from run.bench.search_methods import FullAttention, KMIPAttention, Search, attentions, eager_scores, searches

Pass = Callable[[], dict[str, float]]  # stage -> seconds, "total" among them

CHECKED_QUERIES = 256
ROUNDING = 1e-5  # scores of two exact searches differ by the order of summation in float32


class NotSupported(Exception):
    """The contestant cannot do this cell; the message says why."""


class Stopwatch:
    """Seconds since the last lap, after all that was queued on the device is done."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.lap()

    def lap(self) -> float:
        """Return the seconds since the last lap and start a new one."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        seconds = now - getattr(self, "last", now)
        self.last = now
        return seconds


def search_pass(name: str, inputs: Inputs, num_keys: int) -> Pass:
    """Search alone."""
    problem, row = inputs.problem(num_keys), searches()[name]
    _check(row, inputs, num_keys)

    def run() -> dict[str, float]:
        watch = Stopwatch(problem.q.device.type)
        row.search(problem)
        return {"total": watch.lap()}

    return run


def attention_pass(name: str, inputs: Inputs, num_keys: int, setting: str) -> Pass:
    """Whole attention on q, k and v as a layer's linear maps leave them, (N, H, D): inference or training."""
    device = inputs.q.device.type
    row = attentions(device)[name]
    if isinstance(row, KMIPAttention):
        _check(row.search, inputs, num_keys)
    training = setting == "training"
    leaves = [tensor.transpose(0, 1).to(row.dtype).contiguous() for tensor in (inputs.q, inputs.k, inputs.v)]
    leaves = [leaf.requires_grad_(training) for leaf in leaves]
    grad = torch.randn_like(leaves[2])

    def run() -> dict[str, float]:
        for leaf in leaves:
            leaf.grad = None
        watch = Stopwatch(device)
        with torch.set_grad_enabled(training):
            out = _forward(row, inputs, leaves, num_keys)
        forward = watch.lap()
        if not training:
            return {"total": forward}
        out.backward(grad)
        backward = watch.lap()
        return {"forward": forward, "backward": backward, "total": forward + backward}

    return run


def breakdown_pass(name: str, inputs: Inputs, num_keys: int) -> Pass:
    """Training, stage by stage.

    Full attention: scores (as "search"), softmax, weighted sum, backward. k-MIP: search, softmax, the rest of the
    forward (recomputing nothing; gather and sum), backward. Softmax is timed apart and taken off the fused forward.
    """
    device = inputs.q.device.type
    row = attentions(device)[name]
    leaves = [tensor.transpose(0, 1).contiguous().requires_grad_() for tensor in (inputs.q, inputs.k, inputs.v)]
    grad = torch.randn_like(leaves[2])
    stages = _full_stages if isinstance(row, FullAttention) else _kmip_stages
    if isinstance(row, KMIPAttention):
        _check(row.search, inputs, num_keys)

    def run() -> dict[str, float]:
        for leaf in leaves:
            leaf.grad = None
        watch = Stopwatch(device)
        seconds, out = stages(row, inputs, leaves, num_keys, watch)
        watch.lap()
        out.backward(grad)
        seconds["backward"] = watch.lap()
        return seconds | {"total": sum(seconds.values())}

    return run


def recall(name: str, inputs: Inputs, num_keys: int) -> float:
    """Share of the true top-k scores that a search finds, over at most 256 queries, by brute force in float64.

    By score and not by index, so that ties count; 1 for an exact search.
    """
    index, _ = searches()[name].search(inputs.problem(num_keys))
    graph = inputs.context.batch
    at = torch.linspace(0, inputs.q.size(1) - 1, min(CHECKED_QUERIES, inputs.q.size(1))).long().to(graph.device)
    right = total = 0
    for head in range(inputs.q.size(0)):
        q, k = inputs.q[head, at].double(), inputs.k[head].double()
        score = (q @ k.T).masked_fill(graph[at, None] != graph, -torch.inf)
        found = score.gather(1, index[head, at].clamp(min=0)).masked_fill(index[head, at] < 0, -torch.inf)
        best = score.topk(min(num_keys, k.size(0))).values
        slack = ROUNDING * (q.norm(dim=1) * k.norm(dim=1).max())[:, None]
        needed = best > -torch.inf
        found = found.sort(dim=1, descending=True).values[:, : best.size(1)]
        right += int(((found >= best - slack) & needed).sum())
        total += int(needed.sum())
    return right / total


def pairs_seen(name: str, inputs: Inputs, num_keys: int) -> dict[str, float]:
    """Share of the pairs that a search scored or screened, those of its first thresholds included; {} if unknown."""
    counts = searches()[name].counts
    if counts is None:
        return {}
    done = counts(inputs.problem(num_keys))
    return {"pairs_seen": (done.scored + done.screened) / inputs.num_pairs}


def _check(row: Search, inputs: Inputs, num_keys: int) -> None:
    reasons = row.reasons(inputs.problem(num_keys))
    if reasons:
        raise NotSupported("; ".join(reasons))


def _forward(row: FullAttention | KMIPAttention, inputs: Inputs, leaves: list, num_keys: int) -> torch.Tensor:
    if isinstance(row, FullAttention):
        return row.forward(inputs, *leaves)
    return row.search.attend(*leaves, *row.find(inputs, *leaves[:2], num_keys))


def _kmip_stages(row: KMIPAttention, inputs: Inputs, leaves: list, num_keys: int, watch: Stopwatch) -> tuple:
    index, score = row.find(inputs, *leaves[:2], num_keys)
    seconds = {"search": watch.lap()}
    with torch.no_grad():
        softmax_weight(score, leaves[0].size(-1))
    seconds["softmax"] = watch.lap()
    out = row.search.attend(*leaves, index, score)
    seconds["gather"] = max(0.0, watch.lap() - seconds["softmax"])
    return seconds, out


def _full_stages(row: FullAttention, inputs: Inputs, leaves: list, num_keys: int, watch: Stopwatch) -> tuple:  # noqa: ARG001
    if inputs.context.num_graphs > 1:
        raise NotSupported("the stages of full attention are told apart for one graph only")
    q, k, v = (leaf.transpose(0, 1) for leaf in leaves)
    score = eager_scores(q, k, None)
    seconds = {"search": watch.lap()}
    weight = score.softmax(-1)
    seconds["softmax"] = watch.lap()
    out = (weight @ v).transpose(0, 1)
    seconds["gather"] = watch.lap()
    return seconds, out
