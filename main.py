"""Entry point of a checkout: ``python main.py --cfg FILE [flags] [key value ...]``."""

from __future__ import annotations

import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the imports take seconds: Ctrl-C ends them without a traceback

from graphgps_kmip.gym.command_line import main, parse, run  # noqa: E402

__all__ = ["main", "parse", "run"]  # for scripts and tests: ``import main; main.run(["--cfg", ...])``

if __name__ == "__main__":
    sys.exit(run())
