"""What a command line would train, without training it: its config hash."""

from __future__ import annotations

import functools
import logging
from pathlib import Path

from torch_geometric.graphgym.config import cfg

from graphgps_kmip.gym.experiment import configured, planned_runs
from graphgps_kmip.gym.fingerprint import config_hash
from graphgps_kmip.gym.load import load_config
from graphgps_kmip.gym.pretrained import adopt_settings


def planned_hash(words: list[str], root: Path) -> str:
    """Return the config hash that ``main.py`` with these words will write into record.json.

    Args:
        words: ``--cfg FILE key value ...``.
        root: folder that a relative FILE is in.

    Raises:
        ConfigError: the command line is not valid.
    """
    return _hash(tuple(words), root)


@functools.cache
def _hash(words: tuple[str, ...], root: Path) -> str:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # what a config says of itself belongs to the run
    try:
        load_config(cfg, root / words[1], list(words[2:]))
        adopt_settings()
        with configured(planned_runs(1)[0]):
            return config_hash(cfg)
    finally:
        logging.disable(before)
