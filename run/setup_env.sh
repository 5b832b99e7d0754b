#!/usr/bin/env bash
# Makes .venv in the project folder with exactly the packages of constraints.txt; run/demo.sh and run/test.sh call it.
#
#   PYTHON=/path/to/python3.12   the Python to build on: 3.11, 3.12 or 3.13 (default: the first of python3.11, python3.12,
#                                python3.13, python3, python that is one of them; the test suite is run on 3.11)
#   VERBOSE=1                    shows all that pip says (default: one line a step, the rest in .venv/install.log)
#
# pip's own settings count as always (PIP_INDEX_URL, PIP_FIND_LINKS, a pip.conf). On Linux the public torch wheel is the
# CUDA build, for which .venv needs 8 GB of disk; where pip can also see a CPU wheel of the same release, it takes that
# (3.4 GB).
#
# .venv/stamp says what .venv was made from. It reads "unfinished" until the last step is through: pip takes a package
# whose copying was cut off for installed, so an unfinished .venv is made anew. A start that finds the stamp as it
# should be does nothing else.
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd -P)
venv=$root/.venv
log=$venv/install.log

fail() {
  printf 'error: %s\n' "$1" >&2
  exit 1
}

# Sets python and its version: every pin of constraints.txt has wheels for these three.
find_python() {
  local candidate found=""
  if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; else set -- python3.11 python3.12 python3.13 python3 python; fi
  for candidate in "$@"; do
    version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || version=missing
    case $version in
      3.11 | 3.12 | 3.13)
        python=$candidate
        return
        ;;
    esac
    found="$found${found:+, }$candidate is $version"
  done
  fail "Python 3.11, 3.12 or 3.13 is needed, but $found: install one (Debian, Ubuntu: apt install python3.11-venv,\
 python3.12-venv or python3.13-venv; macOS: brew install python@3.11; conda: conda create -n py311 python=3.11) or name\
 it with PYTHON=/path/to/python3.11"
}

# What .venv depends on: first the two lines whose change means a new .venv, then the sum of the requirements.
stamp() {
  "$venv/bin/python" -c 'import sys; print(sys.version.replace("\n", " "))' 2>/dev/null || echo "no python"
  printf '%s\n' "$root"
  {
    cat "$root/constraints.txt" "$root/setup.py" "$root/pyproject.toml" "$root/run/setup_env.sh"
    grep '^__version__' "$root/graphgps_kmip/__init__.py"
  } | cksum
}

up_to_date() {
  [ -f "$venv/stamp" ] && [ "$(cat "$venv/stamp")" = "$(stamp)" ]
}

new_venv() {
  local n=1
  if [ -f "$venv/stamp" ]; then
    echo "the .venv here is unfinished, or was moved or copied here: making it anew"
    rm -rf "$venv"
  elif [ -e "$venv" ]; then   # someone else's: never deleted
    while [ -e "$venv.old-$n" ]; do n=$((n + 1)); done
    mv "$venv" "$venv.old-$n"
    echo "the .venv here was not made by this script: moved to .venv.old-$n"
  fi
  "$python" -c 'import venv, ensurepip' 2>/dev/null || fail "$python has no venv module: install it (Debian, Ubuntu: apt\
 install python$version-venv) or name another Python with PYTHON=/path/to/python3.11"
  mkdir "$venv"
  echo unfinished >"$venv/stamp"
  step "environment in $venv, with Python $version" "$python" -m venv "$venv"
}

# step WHAT COMMAND...: one line with the seconds it took; what the command says goes to the log.
step() {
  local what=$1 start=$SECONDS status=0
  shift
  if [ "${VERBOSE:-0}" = 1 ]; then
    printf '%s\n' "$what"
    "$@" 2>&1 </dev/null | tee "$log" || status=$?
  else
    printf '%s ... ' "$what"
    "$@" >"$log" 2>&1 </dev/null || status=$?
    [ "$status" = 0 ] || echo failed
  fi
  [ "$status" = 0 ] || fail "$what failed: $(grep -v '^ *$' "$log" | tail -n 1 | cut -c1-200) (see $log: is there disk\
 space, and can pip reach its registry or your mirror, PIP_INDEX_URL?)"
  printf '%s s\n' $((SECONDS - start))
}

pip_install() {
  "$venv/bin/python" -m pip install --no-input --disable-pip-version-check --progress-bar off -c constraints.txt "$@"
}

install() {
  cd "$root"
  export PIP_USER=0   # a user-wide setting would make pip refuse to install into .venv
  step "pip and setuptools" pip_install pip setuptools
  # First, so that nothing else can choose torch; the constraint keeps every later step from replacing it.
  step "$(grep -oE '^torch==[^ ]+' constraints.txt)" pip_install torch
  # Wheels only, for nothing here may need a compiler; pykeops comes as plain Python sources, which setuptools packs.
  step "the other packages" pip_install --only-binary :all: --no-binary pykeops,keopscore --no-build-isolation \
    -e '.[test,tensorboard]'
}

if up_to_date; then exit 0; fi
find_python
if [ -f "$venv/stamp" ] && [ "$(head -n 2 "$venv/stamp")" = "$(stamp | head -n 2)" ]; then
  echo "bringing $venv up to date with constraints.txt"
  echo unfinished >"$venv/stamp"
else
  echo "installing into $venv, once: a few minutes"
  new_venv
fi
install
stamp >"$venv/stamp.new"
mv "$venv/stamp.new" "$venv/stamp"
