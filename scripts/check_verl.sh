#!/usr/bin/env bash
# What of our assumptions holds for another verl: installs it beside .venv, in a folder of its own, and runs the contract
# tests against it.
# usage: scripts/check_verl.sh VERSION_OR_PATH     (0.9.0, or a checkout of verl)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
wanted=${1:?usage: scripts/check_verl.sh VERSION_OR_PATH}
scripts/setup.sh
overlay=$(mktemp -d)
trap 'rm -rf "$overlay"' EXIT
if [ -e "$wanted" ]; then source=$(cd "$wanted" && pwd); else source="verl==$wanted"; fi
.venv/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --target "$overlay" "$source"
export PYTHONPATH="$overlay${PYTHONPATH:+:$PYTHONPATH}"
.venv/bin/python -c 'import importlib.metadata as m, verl; print("verl", m.version("verl"), "in", verl.__path__[0])' 2>/dev/null
.venv/bin/python -m pytest -q --disable-warnings -p no:cacheprovider tests/contract
