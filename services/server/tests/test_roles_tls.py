"""A system of two processes that prove themselves to each other, and a user with a token at the
command line.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from tidemill.client import connect
from tidemill.errors import TidemillError, Unauthenticated, Unavailable
from tidemill.rpc.channel import Dialer
from tidemill.rpc.client_services import ServiceClient
from tidemill.rpc.tls import TlsFiles
from tidemill.testkit.certificates import Certificates
from tidemill.testkit.fleet import Fleet, fleet, until

RESOURCES = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: flights}
spec:
  file: {path: rows.jsonl, format: jsonl}
  columns: [{name: plane, type: text}]
  timestampInterval: 100ms
  retain: all
"""


def secured(system: Fleet, made: Certificates) -> None:
    """Settings of all processes: services by certificates, users by tokens over TLS."""
    service, user = made.issued("service"), made.issued("server")
    digest = hashlib.sha256(b"a-token").hexdigest()
    users = (
        f"users: [{{name: ann, sha256: {digest}, grants: [{{role: admin, collections: ['*']}}]}}]"
    )
    (system.folder / "users.yaml").write_text(users)
    (system.folder / "ann.token").write_text("a-token\n")
    system.options = {
        "tls": {"certificate": str(user.certificate), "key": str(user.key)},
        "token_file": str(system.folder / "users.yaml"),
        "services": {
            "address": "127.0.0.1:0",
            "lease_s": system.lease_s,
            "names": ["localhost"],
            "tls": {
                "certificate": str(service.certificate),
                "key": str(service.key),
                "authority": str(made.authority),
            },
        },
    }


def refused_at_the_port_of_services(system: Fleet, made: Certificates) -> None:
    """A caller with a certificate of the authority that is no service is logged by the process that
    refused it.
    """
    stranger = trustme.CA.issue_cert(made._authority, "stranger.example")
    files = TlsFiles(system.folder / "s.crt", system.folder / "s.key", made.authority)
    assert files.certificate is not None
    assert files.key is not None
    stranger.cert_chain_pems[0].write_to_path(files.certificate)
    stranger.private_key_pem.write_to_path(files.key)
    owner = system.owned("ingest", "Source/flights")

    async def probe() -> None:
        client = ServiceClient(owner.details, Dialer(files))
        try:
            await client.probe("flights")
        finally:
            await client.close()

    with pytest.raises(Unauthenticated, match="this port is for services"):
        asyncio.run(probe())

    def told() -> list[str] | None:
        audit = command(system, "query", "tidemill/audit")
        lines = [line for line in audit.stdout.splitlines() if "Probe" in line]
        return lines or None

    (line,) = until(told, system.logs)
    for word in ("refused", "stranger.example", "127.0.0.1", owner.name):
        assert word in line


def command(system: Fleet, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, run by a user with a token."""
    return subprocess.run(
        [
            sys.executable, "-m", "tidemill.client", *arguments,
            "--address", system.address("front"), "--token-file", "ann.token",
            "--tls-ca", "ours.pem",
        ],
        cwd=system.folder, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


@pytest.mark.server
def test_roles_that_prove_themselves_answer_a_user_with_a_token(tmp_path: Path) -> None:
    with fleet(tmp_path) as system:
        made = Certificates.of(tmp_path, "ours")
        secured(system, made)
        (tmp_path / "rows.jsonl").write_text(json.dumps({"plane": "N1"}) + "\n")
        (tmp_path / "resources.yaml").write_text(RESOURCES)
        system.start("back", "ingest,compute")
        system.start("middle", "remap,reclock,compaction")
        system.start("front", "query")
        with connect(
            system.address("front"), tls_ca=str(made.authority),
            token_file=str(tmp_path / "ann.token"),
        ) as client:  # fmt: skip
            client.apply(tmp_path / "resources.yaml")

        def planes() -> list[str] | None:
            try:
                with connect(
                    system.address("front"), tls_ca=str(made.authority),
                    token_file=str(tmp_path / "ann.token"),
                ) as client:  # fmt: skip
                    return sorted(client.query("flights").table["plane"].to_pylist()) or None
            except TidemillError:
                return None

        assert until(planes, system.logs) == ["N1"]
        # Without a token, and in the clear, nobody is answered; the messages say what to do.
        for options, says in (({"tls_ca": str(made.authority)}, "--token-file"), ({}, "--tls-ca")):
            with (
                connect(system.address("front"), **options) as client,
                pytest.raises(TidemillError, match=says),
            ):
                client.get()
        # Certificates of users and services change while all processes run.
        before = [member.pid for member in system.members.values()]
        Certificates.of(tmp_path, "others").issued("server")
        with (
            connect(system.address("front"), tls_ca=str(made.authority)) as client,
            pytest.raises(Unavailable, match="another authority"),
        ):
            client.get()
        secured(system, made)
        with (tmp_path / "rows.jsonl").open("a") as rows:
            rows.write(json.dumps({"plane": "N2"}) + "\n")
        assert until(lambda: (planes() or [])[1:] or None, system.logs) == ["N2"]
        assert [m.pid for m in system.members.values() if m.running] == before
        refused_at_the_port_of_services(system, made)
        told = command(system, "get")
        assert told.returncode == 0, told.stderr
        assert "Running" in told.stdout
        # No log and no answer has a token or a capability in it.
        everything = system.logs() + told.stdout
        assert "a-token" not in everything
