"""Asks the run's fork server for a process. Imports little, as Ray starts a program to do so for each worker."""

import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence

ADDRESS = "GTPO_VERL_FORK_SERVER"  # environment variable: the socket of the run's server
NUMBER = struct.Struct("q")  # as multiprocessing.forkserver writes a process id and an exit code


def fork(
    arguments: Sequence[str], descriptors: Sequence[int], environment: Mapping[str, str] | None = None
) -> socket.socket:
    """A new process in this one's place among processes: same folder, same process group.

    Args:
        arguments: path of a Python program and its arguments, or `MULTIPROCESSING` of `server`.
        descriptors: its standard input, output and error, then whatever else it gets.
        environment: this process's own by default.

    Returns:
        A connection on which the server writes the process id, a `NUMBER`, and the exit code once it has ended.

    Raises:
        OSError, KeyError: there is no server.
    """
    request = {
        "arguments": list(arguments),
        "environment": dict(os.environ if environment is None else environment),
        "folder": os.getcwd(),
        "process_group": os.getpgid(0),
    }
    message = json.dumps(request).encode()
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(os.environ[ADDRESS])
        socket.send_fds(connection, [NUMBER.pack(len(message))], descriptors)
        connection.sendall(message)
    except BaseException:
        connection.close()
        raise
    return connection


def serves() -> bool:
    """Whether this run has a server that would answer. One that found its forks unfit has ended (`cuda.unfit`)."""
    if ADDRESS not in os.environ:
        return False
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(os.environ[ADDRESS])
        except OSError:
            return False
    return True
