#!/usr/bin/env bash
# Qwen2.5-32B's shape on four or eight GPUs of one node: makes the model, trains it with GTPO v2 and DAPO, saves, resumes,
# checks both against fp32 and writes the table. The same command goes on where it was stopped.
# usage: scripts/try_32b_4gpu.sh [MODEL_FOLDER] [--stages model,preflight,gtpo,resume,dapo,check,table] [--gpus 4|8]
#        [--out FOLDER] [--help]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -x "$root/.venv/bin/python" ]; then PATH="$root/.venv/bin:$PATH"; fi
# Paths are those of where it was called.
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec python3 -m benchmarks.big_model "$@"
