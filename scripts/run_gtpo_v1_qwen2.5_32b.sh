#!/usr/bin/env bash
# GTPO v1: a weight per token, on Qwen2.5-32B and DAPO-Math-17k, 16 nodes of 8 GPUs.
# scripts/submit.sh says which variables it reads.
# usage: scripts/run_gtpo_v1_qwen2.5_32b.sh [scale=32b_8x8] [any Hydra override]
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/submit.sh" algorithm=gtpo_v1 "$@"
