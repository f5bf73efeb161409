"""The servers that tests start are real and can be killed."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.testkit.servers import Server, object_server, redis_server

pytestmark = pytest.mark.server


def ask(server: Server, *words: str) -> bytes:
    """One command to Redis in its own protocol, and the first line of the answer."""
    host, port = server.address.removeprefix("redis://").removesuffix("/0").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        parts = [f"*{len(words)}", *(f"${len(word)}\r\n{word}" for word in words)]
        connection.sendall(("\r\n".join(parts) + "\r\n").encode())
        return connection.recv(1000)


def test_what_redis_acknowledged_survives_its_death() -> None:
    with redis_server("survives") as server:
        assert ask(server, "SET", "key", "value") == b"+OK\r\n"
        server.control("kill")
        with pytest.raises(ConnectionRefusedError):
            ask(server, "PING")
        server.control("up")
        assert ask(server, "GET", "key") == b"$5\r\nvalue\r\n"
        assert "appendonly yes" in server.control("status")


def test_servers_of_two_kinds_and_one_name_end_each_by_itself() -> None:
    with redis_server("alike") as redis:
        with object_server("alike"):
            pass
        assert ask(redis, "PING") == b"+PONG\r\n"
    with pytest.raises(ConnectionRefusedError):
        ask(redis, "PING")


def test_processes_of_a_run_share_a_server(redis_url: str) -> None:
    program = (
        "from tidemill.testkit.servers import shared_server\n"
        "print(shared_server('infra/redis/redis.sh', 1))"
    )
    shown = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert shown.strip() == redis_url


def test_the_end_of_a_run_is_the_end_of_its_servers(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "test_one.py").write_text(
        "def test_one(redis_url):\n    open('address', 'w').write(redis_url)\n"
    )
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    said = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tidemill.testkit.servers", *options],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    assert "1 passed" in said
    address = (tmp_path / "address").read_text()
    assert address != redis_url
    with pytest.raises(ConnectionRefusedError):
        ask(Server(address, tmp_path, {}), "PING")


def test_a_server_that_cannot_start_fails_the_test_with_one_line() -> None:
    with redis_server("first") as first:
        port = first.address.split(":")[2].split("/")[0]
        state = f"{first.environment['STATE']}-2"
        second = Server("", first.script, {**first.environment, "STATE": state, "PORT_S_MAX": "1"})
        with pytest.raises(pytest.fail.Exception) as failure:
            second.control("up", "--port", port)
        assert str(failure.value) == (
            f"redis up --port {port}: error: another process listens on 127.0.0.1:{port}:"
            " choose another --port"
        )
