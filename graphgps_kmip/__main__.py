"""``python -m graphgps_kmip`` is ``python main.py`` where the package is installed without its repository."""

from __future__ import annotations

import sys

from graphgps_kmip.command_line import run

if __name__ == "__main__":
    sys.exit(run())
