"""The process that has imported everything, and forks one that goes on from there whenever it is asked to.

`multiprocessing.forkserver` of the standard library does so for multiprocessing alone. Ray starts programs, and what is
started here has the environment, the folder and the process group of who asks, as a program would.

usage: python -m gtpo_verl.verl_plugin.fork_server.server DESCRIPTOR MODULE PARENT
(of a listening Unix socket; to import; the process to end with)
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from gtpo_verl.runtime.ending import without_teardown
from gtpo_verl.verl_plugin.fork_server import cuda
from gtpo_verl.verl_plugin.fork_server.client import NUMBER

MULTIPROCESSING = "multiprocessing"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_REAP_SECONDS = 0.2
_MAX_DESCRIPTORS = 253  # the kernel's SCM_MAX_FD
_MOST_STARTS = 4  # of this program, each with one module less

# Environment variables that libraries set when they are imported, such as vLLM for its engine.
_set_by_imports: dict[str, str] = {}


def main(descriptor: str, module: str, parent: str) -> tuple[dict[str, Any], list[int]]:
    """Imports, then serves; ends where forks would not do, so that whoever asks for one starts a program instead."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # which ended before that call
        sys.exit()
    listener = socket.socket(fileno=int(descriptor))
    before, began = dict(os.environ), time.monotonic()
    try:
        importlib.import_module(module)
        cuda.close_nvml()
        reason = cuda.unfit()
    except cuda.InitialisedError as error:
        left_out = [*cuda.left_out_modules(), error.module]
        if len(left_out) < _MOST_STARTS:
            print(f"fork server: {error}; begins again without it", flush=True)
            listener.set_inheritable(True)
            program = [sys.executable, "-m", f"{__package__}.server", descriptor, module, parent]
            os.execve(sys.executable, program, {**before, cuda.LEFT_OUT: ",".join(left_out)})
        reason = f"{error}, as did {', '.join(left_out[:-1])}"
    except Exception as error:
        traceback.print_exc()
        reason = f"{module} cannot be imported: {error!r}"
    took = f"after {time.monotonic() - began:.1f} s"
    if reason is not None:
        print(f"fork server: not used, {took}: {reason}. Every process imports by itself", flush=True)
        sys.exit()
    print(f"fork server: ready {took}; {_state()}", flush=True)
    _set_by_imports.update({name: value for name, value in os.environ.items() if before.get(name) != value})
    gc.collect()
    gc.freeze()  # the collector would write to every object, and so copy the memory that forks share
    return serve(listener)


def _state() -> str:
    """What a fork could inherit to its harm: threads, which it does not have, and open devices."""
    threads = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            threads.append(task.joinpath("comm").read_text(encoding="utf-8", errors="replace").strip())
    devices = ", ".join(sorted(cuda.open_devices())) or "none"
    return f"threads: {', '.join(threads)}; NVIDIA devices open: {devices}"


def serve(listener: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Forks whenever asked, for ever. Returns in the forks alone: what they were asked to be, and their descriptors."""
    children: dict[int, socket.socket] = {}
    while True:
        if select.select([listener], [], [], _REAP_SECONDS)[0]:
            connection = listener.accept()[0]
            try:
                request, descriptors = _receive(connection)
            except (OSError, EOFError):  # whoever asked has ended
                connection.close()
                continue
            pid = os.fork()
            if pid == 0:
                for inherited in (listener, connection, *children.values()):
                    inherited.close()
                return request, descriptors
            # Before the answer: who asked may be the group's only member, and ends with it.
            with contextlib.suppress(OSError):
                os.setpgid(pid, request["process_group"])
            for descriptor in descriptors:
                os.close(descriptor)
            children[pid] = connection
            _send(connection, pid)
        while children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid in children:
                connection = children.pop(pid)
                _send(connection, os.waitstatus_to_exitcode(status))
                connection.close()


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    header, descriptors, _, _ = socket.recv_fds(connection, NUMBER.size, _MAX_DESCRIPTORS)
    try:
        if len(header) < NUMBER.size:
            raise EOFError
        (length,) = NUMBER.unpack(header)
        with connection.makefile("rb") as stream:
            message = stream.read(length)
        if len(message) < length:
            raise EOFError
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return json.loads(message), descriptors


def _send(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # who asked may not care any more
        connection.sendall(NUMBER.pack(number))


def become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Goes on as the program that was asked for, and ends as it does."""
    for standard in range(3):
        os.dup2(descriptors[standard], standard)
        os.close(descriptors[standard])
    os.environ.clear()
    os.environ.update({**_set_by_imports, **request["environment"]})
    os.chdir(request["folder"])
    if "ray._raylet" in sys.modules:
        # Ray's library read its variables when it was loaded; RAY_AUTH_MODE is set later, by the driver's `ray.init`.
        sys.modules["ray._raylet"].Config.initialize("")  # as ray/_private/authentication does
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # else all forks draw the same; `random` sees to that itself
    sys.argv = request["arguments"]
    if sys.argv == [MULTIPROCESSING]:
        from multiprocessing import forkserver, resource_tracker, spawn

        data, tracker, *others = descriptors[3:]
        resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined]
        forkserver._forkserver._inherited_fds = others  # type: ignore[attr-defined]
        sys.exit(spawn._main(data, os.dup(data)))  # type: ignore[attr-defined]
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    with without_teardown():
        become(*main(*sys.argv[1:]))
