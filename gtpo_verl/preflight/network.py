"""Whether nodes reach one another, and whether the interfaces that NCCL and gloo are told to use exist."""

import os
import socket
import threading
from collections.abc import Collection, Mapping

_CHALLENGE = 32
_INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


class Listener:
    """A TCP port, chosen by the system, that answers every connection with the same random bytes until it is closed."""

    def __init__(self) -> None:
        self.answer = os.urandom(_CHALLENGE)
        self._socket = socket.create_server(("", 0), backlog=1024)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
                with connection:
                    connection.sendall(self.answer)
            except OSError:
                return

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()


def reach(address: str, port: int, answer: bytes, timeout: float) -> str | None:
    """Why a listener does not answer from here, within `timeout` seconds; None where it does."""
    try:
        with socket.create_connection((address, port), timeout=timeout) as connection:
            got = b""
            while len(got) < len(answer) and (part := connection.recv(len(answer))):
                got += part
    except OSError as error:
        return f"no TCP connection to {address}:{port} ({error.strerror or error})"
    return None if got == answer else f"something else answers at {address}:{port}"


def interface_problems(environment: Mapping[str, str], interfaces: Collection[str]) -> list[str]:
    """Variables that leave no interface of this machine.

    NCCL takes prefixes, by commas; `=` before them means exact names, `^` those to leave out, `^=` both. gloo and
    TensorPipe take exact names.
    """
    problems = []
    for variable in _INTERFACE_VARIABLES:
        value = environment.get(variable, "")
        names = [name.strip() for name in value.lstrip("^=").split(",") if name.strip()]
        exact = variable != "NCCL_SOCKET_IFNAME" or value.startswith(("=", "^="))
        matching = {i for i in interfaces if any(i == name if exact else i.startswith(name) for name in names)}
        left = set(interfaces) - matching if value.startswith("^") else matching
        if value and not left:
            problems.append(f"{variable}={value} leaves none of {', '.join(sorted(interfaces))}")
    return problems
