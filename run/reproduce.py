"""Reproduce the papers' tables and figures: entry point of a checkout, see graphgps_kmip.reproduce and ``--help``."""

import sys
from pathlib import Path

# the package of this checkout, where the environment has that of another one
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphgps_kmip.reproduce import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
