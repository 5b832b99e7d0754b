"""Entry point of a checkout: ``python main.py --cfg FILE [flags] [key value ...]``.

The whole experiment is `run_experiment` in ``graphgps_kmip/gym/experiment.py``.
"""

from __future__ import annotations

import sys

from graphgps_kmip.command_line import parse, run

__all__ = ["parse", "run"]  # for scripts and tests: ``import main; main.run(["--cfg", ...])``

if __name__ == "__main__":
    sys.exit(run())
