"""The check of a machine: search backends, operators, components and laws, a line each, and a JSON file.

Times of k-MIP and of torch's full attention are for a report; numbers for claims come from ``run/bench``.
"""

from __future__ import annotations

import datetime
import importlib
import os
import statistics
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import graphgps_kmip.networks  # noqa: F401 (registers k-MIP)
from graphgps_kmip.common.atomic_write import write_json
from graphgps_kmip.common.environment import code_version, hardware, package_versions
from graphgps_kmip.errors import ConfigError, report_mistakes
from graphgps_kmip.ops.sparse_attention import sparse_attention
from graphgps_kmip.registry import AttentionTraits, Spec, entries
from graphgps_kmip.search import topk_inner_product
from graphgps_kmip.testing import comparisons
from graphgps_kmip.testing.comparisons import NotHere
from graphgps_kmip.testing.laws import LAWS, Law, Trial

OK, FAILED, SKIPPED = "ok", "FAILED", "skipped"
Outcome = dict[str, Any]
Check = tuple[str, Callable[[], str | None]]  # case, and a function that returns a detail or raises


@report_mistakes
def run(args: Namespace) -> int:
    """Check, print the table, and return the exit code; arguments are those of `graphgps_kmip.check`."""
    device = _find_device(args.device)
    specs = [_find_attention(name) for name in args.attention]
    if args.json and (args.json.is_dir() or not args.json.parent.is_dir()):
        raise ConfigError(f"--json {args.json}: is a folder, or there is no folder {args.json.parent}")
    parts = ("laws",) if specs else args.only
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
    for kind, name, checks in list_checks(parts, device, specs):
        outcomes += (group := [attempt(kind, name, case, check, args.debug) for case, check in checks])
        print("\n".join(list_lines(group)), flush=True)
    speed = list(measure_times(device)) if "speed" in parts else []
    for row in speed:
        print(f"{row['what']:20} {row['method']:36} {row.get('why') or format(row['ms'], '10.2f') + ' ms'}")
    wrong = sum(outcome["status"] == FAILED for outcome in outcomes)
    right = f"{len(outcomes) - wrong} of {len(outcomes)} right or not for this machine"
    print(f"\n{right}, {wrong} wrong, on {device}, in {time.perf_counter() - start:.0f} s")
    if args.json:
        write_json(args.json, facts | {"outcomes": outcomes, "speed": speed})
    return int(wrong > 0)


def list_checks(
    parts: tuple[str, ...], device: torch.device, specs: list[Spec]
) -> Iterator[tuple[str, str, Iterator[Check]]]:
    """Yield kind, name and checks of each component."""
    if "kernels" in parts:
        for backend in entries("search_backend").values():
            # KeOps compiles for each D and K, for up to a minute
            problems = comparisons.PROBLEMS[:1] if backend.name == "keops" else comparisons.PROBLEMS
            yield "search backend", backend.name, _list_searches(backend, problems, device)
        for name, make in comparisons.OPERATORS.items():
            yield "operator", name, [("float32", lambda make=make: comparisons.compare_operator(*make(device)))]
    if "components" in parts:
        for kind in ("attention", "message_passing"):
            for name, spec in entries(kind).items():
                yield kind.replace("_", " "), name, [("float32", partial(comparisons.compare_layer, spec, device))]
    if "laws" in parts:
        for spec in specs or entries("attention").values():
            yield "laws of", spec.name, _list_laws(spec, device)


def _list_searches(backend: Spec, problems: Iterable[tuple[int, int]], device: torch.device) -> Iterator[Check]:
    for dim, num_keys in problems:
        problem = comparisons.draw_search(device, dim, num_keys)
        yield f"D = {dim}, K = {num_keys}", partial(comparisons.compare_search, backend, problem)


def _list_laws(spec: Spec, device: torch.device) -> Iterator[Check]:
    for law in LAWS:
        for dtype in (torch.float64,) if law.exact or device.type == "cpu" else (torch.float64, torch.float32):
            yield f"{law.name} ({_name(dtype)})", partial(_check_law, law, Trial(spec, device, dtype))


def _check_law(law: Law, trial: Trial) -> None:
    if law.promise in trial.spec.traits.breaks:
        raise NotHere(f"{trial.spec.name} does not promise it")
    law.check(trial)


