#!/usr/bin/env bash
# Installs what is missing (run/setup_env.sh), trains GPS + k-MIP on the embedded digits, and prints what came out.
#
#   bash run/demo.sh [--compare]     arguments go to run/demo.py
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd -P)
bash "$root/run/setup_env.sh"
cd "$root"
exec .venv/bin/python run/demo.py "$@"
