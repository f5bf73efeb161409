"""Real servers for tests, as a pytest plugin: `kafka_bootstrap`, `redis_url`, `object_store`,
`spark`, `chromium`.

Each test run starts its own, on free ports, at the first test that asks, and stops them at its end.
The processes of a run share them. A test owns the topics, prefixes and buckets that it names. It
starts a server of its own to kill or to configure. A server that cannot be started fails the tests
that need it, with one line that says why.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tidemill.testkit.file_locks import alone

if TYPE_CHECKING:
    from playwright.async_api import Browser
    from pyspark.sql import SparkSession

# The process of the tests holds gRPC channels when it forks Spark's JVM: gRPC's handlers of forks
# would abort the child now and then. Set before the first import of grpc.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"  # noqa: TID251

RUN = "TESTKIT_RUN"
"""Variable with the pid of the process that began the run, for the processes that share it."""
FIRST_PORT, LAST_PORT = 20_000, 29_000
START_S_MAX = 300.0
"""Enough for the first fetch of the jars."""


@dataclass(frozen=True, slots=True)
class Server:
    """A started server: where it answers, and the script that controls it."""

    address: str
    script: Path
    environment: dict[str, str]

    def control(self, *arguments: str) -> str:
        """Run the script with `arguments`, such as `kill 1`; what it prints."""
        return _run(self.script, *arguments, environment=self.environment)


@contextmanager
def kafka_server(
    name: str = "kafka", brokers: int = 1, secure: Path | None = None
) -> Iterator[Server]:
    """A Kafka cluster of its own; `address` is the bootstrap string. Takes about four seconds.

    With `secure`, a file with a key and certificates, two ports further it wants TLS and a login.
    """
    port = _free_ports(10 * (brokers - 1) + 3)
    options = () if secure is None else ("--secure", str(secure))
    with _server(
        "infra/kafka/kafka.sh", name, "--port", str(port), "--brokers", str(brokers), *options
    ) as up:
        yield up


@contextmanager
def redis_server(name: str = "redis") -> Iterator[Server]:
    """A redis-server of its own that has every acknowledged write on disk; `address` is its URL."""
    with _server("infra/redis/redis.sh", name, "--port", str(_free_ports(1))) as up:
        yield up


@contextmanager
def redis_node(name: str) -> Iterator[Server]:
    """A redis-server of its own that is to be joined to a cluster; its bus is on the next port."""
    port = _free_ports(2)
    with _server("infra/redis/redis.sh", name, "--port", str(port), "--cluster") as up:
        yield up


@contextmanager
def object_server(name: str = "objectstore") -> Iterator[Server]:
    """An S3-compatible server of its own; `address` is its endpoint. Built at the first use."""
    script = "infra/objectstore/objectstore.sh"
    with _server(script, name, "--port", str(_free_ports(1))) as up:
        yield up


@contextmanager
def prometheus_server(target: str, rules: str, name: str = "prometheus") -> Iterator[Server]:
    """A Prometheus of its own that scrapes HOST:PORT each second; `rules` is a path in the
    checkout.
    """
    options = ("--target", target, "--rules", str(_repository() / rules))
    port = str(_free_ports(1))
    with _server("infra/prometheus/prometheus.sh", name, "--port", port, *options) as up:
        yield up


@contextmanager
def alertmanager_server(name: str = "alertmanager") -> Iterator[Server]:
    """An Alertmanager of its own that notifies nobody; `address` is its URL."""
    port = str(_free_ports(1))
    with _server("infra/alertmanager/alertmanager.sh", name, "--port", port) as up:
        yield up


@contextmanager
def kubernetes_server(name: str = "apiserver") -> Iterator[Server]:
    """A real API server without nodes; `address` is the path of its kubeconfig.

    Built at the first use.
    """
    port = str(_free_ports(3))
    with _server("infra/kubernetes/apiserver.sh", name, "--port", port) as up:
        yield up


def pytest_configure(config: pytest.Config) -> None:
    """Name the run after the process that begins it."""
    if not hasattr(config, "workerinput"):
        os.environ[RUN] = str(os.getpid())  # noqa: TID251  for the processes that share the run


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the servers that the processes of the run shared: all of these have ended."""
    if not hasattr(config, "workerinput"):
        folder = _repository() / ".state" / "tests" / str(os.getpid())
        if folder.exists():
            _wipe(folder)


@pytest.fixture(scope="session")
def kafka_bootstrap() -> str:
    """The bootstrap servers of one real broker for the whole run."""
    return shared_server("infra/kafka/kafka.sh", 3)


@pytest.fixture(scope="session")
def redis_url() -> str:
    """The URL of one real redis-server for the whole run."""
    return shared_server("infra/redis/redis.sh", 1)


