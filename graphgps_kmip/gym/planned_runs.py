"""Planned runs: seeds, splits and folders of a config, and the config hash of a command line, without training."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch_geometric.graphgym.config import cfg

from graphgps_kmip.common.atomic_write import temporary_ending
from graphgps_kmip.common.project import find_config
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_hash import config_hash
from graphgps_kmip.gym.config_loading import load_config, parse_overrides, read_settings
from graphgps_kmip.gym.estimator_settings import adopt_estimator, quiet
from graphgps_kmip.gym.pretrained import adopt_settings
from graphgps_kmip.ranges import SEED, refusal, whole
from graphgps_kmip.results.run_folder import RESERVED, check_name

REPEATS = whole(1, 100_000)  # a slip of a digit would else fill the memory with planned runs


@dataclass(frozen=True)
class Run:
    """One training: the name of its folder, its seed and its split; of a sparse network also where its scores are."""

    name: str
    seed: int
    split_index: int
    scores: str = ""


def planned_runs(repeat: int) -> list[Run]:
    """Return the runs of the loaded config: ``repeat`` seeds from ``cfg.seed`` on, or ``cfg.run_multiple_splits``.

    Raises:
        ConfigError: both are asked for, ``repeat`` is not of `REPEATS`, a split is no index, or a name would lead out
            of its folder.
    """
    check_names()
    if why := refusal(REPEATS, repeat):
        raise ConfigError(f"--repeat: {why}")
    for split in cfg.run_multiple_splits:
        if isinstance(split, bool) or not isinstance(split, int) or split < 0:
            raise ConfigError(f"run_multiple_splits: {split!r} is no index of a split: give whole numbers from 0 on")
    if not cfg.run_multiple_splits:
        if not SEED.allows(cfg.seed + repeat - 1):
            raise ConfigError(f"--repeat {repeat} from seed {cfg.seed} on: a seed is {SEED}: lower one of the two")
        seeds = range(cfg.seed, cfg.seed + repeat)
        return [Run(str(seed), seed, cfg.dataset.split_index) for seed in seeds]
    if repeat > 1:
        raise ConfigError("--repeat and run_multiple_splits exclude each other: drop one of them")
    return [Run(str(split), cfg.seed, split) for split in cfg.run_multiple_splits]


def check_names() -> None:
    """Refuse a ``name_tag`` or ``cfg_dest`` that leads out of its folder, or that would overwrite results.

    Raises:
        ConfigError: it is no plain name; names the key.
    """
    check_name(cfg.name_tag, "name_tag")
    check_name(cfg.cfg_dest, "cfg_dest", ending=temporary_ending())
    if not cfg.cfg_dest or cfg.cfg_dest in RESERVED:
        raise ConfigError(
            f"cfg_dest: {cfg.cfg_dest!r} cannot name the config of a run, whose folder has other files of these names: "
            "give another one, such as config.yaml"
        )


def set_out_dir(file: Path) -> None:
    """Set ``cfg.out_dir`` to the folder of the experiment, see `results_folder`."""
    cfg.out_dir = str(results_folder(file, cfg.out_dir, cfg.name_tag, cfg.dataset.sample))


def results_folder(file: Path, out_dir: str, name_tag: str, sample: bool) -> Path:
    """Return ``<out_dir>/<name of the YAML>[-<name_tag>]``, GraphGPS's naming.

    Runs on sample data have a root of their own, ``<out_dir>-sample``: they must never stand among results.

    Raises:
        ConfigError: this is no name that a folder can have.
    """
    tag = f"-{name_tag}" if name_tag else ""
    check_name(file.stem, "name_tag, with the name of the file" if tag else "--cfg", ending=tag)
    return Path(f"{out_dir.rstrip('/')}-sample" if sample else out_dir) / f"{file.stem}{tag}"


@contextmanager
def configured(run: Run) -> Iterator[None]:
    """Set ``cfg`` for one run, and put it back afterwards."""
    before = cfg.clone()
    cfg.seed, cfg.dataset.split_index = run.seed, run.split_index
    cfg.run_dir = str(Path(cfg.out_dir) / run.name)
    cfg.spexphormer.scores = run.scores or cfg.spexphormer.scores
    try:
        yield
    finally:
        cfg.defrost()
        cfg.clear()
        cfg.update(before)


def planned_hash(words: list[str], root: Path) -> str:
    """Return the config hash that ``main.py`` with these words will write into record.json.

    Args:
        words: ``--cfg FILE key value ...``.
        root: folder that a relative FILE is in.

    Raises:
        ConfigError: the command line is not valid.
    """
    return _hash(tuple(words), root)


def planned_folder(words: list[str], root: Path) -> Path:
    """Return the results folder, above its seeds, that ``main.py`` with these words will write.

    Custom modules are not imported: those of several configs may have one name.

    Args:
        words: ``--cfg FILE key value ...``.
        root: folder that a relative FILE is in.

    Raises:
        ConfigError: the command line is not valid.
    """
    file = find_config(Path(words[1]), root)
    settings = {key: value for key, value, _ in read_settings(file)} | dict(parse_overrides(list(words[2:])))
    tag, out_dir = (settings.get(key, default) for key, default in (("name_tag", ""), ("out_dir", "results")))
    check_name(str(tag), "name_tag")
    return results_folder(file, str(out_dir), str(tag), settings.get("dataset.sample") in (True, "True"))


@functools.cache
def _hash(words: tuple[str, ...], root: Path) -> str:
    with quiet():  # what a config says of itself belongs to the run
        load_config(cfg, find_config(Path(words[1]), root), list(words[2:]))
        adopt_settings()
        adopt_estimator(list(words[2:]))
        with configured(planned_runs(1)[0]):
            return config_hash(cfg)
