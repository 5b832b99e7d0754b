"""Where the log of a run goes: the screen, and ``logging.log`` in its folder."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from lightning_fabric import Fabric
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.logger import set_printing

from graphgps_kmip.results.run_folder import writing

SAFE = "The results so far are unchanged."


class RunLog(logging.FileHandler):
    """File of a run's log; a full disk ends the run with one line, not with a traceback for each line of the log."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name that logging calls)
        """Raise an error of the operating system, once, as a `RunFolderError`."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        logging.root.removeHandler(self)
        with writing(Path(self.baseFilename), SAFE):
            raise error


def log_to_run_dir(fabric: Fabric) -> None:
    """Log to screen and ``cfg.run_dir/logging.log`` as ``cfg.print`` says; further processes show warnings only.

    Raises:
        RunFolderError: the file cannot be written, now or later.
    """
    if not fabric.is_global_zero:
        logging.basicConfig(level=logging.WARNING, format=f"process {fabric.global_rank}: %(message)s", force=True)
        return
    with writing(Path(cfg.run_dir) / "logging.log", SAFE):
        set_printing()
        for handler in [one for one in logging.root.handlers if isinstance(one, logging.FileHandler)]:
            logging.root.removeHandler(handler)
            handler.close()
            ours = RunLog(handler.baseFilename)
            ours.setFormatter(handler.formatter)
            logging.root.addHandler(ours)