@pytest.fixture
def own_redis_url() -> Iterator[str]:
    """The URL of a redis-server whose settings the test may change."""
    with redis_server("own") as server:
        yield server.address


@pytest.fixture(scope="session")
def object_store() -> str:
    """The endpoint of one real object store for the whole run: bucket tidemill, test /
    test-secret.
    """
    return shared_server("infra/objectstore/objectstore.sh", 1)


def shared_server(script: str, ports: int) -> str:
    """Address of the server of a script that all processes of the run share.

    The first caller starts it on as many free ports; the process that began the run stops it.
    """
    root = _repository()
    _stop_leftovers(root)
    run = os.environ.get(RUN, str(os.getpid()))  # noqa: TID251  set above
    state = root / ".state" / "tests" / run / f"shared-{Path(script).stem}"
    address = state / "address"
    with alone(root / ".state" / "starts", str(state)):
        if not address.exists():
            environment = {"STATE": str(state), "CACHE": str(root / ".cache")}
            port = str(_free_ports(ports))
            printed = _run(root / script, "up", "--port", port, environment=environment)
            address.write_text(printed.splitlines()[-1])
        return address.read_text()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local session for the whole run, with the jars of the Kafka connector.

    A JVM takes jars only at its start, so tests that need them and tests that do not share it.
    """
    from tidemill.spark.local_settings import LocalSettings
    from tidemill.spark.session import jars_in, local_session

    jars = _repository() / ".cache" / "spark" / "jars"
    if not jars_in(jars):
        pytest.fail(f"no jar of Spark's Kafka connector in {jars}: run infra/setup.sh spark")
    scratch = str(tmp_path_factory.mktemp("spark"))
    interrupted = signal.getsignal(signal.SIGINT)
    session = local_session("tests", LocalSettings(memory_mb=600, jars=str(jars), scratch=scratch))
    signal.signal(signal.SIGINT, interrupted)  # the session has set one of its own
    yield session
    session.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """One browser for all tests of a process, which share its event loop. Each opens a window."""
    from tidemill.testkit.browsing import browser

    async with browser() as started:
        yield started


@contextmanager
def _server(script: str, name: str, *arguments: str) -> Iterator[Server]:
    root = _repository()
    _stop_leftovers(root)
    state = root / ".state" / "tests" / str(os.getpid()) / name
    environment = {"STATE": str(state), "CACHE": str(root / ".cache")}
    printed = _run(root / script, "up", *arguments, environment=environment)
    server = Server(printed.splitlines()[-1], root / script, environment)
    try:
        yield server
    finally:
        server.control("wipe")
        if not any(state.iterdir()):  # another kind of server may have the same name
            state.rmdir()


@cache
def _repository() -> Path:
    """The checkout that this file belongs to."""
    for folder in Path(__file__).resolve().parents:
        if (folder / "infra" / "lib.sh").exists():
            return folder
    pytest.fail(
        "real servers need a checkout of the repository: infra/ was not found", pytrace=False
    )


@cache
def _stop_leftovers(root: Path) -> None:
    """Stop the servers of test runs that were killed; each folder is named by the pid of its
    run.
    """
    for folder in (root / ".state" / "tests").glob("*"):
        if folder.name.isdigit() and not Path("/proc", folder.name).exists():
            _wipe(folder)


def _wipe(folder: Path) -> None:
    """Stop all servers of a process, and remove what they wrote."""
    root = _repository()
    for state in folder.iterdir():
        for server in ("kafka", "redis", "objectstore", "prometheus", "alertmanager", "apiserver"):
            if (state / server).exists():
                folder_of = "kubernetes" if server == "apiserver" else server
                script = root / "infra" / folder_of / f"{server}.sh"
                _run(script, "wipe", environment={"STATE": str(state)})
    shutil.rmtree(folder)


def _run(script: Path, *arguments: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [str(script), *arguments],
        env={**os.environ, **environment},  # noqa: TID251  scripts need PATH and JAVA_HOME
        capture_output=True,
        text=True,
        timeout=START_S_MAX,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        pytest.fail(f"{script.stem} {' '.join(arguments)}: {said}", pytrace=False)
    return done.stdout.strip()


def _free_ports(count: int) -> int:
    """The first of `count` adjacent ports that nobody listens on."""
    begin = FIRST_PORT + os.getpid() * 50 % (LAST_PORT - FIRST_PORT)
    for port in chain(range(begin, LAST_PORT, 50), range(FIRST_PORT, begin, 50)):
        if all(_free(port + ahead) for ahead in range(count)):
            return port
    pytest.fail(f"no {count} adjacent free ports from {FIRST_PORT} to {LAST_PORT}", pytrace=False)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
