"""``python -m graphgps_kmip.check``."""

from __future__ import annotations

import sys

from graphgps_kmip.check.check_command import run

sys.exit(run())
