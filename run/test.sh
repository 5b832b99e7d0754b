#!/usr/bin/env bash
# Installs what is missing (run/setup_env.sh) and runs the default test suite: no network, no GPU, no compiler needed.
#
#   bash run/test.sh [tests/mpnn -k gatedgcn]     arguments go to pytest; paths are relative to the project folder
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd -P)
bash "$root/run/setup_env.sh"
cd "$root"
exec .venv/bin/python -m pytest "$@"
