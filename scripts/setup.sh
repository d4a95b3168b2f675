#!/usr/bin/env bash
# Makes .venv with the pinned CPU stack and this checkout in it. Does nothing where that is done already; installs only
# what differs where .venv is of an earlier version of this checkout.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.12 python3.11 python3.10; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "error: Python 3.10, 3.11 or 3.12 is needed; PYTHON=/path/to/python names one" >&2
  exit 1
}

python=$(find_python)
lock=requirements/cpu.txt
if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 10))'; then lock=requirements/cpu-py310.txt; fi

# Both stamps are written last, so what was cut off is made anew: the first says which Python in which folder, the second
# what was installed.
base=.venv/.gtpo-verl-base stamp=.venv/.gtpo-verl-setup
wanted_base=$("$python" --version; pwd)
wanted=$(cat scripts/setup.sh pyproject.toml requirements/*.txt | sha256sum)
if [ -f "$base" ] && [ "$(cat "$base")" = "$wanted_base" ]; then
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then exit 0; fi
  echo "Updating .venv ($("$python" --version))"
else
  echo "Setting up .venv ($("$python" --version), 4 GB, some minutes)"
  "$python" -m venv --clear .venv
fi
pip=(.venv/bin/python -m pip --disable-pip-version-check install --quiet)
# A module is compiled when it is first imported, unless Python is told to keep nothing: all of them take a third of the time.
if [ -z "${PYTHONDONTWRITEBYTECODE:-}" ]; then pip+=(--no-compile); fi
if ! .venv/bin/python -c 'import importlib.metadata as m; raise SystemExit(m.version("torch").split("+")[0] != "2.13.0")' 2>/dev/null; then
  # On Linux, PyPI's torch is a CUDA build of several GB. PyTorch's own index has the CPU build; where it cannot be
  # reached, whatever the configured index calls torch 2.13.0 works too.
  if ! "${pip[@]}" --no-deps --retries 0 --timeout 15 --index-url https://download.pytorch.org/whl/cpu torch==2.13.0 2>/dev/null; then
    echo "PyTorch's index for CPU builds cannot be reached; taking torch 2.13.0 from the configured index"
    "${pip[@]}" torch==2.13.0 -c "$lock"
  fi
fi
# The lock is complete, so nothing is resolved.
"${pip[@]}" --no-deps -r "$lock"
"${pip[@]}" --no-deps --no-build-isolation --editable .
printf '%s\n' "$wanted" > "$stamp"
printf '%s\n' "$wanted_base" > "$base"
