"""Mutated configs through the command line, in one process: ``python -m tests.gym.fuzz FOLDER SEED COUNT``.

Each mutant changes one setting of a base config, in the YAML file or on the command line, and goes through
``--dry-run``; one in sixteen through a training epoch instead. Each prints one JSON line.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import yaml
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.command_line import run
from graphgps_kmip.compat.key_translation import UNREAD
from graphgps_kmip.data import synthetic_sample as plan
from graphgps_kmip.gym.config_defaults import rules
from graphgps_kmip.gym.config_loading import flatten, load_config
from tests.processes import HANGS

SECONDS = 20  # of processor time for one mutant; one that is still under way then counts as a hang
WALL = int(HANGS) // 2  # seconds, if it waits for something; much, for the machine may be busy
MEMORY = 24 << 30  # of address space: what would fill the machine is an error of this process instead
SMALL = {"dataset.sample": True, "optim.max_epoch": 1, "num_threads": 1, "gt.layers": 1, "gnn.layers_mp": 1}
BASES: dict[str, dict[str, Any]] = {
    "kmip": {"gt.layer_type": "GatedGCN+kMIP"},
    "bigbird": {"gt.layer_type": "GINE+BigBird"},
    "exphormer": {"gt.layer_type": "GCN+Exphormer", "prep.exp": True, "prep.num_virt_node": 1},
    "performer": {
        "gt.layer_type": "GAT+Performer",
        "dataset.node_encoder_name": "LinearNode+LapPE+RWSE",
        "posenc_LapPE.enable": True,
        "posenc_LapPE.model": "DeepSet",
        "posenc_LapPE.dim_pe": 8,
        "posenc_RWSE.enable": True,
        "posenc_RWSE.model": "Linear",
        "posenc_RWSE.dim_pe": 4,
        "posenc_RWSE.kernel.times_func": "range(1, 5)",
    },
    "gnn": {"model.type": "gnn", "gnn.layer_type": "gcnconv"},
}
VALUES: tuple[Any, ...] = (
    -1, 0, 1, 2, 3, 7, -(2**63), 2**32, 10**30, 0.5, -0.5, 1.5, 1e-30, 1e30, float("nan"), float("inf"),
    True, False, None, "", "foo", "none", "auto", "relu", "a+b", "+", "/", "..", "x" * 300, "\x00", "ä", "1e30", "[]",
    "range(0)", [], [-1], [0], ["a", 1, 1], [None], [[]], [0.5] * 3, list(range(2000)), {}, {"a": 1}, {"a": {"b": []}},
)  # fmt: skip
TEXTS = (
    "\t- a", "gt: [1, 2]\n", "gt.layers: 1\n", "!!python/object:os.system {}\n", "base: nowhere.yaml\n", "base: [a]\n",
    "base: .\n", "1: 2\n", "null: 3\n", "dataset:\n", "- a\n", "text", "", "%YAML 9.9\n---\na: 1\n",
    "gt: {layers: 1, layers: [}\n",
)  # fmt: skip


class Hang(BaseException):
    """A mutant took longer than `SECONDS`."""


def ring(*_: object) -> None:
    raise Hang


def mutants(seed: int, count: int) -> list[tuple[str, str, Any, str]]:
    """Return (base, key, value, where): every key and every odd text in turn, values at random."""
    rng = random.Random(seed)
    load_config(cfg, None, [])
    defaults = dict(flatten(cfg))
    keys = [key for key in rules(cfg) if key not in UNREAD]
    keys += ["gt", "gt.kmip", "gt.kmip.kk", "gtt", "", ".", "gt..layers"]
    rng.shuffle(keys)
    changes: list[tuple[str, str, Any, str]] = []
    for number in range(count):
        base = rng.choice(list(BASES))
        if number % 12 == 11:
            changes.append((base, "", TEXTS[(seed + number // 12) % len(TEXTS)], "text"))
        else:
            key = keys[number % len(keys)]
            near = [other for other in VALUES if key in defaults and type(other) is type(defaults[key])]
            value = rng.choice(near if near and rng.random() < 0.6 else VALUES)
            changes.append((base, key, value, rng.choice(["file", "words"])))
    return changes


def write(folder: Path, base: str, extra: dict[str, Any]) -> Path:
    tree: dict[str, Any] = {"base": str(folder / "digits.yaml")}
    for key, value in (SMALL | BASES[base] | extra).items():
        node = tree
        *parents, leaf = key.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    file = folder / "mutant.yaml"
    file.write_text(yaml.safe_dump(tree, allow_unicode=True))
    return file


def tail_of(folder: Path, mutant: tuple[str, str, Any, str]) -> list[str]:
    base, key, value, where = mutant
    if where == "text":
        (folder / "mutant.yaml").write_text(value)
        return []
    whole = any(key == other or other.startswith(f"{key}.") for other in SMALL | BASES[base]) and "." not in key
    if where == "file" and not whole:
        try:
            write(folder, base, {key: value})
            return []
        except (TypeError, AttributeError):  # a key below a leaf: only the command line can say that
            pass
    write(folder, base, {})
    text = value if isinstance(value, str) else json.dumps(value)
    return [key, text]


def attempt(folder: Path, mutant: tuple[str, str, Any, str], train: bool) -> dict[str, Any]:
    tail = tail_of(folder, mutant)
    flags = [] if train else ["--dry-run"]
    out, err, crash, code = io.StringIO(), io.StringIO(), "", None
    before, start = torch.get_num_threads(), time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WALL)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(["--cfg", str(folder / "mutant.yaml"), *flags, "out_dir", str(folder / "results"), *tail])
    except Hang:
        crash = "hang: " + traceback.format_exc()
    except Exception:
        crash = traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        torch.set_num_threads(before)
        logging.root.handlers = []
    cfg.defrost()
    error = [line for line in err.getvalue().splitlines() if line.startswith("error: ")]
    value = mutant[2][:60] if isinstance(mutant[2], str) else repr(mutant[2])[:60]
    return {
        "base": mutant[0], "key": mutant[1], "value": value, "where": mutant[3], "train": train, "code": code,
        "seconds": round(time.process_time() - start, 2), "error": error, "crash": crash,
    }  # fmt: skip


def main(folder: Path, seed: int, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.signal(signal.SIGALRM, ring)
    signal.signal(signal.SIGPROF, ring)
    warnings.simplefilter("ignore")
    plan.MAX_GRAPHS = 30  # the mutants change settings, not sizes
    root = Path(__file__).parents[2]
    (folder / "digits.yaml").write_text(f"base: {root / 'configs/quickstart/digits-kmip.yaml'}\n")
    for number, mutant in enumerate(mutants(seed, count)):
        print(json.dumps(attempt(folder, mutant, number % 16 == 15)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
