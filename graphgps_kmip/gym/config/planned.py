"""What a command line would train, without training it: its config hash and its results folder."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch_geometric.graphgym.config import cfg

from graphgps_kmip.common.project import find_config
from graphgps_kmip.gym.config.config_hash import config_hash
from graphgps_kmip.gym.config.config_loading import load_config, parse_overrides, read_settings
from graphgps_kmip.gym.config.pretrained import adopt_settings
from graphgps_kmip.gym.running.experiment import configured, planned_runs, results_folder
from graphgps_kmip.results.run_folder import check_name


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
    with _quiet():
        load_config(cfg, find_config(Path(words[1]), root), list(words[2:]))
        adopt_settings()
        with configured(planned_runs(1)[0]):
            return config_hash(cfg)


@contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # what a config says of itself belongs to the run
    try:
        yield
    finally:
        logging.disable(before)
