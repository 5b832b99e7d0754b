"""Components with one option at its largest allowed value, built and called: ``python -m tests.laws.largest_options``.

One line goes to standard output for each option that takes too long or fails in another way than a line for its user.
"""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import graphgps_kmip.networks  # noqa: F401 (registers k-MIP)
from graphgps_kmip.errors import is_users
from graphgps_kmip.ranges import Either, Range, Rule
from graphgps_kmip.registry import Spec, entries
from graphgps_kmip.signatures import read_rules
from graphgps_kmip.testing.laws import DIM, NUM_HEADS, Trial, attend

SECONDS = 20  # of processor time; what is allowed takes less than one, most of it for 1,000 layers
MEMORY = 6 << 30  # of address space: what would fill the machine is an error here


def largest(rule: Rule) -> float | None:
    """Return the largest number that a rule allows; None where it is not about numbers."""
    if isinstance(rule, Either):
        return next(filter(None, map(largest, rule.rules)), None)
    if not isinstance(rule, Range):
        return None
    high = 2**62 if rule.high is None else rule.high
    return high - 1e-9 if rule.below else high


def options() -> Iterator[tuple[Spec, str, float]]:
    """Yield attentions and message passing layers with the name and largest value of each of their numbers."""
    for kind in ("attention", "message_passing"):
        for spec in entries(kind).values():
            for name, rule in read_rules(spec.component).items():
                if name in spec.options and (value := largest(rule)) is not None:
                    yield spec, name, value


class TooLong(Exception):
    """A call took longer than `SECONDS`."""


def stop(*_: object) -> None:
    raise TooLong


def call(spec: Spec, **changes: Any) -> None:
    """Build a component, and call it on a small batch."""
    x, context = Trial(spec).batch([30, 1, 12])
    if spec.kind == "attention":
        attend(spec.component(DIM, NUM_HEADS, **changes).double(), x, context).sum().backward()
        return
    layer: nn.Module = spec.component(DIM, 0.0, **({"edge_dim": DIM} if "edge_dim" in spec.options else {}) | changes)
    layer.double()(x, context.edge_index, context.edge_attr)[0].sum().backward()


def main() -> None:
    """Try them."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.signal(signal.SIGPROF, stop)
    torch.set_num_threads(1)
    for spec, name, value in options():
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            call(spec, **{name: value})
        except Exception as error:
            if isinstance(error, MemoryError) or not is_users(
                error
            ):  # memory that was filled piece by piece, for minutes
                print(f"{spec.name}.{name} {value}: {type(error).__name__}: {error}", flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()
