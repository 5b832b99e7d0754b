"""Entry point of a checkout: ``python main.py --cfg FILE [flags] [key value ...]``; see graphgps_kmip.command_line."""

from __future__ import annotations

import sys

from graphgps_kmip.command_line import main, parse, run

__all__ = ["main", "parse", "run"]  # for scripts and tests: ``import main; main.run(["--cfg", ...])``

if __name__ == "__main__":
    sys.exit(run())
