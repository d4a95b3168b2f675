#!/usr/bin/env bash
# GRPO-S v2: a weight per response, on Qwen2.5-32B and DAPO-Math-17k, 16 nodes of 8 GPUs.
# scripts/submit.sh says which variables it reads.
# usage: scripts/run_grpo_s_v2_qwen2.5_32b.sh [scale=32b_8x8] [any Hydra override]
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/submit.sh" algorithm=grpo_s_v2 "$@"
