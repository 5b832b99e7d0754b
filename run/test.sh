#!/usr/bin/env bash
# Installs what is missing (run/setup_env.sh) and runs the default test suite: no network, no GPU, no compiler needed.
#
#   bash run/test.sh [tests/mpnn -k gatedgcn]     arguments go to pytest; paths are relative to the project folder
#
# Without arguments the tests run in as many processes as there are cores, at most 4 (each takes up to 2 GB of memory).
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd -P)
bash "$root/run/setup_env.sh"
cd "$root"
if [ $# = 0 ]; then
  cores=$(.venv/bin/python -c 'import os; print(min(os.cpu_count(), 4))')
  set -- -n "$cores" --dist worksteal
fi
exec .venv/bin/python -m pytest "$@"
