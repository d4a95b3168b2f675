#!/usr/bin/env bash
# Makes the set of runs that a manifest of benchmarks/manifests lists for this scale, goes on with what was stopped, skips
# what is done, and ends in the report.
# usage: scripts/reproduce.sh cpu|1gpu|2gpu|4gpu [--seeds 1 2 ...] [--runs dapo ...] [--results FOLDER] [--manifest FILE]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# On a machine with GPUs, the python that has their packages and gtpo-verl; for the CPU stack, .venv, made if missing.
if [ "${1:-}" = cpu ]; then scripts/setup.sh; fi
if [ -x .venv/bin/python ]; then PATH="$PWD/.venv/bin:$PATH"; fi
exec python3 -m benchmarks.reproduction "$@"
