"""Drivers of runs that are refused, each a fork of one process, so that what they import is imported once.

usage: python refused_in_turn.py CASES   (JSON: {name: {"folder": ..., "overrides": [...], "environment": {...}}})

In each case's folder `terminal.txt` holds what the driver said; the exit codes go to standard output, as JSON.
"""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

# What a driver imports until it refuses, on a CPU.
IMPORTED = (
    "verl.utils.device",
    "verl.trainer.ppo.v1",
    "gtpo_verl.configuration.checks",
    "gtpo_verl.configuration.refusals",
    "gtpo_verl.tasks.preparation",
)


def drive(folder: str, overrides: list[str], environment: dict[str, str]) -> None:
    """As the supervisor's child, without the supervisor."""
    os.chdir(folder)
    for stream in (1, 2):
        os.dup2(os.open("terminal.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.environ.update(environment)
    sys.argv = ["main", *overrides]
    importlib.import_module("gtpo_verl.driver.main").main()


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text())
    for module in (*IMPORTED, "gtpo_verl.driver.main"):
        importlib.import_module(module)
    codes = {}
    for name, case in cases.items():
        if (child := os.fork()) == 0:
            code = 0
            try:
                drive(**case)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            except BaseException:
                traceback.print_exc()
                code = 70
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        codes[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
