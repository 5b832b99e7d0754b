#!/usr/bin/env bash
# Installs what is missing (run/setup_env.sh) and runs the default test suite: no network, no GPU, no compiler needed.
#
#   bash run/test.sh                              everything but the tests marked thorough or slow: 6 minutes
#   bash run/test.sh --quick                      operators, layers, config loading, docs, one training: some two minutes on two cores
#   bash run/test.sh --thorough                   everything but the tests marked slow, as in CI: 8 minutes
#   bash run/test.sh tests/mpnn -k gatedgcn       arguments go to pytest; paths are relative to the project folder
#
# The first three run in as many processes as there are cores, at most 4 (each takes up to 2 GB of memory).
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd -P)
bash "$root/run/setup_env.sh"
cd "$root"

# What a change of mathematics, of a setting or of a page of the docs breaks first; nothing here starts another process.
quick=(
  tests/attention tests/mpnn tests/model tests/laws tests/task
  --ignore=tests/attention/test_triton_sparse_attention.py
  tests/search/test_backends.py tests/search/test_cpu.py tests/compat/test_checkpoint_recorded.py
  tests/gym/test_load.py tests/compat/test_dialects.py tests/test_signatures.py tests/gym/test_network.py
  tests/docs tests/experiments/test_complete.py
  tests/test_main.py::test_a_finished_run_is_not_repeated_and_overwrite_keeps_the_old_one
)
parallel=0
if [ $# = 0 ]; then
  parallel=1
elif [ "$1" = --quick ]; then
  shift
  set -- "${quick[@]}" "$@"
  parallel=1
elif [ "$1" = --thorough ]; then
  shift
  set -- -m "not slow" "$@"
  parallel=1
fi
if [ $parallel = 1 ]; then
  cores=$(.venv/bin/python -c 'import os; print(min(os.cpu_count(), 4))')
  set -- -n "$cores" --dist worksteal "$@"
fi
exec .venv/bin/python -m pytest "$@"
