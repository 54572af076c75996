"""Connections of `actorllm serve`: who sends nothing costs nobody else anything."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from actorllm import ConfigError
from actorllm.cli.connections import Connections

from .process import Served, serving

pytestmark = pytest.mark.slow

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
PARTS = [b"", b"GET /hea", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"]
"""Of the head of a request."""


def connect(server: Served) -> socket.socket:
    url = urlsplit(server.address)
    assert url.hostname is not None
    return socket.create_connection((url.hostname, url.port), timeout=20)


def is_answered(connection: socket.socket) -> bool:
    """Whether a request of this connection gets its answer."""
    try:
        connection.sendall(HEALTH)
        found = b""
        while not found.endswith(b"}"):
            part = connection.recv(4096)
            if not part:
                return False
            found += part
    except ConnectionError:
        return False
    return found.startswith(b"HTTP/1.1 200")


def is_closed(connection: socket.socket) -> bool:
    """Wait until it is closed (True), or something comes."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_who_does_not_send_the_head_of_a_request_is_given_up(loop: str, tmp_path: Path) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    with serving(tmp_path, "--header-timeout", "0.5", "--loop", loop) as server:
        silent, again = [connect(server) for _ in PARTS], [connect(server) for _ in PARTS[1:]]
        assert all(map(is_answered, again))
        for connection, part in zip((*silent, *again), (*PARTS, *PARTS[1:]), strict=True):
            connection.sendall(part)
        assert all(map(is_closed, (*silent, *again)))
        with connect(server) as honest:
            assert is_answered(honest)
        for connection in (*silent, *again):
            connection.close()


def test_a_connection_may_be_idle_between_two_requests(tmp_path: Path) -> None:
    options = ("--header-timeout", "0.2", "--idle-timeout", "1")
    with serving(tmp_path, *options) as server, connect(server) as connection:
        connection.sendall(HEALTH * 3)
        found = b""
        while found.count(b"HTTP/1.1 200") < 3 or not found.endswith(b"}"):
            found += connection.recv(4096)
        assert is_answered(connection)
        assert is_closed(connection)


def test_the_connection_that_is_idle_for_longest_makes_room(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-connections", "4") as server:
        first, second, third, fourth = (connect(server) for _ in range(4))
        assert is_answered(first)  # of the idle ones it is now the last
        with connect(server) as fifth, connect(server) as sixth:
            assert is_answered(fifth)
            assert is_answered(sixth)
            assert [is_answered(each) for each in (first, second, third, fourth)] == [
                True,
                False,
                False,
                True,
            ]
        for each in (first, second, third, fourth):
            each.close()
        server.kill(15)
        _, log = server.ended()
    assert sum("4 connections are open" in line for line in log) == 1


def test_a_new_connection_is_closed_when_none_is_idle(tmp_path: Path) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with (
        serving(tmp_path, "--max-connections", "2") as server,
        connect(server) as first,
        connect(server) as second,
    ):
        for each in (first, second):
            each.sendall(head + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")
            assert each.recv(4096).startswith(b"HTTP/1.1 100 ")
        with connect(server) as third:
            assert not is_answered(third)
        first.sendall(b"{}")
        assert first.recv(4096).startswith(b"HTTP/1.1 400 ")
        with connect(server) as third:
            assert is_answered(third)
        second.sendall(b"{}")
        assert second.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_the_limit_of_files_is_raised_and_kept_below() -> None:
    code = (
        "from actorllm.cli.connections import Connections, num_open_files, raise_file_limit\n"
        "from actorllm.cli.protocol import Config\n"
        "config = Config(None, Connections())\n"
        "print(raise_file_limit(), config.backlog, config.max_connections + num_open_files())\n"
    )
    command = f"ulimit -Sn 150; ulimit -Hn 400; exec {sys.executable} -c '{code}'"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split()[:2] == ["400", "100"]
    assert 400 - 100 - 64 - 5 <= int(done.stdout.split()[2]) <= 400 - 100 - 64


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_connections": 0}, "max_connections must be at least 1, not 0"),
        ({"header_timeout": 0.0}, "header_timeout must be finite and above 0 seconds, not 0"),
        ({"idle_timeout": float("inf")}, "idle_timeout must be finite and above 0 seconds, not inf"),
        ({"idle_timeout": float("nan")}, "idle_timeout must be finite and above 0 seconds, not nan"),
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Connections(**given)
    assert str(caught.value) == message