def attempt(kind: str, name: str, case: str, check: Callable[[], str | None], debug: bool = False) -> Outcome:
    """Run a check, which returns a detail or raises (`NotHere` if it is impossible here), and return its outcome."""
    start = time.perf_counter()
    try:
        status, detail = OK, check() or ""
    except NotHere as reason:
        status, detail = SKIPPED, str(reason)
    except Exception as error:  # compilers, drivers and kernels raise anything
        if debug:
            traceback.print_exc()
        status, detail = FAILED, f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
    seconds = time.perf_counter() - start
    return {"kind": kind, "name": name, "tried": case, "status": status, "detail": detail, "seconds": seconds}


def list_lines(outcomes: list[Outcome]) -> list[str]:
    """Return a line for a component, and one for each reason of a failure or a skipped case."""
    passed = [outcome for outcome in outcomes if outcome["status"] == OK]
    details = "; ".join(f"{outcome['tried']} {outcome['detail']}" for outcome in passed if outcome["detail"])
    reasons: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        if outcome["status"] != OK:
            reasons.setdefault((outcome["status"], outcome["detail"]), []).append(outcome["tried"])
    status = FAILED if any(status == FAILED for status, _ in reasons) else OK if passed else SKIPPED
    title = f"{outcomes[0]['kind']} {outcomes[0]['name']}"
    head = f"{status:7}  {title}  {len(passed)} of {len(outcomes)}  {details}".rstrip()
    return [head, *(f"         {status}: {'; '.join(cases)}: {detail}" for (status, detail), cases in reasons.items())]


NUM_HEADS, DIM, NUM_KEYS, REPEATS = 4, 16, 10, 3
NUM_NODES = {"cuda": 100_000, "cpu": 8_192}


def measure_times(device: torch.device) -> Iterator[Outcome]:
    """Yield rows: what ("forward and backward" or "search"), method, milliseconds (median), or why it cannot run."""

    def kmip(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        index, score = topk_inner_product(q.detach(), k.detach(), num_keys=NUM_KEYS)
        return sparse_attention(*(heads.transpose(0, 1) for heads in (q, k, v)), index, score)

    def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(q[None], k[None], v[None])

    def search(backend: str, q: Tensor, k: Tensor, _v: Tensor) -> Tensor:
        return topk_inner_product(q.detach(), k.detach(), num_keys=NUM_KEYS, backend=backend)[1]

    methods = [("forward and backward", "k-MIP", kmip, torch.float32)]
    half = torch.float16 if device.type == "cuda" else torch.float32
    methods += [("forward and backward", f"torch, full attention, flash, {_name(half)}", flash, half)]
    backends = ("auto", "chunked", "keops") if device.type == "cuda" else ("auto", "chunked")
    methods += [("search", f"k-MIP, {name}", partial(search, name), torch.float32) for name in backends]
    for what, method, call, dtype in methods:
        torch.manual_seed(0)
        shape, seconds = (NUM_HEADS, NUM_NODES[device.type], DIM), []
        row = {"what": what, "method": method, "dtype": _name(dtype), "nodes": NUM_NODES[device.type], "ms": None}
        try:
            for _ in range(REPEATS + 1):  # new tensors each time: a search is remembered
                heads = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
                start = time.perf_counter()
                out = call(*heads)
                if what != "search":
                    out.square().sum().backward()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                seconds.append(time.perf_counter() - start)
            yield row | {"ms": 1000 * statistics.median(seconds[1:])}  # the first pass compiles and warms up
        except Exception as error:  # what torch or KeOps cannot do here
            yield row | {"why": " ".join(str(error).split())[:90]}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _find_device(name: str) -> torch.device:
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


def _find_attention(name: str) -> Spec:
    """Return the registry entry of the class MODULE:CLASS, or one that promises everything."""
    sys.path.insert(0, os.getcwd())
    module, separator, attribute = name.partition(":")
    try:
        component = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        hint = "" if separator else " (it must be MODULE:CLASS)"
        raise ConfigError(f"--attention {name}: {error or 'cannot be imported'}{hint}") from error
    registered = (row for row in entries("attention").values() if row.component is component)
    return next(registered, Spec("attention", attribute, component, "given by --attention", traits=AttentionTraits()))
