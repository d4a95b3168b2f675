#!/usr/bin/env bash
# Sets up what is missing, then trains DAPO and GTPO v1 on a small model and draws both curves.
# usage: scripts/quickstart.sh [model=smollm2] [any Hydra override]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
exec .venv/bin/gtpo-verl quickstart "$@"
