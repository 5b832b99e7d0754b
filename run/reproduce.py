"""Reproduce the papers' tables and figures: entry point of a checkout, see graphgps_kmip.reproduce and ``--help``."""

import os
import sys
from pathlib import Path

# The package of this checkout, also for the scripts that are started, where the environment has that of another one.
ROOT = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, ROOT)

from graphgps_kmip.reproduce import main  # noqa: E402

if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
    sys.exit(main())
