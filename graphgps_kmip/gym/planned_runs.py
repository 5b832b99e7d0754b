"""Planned runs: the settings of a command line, the seeds, splits and folders of its runs, and their config hash."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_geometric.graphgym.config import cfg

from graphgps_kmip.common.environment import find_config
from graphgps_kmip.data.score_file import read_scores
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_hash import OF_A_RUN, config_hash, hash_settings, hashed_settings
from graphgps_kmip.gym.config_loading import load_config, parse_overrides, read_settings
from graphgps_kmip.gym.pretrained import adopt_settings
from graphgps_kmip.gym.sparse_loading import check_estimator, is_sparse, layer_degrees
from graphgps_kmip.ranges import SEED, refusal, whole
from graphgps_kmip.results.run_folder import scores_file

# Of the command line, these keys hold for both stages: the data, the place, the machine, and how a run goes on.
SHARED = frozenset(
    """out_dir accelerator devices num_threads num_workers print dataset.dir dataset.sample dataset.format dataset.name
    dataset.split dataset.split_mode dataset.split_seed dataset.split_dir train.precision train.auto_resume
    train.ckpt_period""".split()
)


@dataclass(frozen=True)
class Run:
    """One training: the name of its folder, its seed and its split."""

    name: str
    seed: int
    split_index: int


def load_settings(file: str | Path, argv: Sequence[str]) -> None:
    """Load a YAML file and a command line's keys and values into ``cfg``, with what earlier runs decide."""
    load_config(cfg, file, list(argv))
    adopt_settings()
    adopt_estimator(argv)


def planned_runs(repeat: int) -> list[Run]:
    """Return the runs of the loaded config: ``repeat`` seeds from ``cfg.seed`` on, or ``cfg.run_multiple_splits``."""
    if why := refusal(whole(1, 100_000), repeat):
        raise ConfigError(f"--repeat: {why}")
    if cfg.run_multiple_splits:
        if repeat > 1:
            raise ConfigError("--repeat and run_multiple_splits exclude each other: drop one of them")
        return [Run(str(split), cfg.seed, split) for split in cfg.run_multiple_splits]
    if not SEED.allows(cfg.seed + repeat - 1):
        raise ConfigError(f"--repeat {repeat} from seed {cfg.seed} on: a seed is {SEED}: lower one of the two")
    return [Run(str(seed), seed, cfg.dataset.split_index) for seed in range(cfg.seed, cfg.seed + repeat)]


def results_folder(file: Path, out_dir: str, name_tag: str, sample: bool) -> Path:
    """Return ``<out_dir>/<name of the YAML>[-<name_tag>]``, as GraphGPS; samples have a root ``<out_dir>-sample``."""
    tag = f"-{name_tag}" if name_tag else ""
    return Path(f"{out_dir.rstrip('/')}-sample" if sample else out_dir) / f"{file.stem}{tag}"


def set_out_dir(file: Path) -> Path:
    """Set ``cfg.out_dir`` to the `results_folder` of a YAML file, and return it."""
    folder = results_folder(file, cfg.out_dir, cfg.name_tag, cfg.dataset.sample)
    cfg.out_dir = str(folder)
    return folder


@contextmanager
def unchanged_config() -> Iterator[Any]:
    """Yield a copy of ``cfg``, whose content comes back afterwards, whatever was loaded meanwhile."""
    before = cfg.clone()
    try:
        yield before
    finally:
        cfg.defrost()
        cfg.clear()
        cfg.update(before)


@contextmanager
def configured(run: Run) -> Iterator[None]:
    """Set ``cfg`` for one run, and put it back afterwards."""
    with unchanged_config():
        cfg.seed, cfg.dataset.split_index = run.seed, run.split_index
        cfg.run_dir = str(Path(cfg.out_dir) / run.name)
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Log errors only."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def shared_arguments(argv: Sequence[str]) -> list[str]:
    """Return the keys and values of a command line that reach the estimator of a sparse network, too."""
    pairs = list(parse_overrides(argv))
    shared = SHARED | {"optim.max_epoch"} if dict(pairs).get("dataset.sample") is True else SHARED
    return [argument for key, value in pairs if key in shared for argument in (key, json.dumps(value))]


