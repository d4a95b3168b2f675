#!/usr/bin/env bash
# Sets up what is missing, then lint, types and tests. With --all also the slow ones; what needs a GPU never runs here.
# usage: scripts/test.sh [--all] [pytest arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
markers="not gpu and not slow"
if [ "${1:-}" = --all ]; then markers="not gpu"; shift; fi
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy gtpo_verl recipe benchmarks
.venv/bin/lint-imports
# With arguments of one's own, one pytest; else two processes for what needs no whole machine, then the training runs.
if [ $# -gt 0 ]; then exec .venv/bin/python -m pytest -m "$markers" "$@"; fi
export OMP_NUM_THREADS=1
.venv/bin/python -m pytest -n 2 -m "$markers and not e2e"
.venv/bin/python -m pytest -m "$markers and e2e" --durations=0
