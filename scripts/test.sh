#!/usr/bin/env bash
# Sets up what is missing, then lint, types and tests. With --all also the slow ones; what needs a GPU never runs here, nor
# what is marked by_hand (CONTRIBUTING.md).
# usage: scripts/test.sh [--all] [pytest arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
markers="not gpu and not by_hand" all=
if [ "${1:-}" = --all ]; then all=1; shift; else markers="$markers and not slow"; fi
# The pages of report and inspect are tested in a real browser. Better said now than by a failed test in an hour.
if [ -n "$all" ] && [ $# -eq 0 ] &&
  ! command -v chromium chromium-browser google-chrome google-chrome-stable > /dev/null; then
  echo "error: --all needs Chromium: apt-get install -y --no-install-recommends chromium" >&2
  exit 1
fi
# Each of the hundreds of processes that tests start would compile again what it imports.
unset PYTHONDONTWRITEBYTECODE
scripts/setup.sh
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy gtpo_verl recipe benchmarks
.venv/bin/lint-imports
# With arguments of one's own, one pytest; else two processes for what needs no whole machine, then the training runs.
if [ $# -gt 0 ]; then exec .venv/bin/python -m pytest -m "$markers" "$@"; fi
export OMP_NUM_THREADS=1
.venv/bin/python -m pytest -n 2 -m "$markers and not e2e"
.venv/bin/python -m pytest -m "$markers and e2e" --durations=0