@contextmanager
def estimator_config(argv: Sequence[str], log: bool = True) -> Iterator[Path]:
    """Let ``cfg`` be the config of the estimator ``spexphormer.estimator`` for a while; yield its YAML."""
    file = Path(cfg.spexphormer.estimator)
    if not file.is_file():
        raise ConfigError(
            f"spexphormer.estimator: there is no file {file}: name the YAML of the estimator, from the folder of this "
            "config, or its scores in spexphormer.scores"
        )
    with unchanged_config() as sparse:
        with nullcontext() if log else quiet():
            load_config(cfg, file, shared_arguments(argv))
            adopt_settings()
        for key in ("accelerator", "devices"):  # one process, or one group of them, trains both
            cfg[key] = sparse[key]
        check_estimator(cfg, sparse, str(file))
        yield file


def adopt_estimator(argv: Sequence[str]) -> None:
    """Enter the hash of the estimator's settings into ``cfg``, which must be open; nothing where no scores are read."""
    if not is_sparse(cfg):
        return
    layer_degrees(cfg)
    if not (cfg.spexphormer.estimator or cfg.spexphormer.scores):
        raise ConfigError(
            "spexphormer.estimator: gt.layer_type Spexphormer draws edges by the scores of an estimator, and none is "
            "named: give its YAML, or its scores in spexphormer.scores"
        )
    if cfg.spexphormer.estimator:
        with estimator_config(argv):
            estimator_hash = config_hash(cfg, per_run=False)
        cfg.spexphormer.estimator_hash = estimator_hash
        return
    splits = cfg.run_multiple_splits
    facts = read_scores(find_scores(str(splits[0] if splits else cfg.spexphormer.estimator_seed))).facts
    cfg.spexphormer.estimator_hash, cfg.spexphormer.estimator_seed = facts["settings"], facts["seed"]


def find_scores(folder: str) -> Path:
    """Return the file that ``spexphormer.scores`` names: itself, that of a run folder, or that in a results folder."""
    path = Path(cfg.spexphormer.scores)
    places = [path, scores_file(path), scores_file(path / folder)]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise ConfigError(
            f"spexphormer.scores: there is no file {' or '.join(map(str, places))}: name the scores.pt of an "
            "estimator's run, or leave the key out and name its YAML in spexphormer.estimator"
        )
    return file


def planned_hash(argv: list[str], root: Path) -> str:
    """Return the config hash that ``main.py`` with these arguments will write into record.json.

    Command lines that differ in seed and split alone are loaded once, unless further settings follow from these.
    """
    pairs = [*zip(argv[::2], argv[1::2], strict=True)]
    shared = (root, *(pair for pair in pairs if pair[0] not in OF_A_RUN))
    if shared not in _loaded:
        _loaded[shared] = _load(argv, root)
    settings, modules, followed = _loaded[shared]
    if followed:
        settings, modules, _ = _load(argv, root)
        return hash_settings(settings, modules)
    run_settings = {key: int(value) for key, value in pairs if key in OF_A_RUN}
    others = {key: value for key, value in settings.items() if key not in run_settings}
    return hash_settings(
        others | {key: value for key, value in run_settings.items() if value}, modules
    )  # 0: the defaults


_loaded: dict[tuple[Any, ...], tuple[dict[str, Any], list[str], bool]] = {}


def _load(argv: list[str], root: Path) -> tuple[dict[str, Any], list[str], bool]:
    """Return the settings that are hashed, the user's modules, and whether other settings follow from seed or split."""
    with quiet():  # what a config says of itself belongs to the run
        load_settings(find_config(Path(argv[1]), root), argv[2:])
        with configured(planned_runs(1)[0]):
            return hashed_settings(cfg), cfg.custom_modules, bool(cfg.pretrained.dir or cfg.run_multiple_splits)


def planned_folder(argv: list[str], root: Path) -> Path:
    """Return the results folder, above its seeds, that ``main.py`` with these arguments will write.

    Custom modules are not imported: those of several configs may have one name.
    """
    file = find_config(Path(argv[1]), root)
    settings = {key: value for key, value, _ in read_settings(file)} | dict(parse_overrides(argv[2:]))
    tag, out_dir = (str(settings.get(key, default)) for key, default in (("name_tag", ""), ("out_dir", "results")))
    return results_folder(file, out_dir, tag, settings.get("dataset.sample") in (True, "True"))
