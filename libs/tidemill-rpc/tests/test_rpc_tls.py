"""Connections over TLS: who is believed, what is said otherwise, and certificates that are
replaced.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from tidemill.errors import Denied, TidemillError, Unauthenticated, Unavailable, UsageError
from tidemill.rpc.channel import Dialer
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.identity import ServicesOnly
from tidemill.rpc.server import Server, serve
from tidemill.rpc.tls import ServerCredentials, TlsFiles, server_context
from tidemill.testkit.certificates import Certificates
from tidemill.testkit.handlers_memory import MemoryHandlers


@pytest.fixture
def ours(tmp_path: Path) -> Certificates:
    return Certificates.of(tmp_path, "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Certificates:
    return Certificates.of(tmp_path, "theirs")


@asynccontextmanager
async def served(
    credentials: grpc.ServerCredentials | None, **options: object
) -> AsyncIterator[Server]:
    handlers = MemoryHandlers()
    server = await serve(
        "127.0.0.1:0",
        handlers,
        handlers,
        handlers,
        credentials=credentials,
        **options,  # type: ignore[arg-type]
    )
    try:
        yield server
    finally:
        await server.stop(0)


async def refusal(port: int, dialer: Dialer) -> TidemillError | None:
    """The error of a call; None if it is answered."""
    async with AsyncClient(f"127.0.0.1:{port}", timeout_s=60, dialer=dialer) as client:
        try:
            await client.get()
        except TidemillError as error:
            return error
    return None


def trusting(authority: Path, own: TlsFiles | None = None, name: str = "") -> Dialer:
    return Dialer(replace(own or TlsFiles(), authority=authority), name)


async def test_who_is_not_believed_hears_why(ours: Certificates, theirs: Certificates) -> None:
    server, old = ours.issued("server"), ours.issued("old", expired=True)
    async with served(ServerCredentials(server).credentials()) as it:
        assert await refusal(it.port, trusting(ours.authority)) is None
        for dialer, says in (
            (trusting(theirs.authority), "of another authority"),
            (trusting(ours.authority, name="elsewhere"), "--tls-name"),
            (Dialer(), "--tls-ca"),
        ):
            refused = await refusal(it.port, dialer)
            assert isinstance(refused, Unavailable)
            assert says in str(refused)
    async with served(ServerCredentials(old).credentials()) as it:
        assert "has expired" in str(await refusal(it.port, trusting(ours.authority)))
    async with served(None) as it:
        assert "does not speak TLS" in str(await refusal(it.port, trusting(ours.authority)))


async def test_a_service_believes_those_of_its_authority_alone(
    ours: Certificates, theirs: Certificates
) -> None:
    asking = replace(ours.issued("server"), authority=ours.authority)
    peer = ours.issued("peer", "tidemill-remap")
    async with served(
        ServerCredentials(asking).credentials(), authenticator=ServicesOnly(("tidemill-*",))
    ) as it:
        assert await refusal(it.port, trusting(ours.authority, peer)) is None
        for own, says in (
            (None, "--tls-cert"),
            (theirs.issued("stranger", "tidemill-remap"), "does not accept our certificate"),
            (
                ours.issued("late", "tidemill-remap", expired=True),
                "does not accept our certificate",
            ),
        ):
            refused = await refusal(it.port, trusting(ours.authority, own))
            assert isinstance(refused, Unavailable)
            assert says in str(refused)
        # Of the right authority, but for no service.
        other = await refusal(it.port, trusting(ours.authority, ours.issued("other", "grafana")))
        assert isinstance(other, Unauthenticated)
        assert not isinstance(other, Denied)
        assert "grafana" in str(other)


async def test_a_new_certificate_is_taken_without_a_restart(
    ours: Certificates, theirs: Certificates
) -> None:
    told: list[str] = []
    credentials = ServerCredentials(ours.issued("server", expired=True), told.append)
    async with served(credentials.credentials()) as it:
        # The fault is there first: nobody can connect.
        assert "has expired" in str(await refusal(it.port, trusting(ours.authority)))
        ours.issued("server")
        assert await refusal(it.port, trusting(ours.authority)) is None
        assert credentials.reloads == 1
        # A certificate whose key has not been written yet: the pair before goes on.
        key = (ours.folder / "server.key").read_bytes()
        theirs.issued("server")
        new = (ours.folder / "server.key").read_bytes()
        (ours.folder / "server.key").write_bytes(key)
        assert await refusal(it.port, trusting(ours.authority)) is None
        assert told
        assert "does not belong" in told[0]
        # Now both are there: another authority's, whom those that trust ours do not believe.
        (ours.folder / "server.key").write_bytes(new)
        assert await refusal(it.port, trusting(theirs.authority)) is None
        assert "another authority" in str(await refusal(it.port, trusting(ours.authority)))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"key": None}, "go together"),
        ({"key": Path("/nowhere/key")}, "cannot be read"),
        ({"authority": Path(__file__)}, "no certificate of an authority"),
    ],
)
def test_files_that_cannot_be_used_are_named_at_the_start(
    ours: Certificates, wrong: dict[str, Path | None], says: str
) -> None:
    files = replace(ours.issued("server"), **wrong)
    with pytest.raises(UsageError, match=says):
        ServerCredentials(files)


def test_a_token_is_never_sent_in_the_clear(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    with pytest.raises(UsageError, match="--tls-ca") as refused:
        Dialer(token_file=tmp_path / "token").checked()
    assert "secret" not in str(refused.value)


async def test_a_server_that_is_not_of_grpc_takes_a_new_certificate_without_a_restart(
    ours: Certificates, theirs: Certificates
) -> None:
    told: list[str] = []
    context = server_context(ours.issued("web"), told.append)

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def trusts(authority: Path) -> bool:
        """Whether who trusts an authority gets a connection."""
        trust = ssl.create_default_context(cafile=str(authority))
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
        except ssl.SSLCertVerificationError:
            return False
        writer.close()
        return True

    server = await asyncio.start_server(close, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    assert await trusts(ours.authority)
    # A certificate whose key has not been written yet: the pair before goes on.
    key = (ours.folder / "web.key").read_bytes()
    theirs.issued("web")
    new = (ours.folder / "web.key").read_bytes()
    (ours.folder / "web.key").write_bytes(key)
    assert await trusts(ours.authority)
    assert "does not belong" in told[0]
    (ours.folder / "web.key").write_bytes(new)
    assert await trusts(theirs.authority)
    assert not await trusts(ours.authority)
    server.close()
    with pytest.raises(UsageError, match="needs a certificate"):
        server_context(TlsFiles(authority=ours.authority), told.append)
