#!/usr/bin/env bash
# Submits one training run to a Ray cluster, or says what it would submit.
# usage: scripts/submit.sh algorithm=gtpo_v1 [model=dapo_math] [scale=32b_16x8] [any Hydra override]
#
# From the environment (paths are those of the nodes, and every node sees them):
#   RAY_ADDRESS      the cluster's job server, e.g. http://head:8265
#   MODEL_PATH       Hugging Face folder of the model
#   TRAIN_FILE       parquet files in verl's form, such as `gtpo-verl data dapo-math-17k aime24` writes
#   VAL_FILE
#   RUNS_DIR         where metrics, logs and checkpoints go
#   GTPO_VERL_WHEEL  (optional) a wheel on this machine that travels with the job, where the nodes have no gtpo-verl
#   SUBMIT_ARGS      (optional) more arguments for `ray job submit`, e.g. "--no-wait"
#   DRY_RUN=1        print the resolved configuration and, behind a line "...", the preflight as far as it goes without
#                    a cluster; none of the above is needed, nothing starts
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -x "$root/.venv/bin/gtpo-verl" ]; then PATH="$root/.venv/bin:$PATH"; fi

given=("$@")
arguments=()

# True where the user names this key, as `key=`, `+key=` or `++key=`.
is_given() {
  local argument
  for argument in "${given[@]}"; do
    argument=${argument#+}
    if [[ ${argument#+} == "$1="* ]]; then return 0; fi
  done
  return 1
}

default() { if ! is_given "$1"; then arguments+=("$1=$2"); fi; }

# A path as Hydra reads it: quoted, so that spaces, commas and equals signs are nothing special.
path_from() {
  local key=$1 variable=$2 suffix=${3:-} value
  if is_given "$key"; then return; fi
  value=${!variable:-}
  if [ -z "$value" ]; then
    if [ -n "${DRY_RUN:-}" ]; then return; fi
    echo "error: $variable is not set; it gives $key, a path that every node sees (DRY_RUN=1 needs none)" >&2
    exit 1
  fi
  if [[ $value != /* ]]; then
    echo "error: $variable=$value is not an absolute path; the job runs in another folder, on another machine" >&2
    exit 1
  fi
  value=${value//\\/\\\\}
  arguments+=("$key='${value//\'/\\\'}$suffix'")
}

if [ "${DRY_RUN:-}" = 0 ]; then DRY_RUN=; fi
default model dapo_math
default scale 32b_16x8
prepared= # whether model and data are a task's, which are prepared in the cache
if is_given model && ! printf '%s\n' "${given[@]}" | grep -qx 'model=dapo_math'; then prepared=1; fi
if [ -z "$prepared" ]; then
  path_from actor_rollout_ref.model.path MODEL_PATH
  path_from data.train_files TRAIN_FILE
  path_from data.val_files VAL_FILE
fi
# shellcheck disable=SC2016  # Hydra's interpolations, not the shell's
path_from gtpo_verl.run_dir RUNS_DIR '/${trainer.project_name}/${trainer.experiment_name}-seed${data.seed}'
if [ -n "${RUNS_DIR:-}$prepared" ] || ! is_given gtpo_verl.run_dir; then
  path_from gtpo_verl.cache_dir RUNS_DIR /.cache
fi
arguments+=("${given[@]}")

if [ -n "${DRY_RUN:-}" ]; then
  gtpo-verl config "${arguments[@]}"
  echo "..." # where YAML ends
  exec gtpo-verl preflight --dry-run "${arguments[@]}"
fi

if [ -z "${RAY_ADDRESS:-}" ]; then
  echo "error: RAY_ADDRESS is not set; it is the cluster's job server, e.g. http://head:8265 (DRY_RUN=1 needs none)" >&2
  exit 1
fi
# Older command lines take the quotes from arguments (they join them for Windows), and Hydra's are quoted.
minimum=2.56.0
if ! version=$(ray --version 2> /dev/null); then
  echo "error: no \`ray\` to submit with: pip install 'ray[default]>=$minimum'" >&2
  exit 1
fi
version=${version##* }
if [ "$(printf '%s\n' "$minimum" "$version" | sort -V | head -n 1)" != "$minimum" ]; then
  echo "error: ray $version takes the quotes from a job's arguments: pip install 'ray[default]>=$minimum'" >&2
  exit 1
fi
# A proxy that the shell names is for the world outside: this machine's own job server is reached without it.
host=${RAY_ADDRESS#*://}
host=${host%%/*}
if [[ $host =~ :[0-9]+$ ]]; then host=${host%:*}; fi
host=${host#\[} host=${host%\]}
case $host in
  localhost | 127.* | ::1)
    export NO_PROXY="${NO_PROXY:+$NO_PROXY,}${no_proxy:+$no_proxy,}$host"
    export no_proxy=$NO_PROXY
    ;;
esac
submit=(ray job submit --address "$RAY_ADDRESS")
# No working directory is uploaded: the package carries its configuration, and data lies where every node sees it. A
# wheel travels unpacked as the working directory, which Ray puts on every worker's path: verl finds the plugin there by
# its metadata, and nothing is installed (Ray would install a wheel with all that it depends on).
if [ -n "${GTPO_VERL_WHEEL:-}" ]; then
  if [ ! -f "$GTPO_VERL_WHEEL" ]; then echo "error: GTPO_VERL_WHEEL=$GTPO_VERL_WHEEL: no such file" >&2; exit 1; fi
  unpacked=$(mktemp -d)
  trap 'rm -rf "$unpacked"' EXIT
  python3 -m zipfile -e "$GTPO_VERL_WHEEL" "$unpacked"
  submit+=(--working-dir "$unpacked")
fi
# shellcheck disable=SC2206  # several arguments, by spaces
submit+=(${SUBMIT_ARGS:-})
status=0
"${submit[@]}" -- python3 -m gtpo_verl.cli train "${arguments[@]}" || status=$?
proxy=${http_proxy:-${HTTP_PROXY:-${all_proxy:-${ALL_PROXY:-}}}}
if [ "$status" != 0 ] && [ -n "$proxy" ] && [[ ,${NO_PROXY:-}, != *",$host,"* ]]; then
  echo "note: this shell sends requests to $host through a proxy (http_proxy); NO_PROXY=$host reaches it directly" >&2
fi
exit "$status"
