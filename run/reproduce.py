"""Reproduce the papers' tables and figures: entry point of a checkout, see graphgps_kmip.reproduce and ``--help``."""

import sys

from graphgps_kmip.reproduce import main

if __name__ == "__main__":
    sys.exit(main())
