#!/usr/bin/env bash
# Builds the documentation site into docs/_build/html: its pages, tutorial and API reference. Warnings are errors.
#
#   bash run/docs.sh                arguments go to sphinx-build, such as -E: read all pages again
#
# It needs what run/setup_env.sh installs, and the extra "docs" of setup.py, which is installed at the first use.
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd -P)
cd "$root"
bash run/setup_env.sh
python=.venv/bin/python
if ! "$python" -c "import furo, myst_nb, sphinx, sphinx_copybutton" 2>/dev/null; then
  "$python" -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[docs]'
fi
"$python" -m sphinx -W --keep-going -q -j auto -b html "$@" docs docs/_build/html
echo "the site is in docs/_build/html/index.html"
