"""Ray's workers, forked from the run's fork server.

ray/_private/node.py (`Node.__init__`) names the program that starts workers, `setup_worker.py`, which imports Ray to
read a line of JSON and then starts Python a second time, where all imports begin. In its place comes this file.
"""

import json
import os
import re
import sys
from collections.abc import Mapping

from gtpo_verl.verl_plugin.fork_server.client import NUMBER, fork

_CONTEXT = "--serialized-runtime-env-context="
_LANGUAGE = "--language="


def install() -> None:
    """Makes this file the program of the next Ray that this process starts."""
    from ray._private.parameter import RayParams

    initialize = RayParams.__init__

    def with_our_program(self, *args, **kwargs) -> None:
        kwargs.setdefault("setup_worker_path", __file__)
        initialize(self, *args, **kwargs)

    RayParams.__init__ = with_our_program  # type: ignore[method-assign]


def environment_of_all() -> dict[str, str]:
    """What Ray's library reads from the environment when it is loaded, which is before the fork, so that it must be the
    same in all workers: the process whose end ends them (the driver, with which their raylet ends too), and the job,
    the first of a Ray that the run starts."""
    return {"RAY_RAYLET_PID": str(os.getpid()), "RAY_JOB_ID": "01000000"}


def with_variables(environment: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """As a runtime environment sets them (ray/_private/utils.py, `update_envs`): one after another, `$NAME` and
    `${NAME}` in them replaced. Not by that function, whose import takes as long as Ray's."""
    result = dict(environment)
    for name, value in variables.items():
        known = re.sub(r"\$(\w+|\{[^}]*\})", lambda it: result.get(it[1].strip("{}"), it[0]), value, flags=re.ASCII)
        result[name] = re.sub(r"\$\{[A-Z0-9_]+\}", "", known)
    return result


def main(arguments: list[str]) -> None:
    """The program: `setup_worker.py`, for workers that need nothing but environment variables of their own."""
    options = {option: value for option in (_CONTEXT, _LANGUAGE) for value in arguments if value.startswith(option)}
    context = json.loads(options.get(_CONTEXT, _CONTEXT + "{}").removeprefix(_CONTEXT))
    plain = (
        options.get(_LANGUAGE) == _LANGUAGE + "PYTHON"
        and arguments[0].endswith(".py")
        and not (context.get("command_prefix") or context.get("override_worker_entrypoint"))
        and context.get("py_executable", sys.executable) == sys.executable
    )
    worker = [argument for argument in arguments if argument not in options.values()]
    try:
        if not plain:
            raise OSError("not a worker of the run's own Python")
        connection = fork(worker, [0, 1, 2], with_variables(os.environ, context.get("env_vars", {})))
        if len(connection.recv(NUMBER.size)) < NUMBER.size:
            raise OSError("the fork server has ended")
    except (OSError, KeyError) as error:
        print(f"Ray starts this worker by itself: {error!r}", file=sys.stderr, flush=True)
        from ray._private.workers import setup_worker

        os.execv(sys.executable, [sys.executable, setup_worker.__file__, *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
