"""``python -m graphgps_kmip.check``."""

from __future__ import annotations

import sys

from graphgps_kmip.check.check_arguments import parse


def main() -> int:
    """Parse the arguments, then load torch and check."""
    args = parse()
    from graphgps_kmip.check.check_command import run

    return run(args)


if __name__ == "__main__":
    sys.exit(main())
