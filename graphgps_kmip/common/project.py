"""Project files: paths of the configs, experiments and scripts beside the package, or of their copies in a wheel."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
SHIPPED = PACKAGE / "shipped"  # made by setup.py in a wheel; in a checkout there is none


def own_files() -> Path:
    """Return the folder that holds our ``configs/`` and ``run/``: the checkout's root, or that inside of a wheel."""
    return SHIPPED if SHIPPED.is_dir() else PACKAGE.parent


def installed() -> bool:
    """Return whether the package runs from a wheel, without a checkout around it."""
    return SHIPPED.is_dir()


def train_command() -> str:
    """Return how a user starts a training: for messages."""
    return "graphgps-kmip" if installed() else f"python {_script('main.py')}"


def reproduce_command() -> str:
    """Return how a user starts an experiment: for messages."""
    return "graphgps-kmip-reproduce" if installed() else f"python {_script('run/reproduce.py')}"


def _script(name: str) -> str:
    return name if Path.cwd() == own_files() else shlex.quote(str(own_files() / name))


def find_config(file: Path, root: Path = Path()) -> Path:
    """Return where a config file is: as given, or else, for ``configs/...``, where our own file of that name is.

    The log says so where it is our own.

    Args:
        file: as a user wrote it.
        root (default: the working directory): folder that a relative `file` is in.

    Returns:
        The file as seen from the working directory. A name that is in neither place stays as it was given, unless only
        our own files have such a folder: then the error of whoever reads it can name near misses.
    """
    local, shipped = root / file, own_files() / file
    try:
        exists = local.exists()
    except OSError:  # a name that is too long: its reader says so, with the key that named it
        return local
    if exists or file.parts[:1] != ("configs",):
        return local
    if shipped.is_file():
        logging.info("%s: no such file here, the package's own is read: %s", local, shipped)
        return shipped
    return shipped if shipped.parent.is_dir() and not local.parent.is_dir() else local
