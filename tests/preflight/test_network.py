"""Ports that answer or do not, and variables that name interfaces."""

import socket
import threading

import pytest

from gtpo_verl.preflight.network import Listener, interface_problems, reach

INTERFACES = ["lo", "eth0", "eth1", "ib0", "ib1"]


def test_a_listener_is_reached_until_it_is_closed() -> None:
    listener = Listener()
    assert reach("127.0.0.1", listener.port, listener.answer, 5) is None
    assert reach("127.0.0.1", listener.port, listener.answer, 5) is None
    listener.close()
    problem = reach("127.0.0.1", listener.port, listener.answer, 5)
    assert problem is not None
    assert f"127.0.0.1:{listener.port}" in problem


def test_something_else_behind_the_port_is_told_apart() -> None:
    """As when two machines have the same address, or a proxy answers for everybody."""
    listener, other = Listener(), Listener()
    assert reach("127.0.0.1", listener.port, other.answer, 5) == f"something else answers at 127.0.0.1:{listener.port}"
    listener.close()
    other.close()


def test_a_port_that_accepts_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        problem = reach("127.0.0.1", port, b"x" * 32, 0.2)
    assert problem is not None
    assert "no TCP connection" in problem


def test_an_answer_in_pieces() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                for byte in b"abcd":
                    connection.sendall(bytes([byte]))

        thread = threading.Thread(target=serve)
        thread.start()
        assert reach("127.0.0.1", server.getsockname()[1], b"abcd", 5) is None
        thread.join()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NCCL_SOCKET_IFNAME": ""},
        {"NCCL_SOCKET_IFNAME": "eth"},  # a prefix
        {"NCCL_SOCKET_IFNAME": "=eth0"},
        {"NCCL_SOCKET_IFNAME": "eno,ib"},
        {"NCCL_SOCKET_IFNAME": "^lo,docker"},
        {"NCCL_SOCKET_IFNAME": "^=lo"},
        {"GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "ib1"},
        {"NCCL_IB_HCA": "mlx5_0"},
    ],
    ids=str,
)
def test_interfaces_that_exist(environment: dict[str, str]) -> None:
    assert interface_problems(environment, INTERFACES) == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("NCCL_SOCKET_IFNAME", "eno1"),
        ("NCCL_SOCKET_IFNAME", "=eth"),
        ("NCCL_SOCKET_IFNAME", "^lo,eth,ib"),
        ("NCCL_SOCKET_IFNAME", "^=lo,eth0,eth1,ib0,ib1"),
        ("GLOO_SOCKET_IFNAME", "eth"),
        ("TP_SOCKET_IFNAME", "bond0"),
    ],
)
def test_interfaces_that_do_not(variable: str, value: str) -> None:
    (problem,) = interface_problems({variable: value}, INTERFACES)
    assert problem.startswith(f"{variable}={value} ")
    assert "eth0" in problem  # what there is instead
