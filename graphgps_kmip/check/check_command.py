"""The command ``python -m graphgps_kmip.check``: kernels, components and laws on this machine, a table and a JSON file.

Exit code 0 if all is right, 1 if something is wrong, 2 after a mistake on the command line.
"""

from __future__ import annotations

import datetime
import importlib
import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

import graphgps_kmip.networks  # noqa: F401 (registers k-MIP)
from graphgps_kmip.check import kernels, speed
from graphgps_kmip.check.attention_batches import Trial
from graphgps_kmip.check.attention_laws import LAWS, Law
from graphgps_kmip.check.float64_reference import Case, cases, compare_autocast, compare_float32, tiny_graphs
from graphgps_kmip.check.outcomes import FAILED, NotHere, Outcome, attempt, lines, write_json
from graphgps_kmip.common.environment import code_version, hardware, package_versions
from graphgps_kmip.errors import ConfigError, UserError
from graphgps_kmip.registry import AttentionTraits, Spec, entries

HALVES = (torch.bfloat16, torch.float16)


def run(args: Namespace) -> int:
    """Check, print the table, and return the exit code.

    Args:
        args: what `check_arguments.parse` makes of the command line.
    """
    try:
        device = _device(args.device)
        own = [_own_attention(name) for name in args.attention]
        if args.json:
            _require_folder(args.json)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    start = time.perf_counter()
    facts = {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "code": code_version(),
        "packages": package_versions(),
        "hardware": hardware(device),
        "threads": torch.get_num_threads(),
    }
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    outcomes: list[Outcome] = []
    for group in _groups(args.only if not own else ("laws",), device, own, args.debug):
        found = list(group)
        outcomes += found
        print("\n".join(lines(found)), flush=True)
    rows = speed.measure(device) if "speed" in args.only and not own else []
    if rows:
        print(f"\none graph of {rows[0]['nodes']:,} nodes, {speed.NUM_HEADS} heads of width {speed.DIM}:")
        print("\n".join(speed.table(rows)))
    wrong = sum(one.status == FAILED for one in outcomes)
    right = f"{len(outcomes) - wrong} of {len(outcomes)} right or not for this machine"
    print(f"\n{right}, {wrong} wrong, on {device}, in {time.perf_counter() - start:.0f} s")
    try:
        if args.json:
            write_json(args.json, facts, outcomes, rows)
    except OSError as error:
        print(f"error: --json {args.json}: {error.strerror}", file=sys.stderr)
        return 2
    return int(wrong > 0)


def _groups(only: tuple[str, ...], device: torch.device, own: list[Spec], debug: bool) -> Iterator[Iterator[Outcome]]:
    """Yield the outcomes of one component after the other, so that each is printed when it is done."""
    if "kernels" in only:
        for backend in kernels.backends():
            yield _of_backend(backend, device, debug)
        for name, compare in kernels.OPERATORS.items():
            yield iter([attempt("operator", name, "float32", partial(compare, device), debug)])
    if "components" in only:
        for case in cases():
            yield _of_case(case, device, debug)
    if "laws" in only:
        for spec in own or entries("attention").values():
            yield _of_laws(spec, device, debug)


def _of_backend(backend: Spec, device: torch.device, debug: bool) -> Iterator[Outcome]:
    for name, problem in kernels.problems(device):
        search = partial(kernels.compare_search, backend, problem)
        yield attempt("search backend", backend.name, name, search, debug)
        if backend.name == "keops":
            return  # it compiles for each D and K, for up to a minute


def _of_case(case: Case, device: torch.device, debug: bool) -> Iterator[Outcome]:
    tried = {"float32": partial(compare_float32, case, device)}
    tried |= {_name(half): partial(compare_autocast, case, device, half) for half in HALVES}
    tried |= {"tiny graphs": partial(tiny_graphs, case, device)}
    for name, check in tried.items():
        yield attempt(case.kind, case.name, name, check, debug)


def _of_laws(spec: Spec, device: torch.device, debug: bool) -> Iterator[Outcome]:
    for law in LAWS:
        for dtype in (torch.float64,) if law.exact or device.type == "cpu" else (torch.float64, torch.float32):
            check = partial(_obeys, law, Trial(spec, device, dtype))
            yield attempt("laws of", spec.name, f"{law.name} ({_name(dtype)})", check, debug)


def _obeys(law: Law, trial: Trial) -> None:
    if law.promise in trial.spec.traits.breaks:
        raise NotHere(f"{trial.spec.name} does not promise it")
    law.check(trial)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"--device {name}: no device of torch; use auto, cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device {name}: this package is tested on cpu and cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"--device {name}: torch sees {torch.cuda.device_count()} CUDA devices")
    return device


def _require_folder(file: Path) -> None:
    if not file.parent.is_dir() or file.is_dir():
        raise ConfigError(f"--json {file}: {'is a folder' if file.is_dir() else f'there is no folder {file.parent}'}")


def _own_attention(name: str) -> Spec:
    """Find the row that the named module registered for the class, or make one that promises everything."""
    sys.path.insert(0, os.getcwd())
    module, separator, attribute = name.partition(":")
    try:
        component = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        hint = "" if separator else " (it must be MODULE:CLASS)"
        raise ConfigError(f"--attention {name}: {error or 'cannot be imported'}{hint}") from error
    registered = (row for row in entries("attention").values() if row.component is component)
    return next(registered, Spec("attention", attribute, component, "given by --attention", traits=AttentionTraits()))
