"""Authorities and certificates that live as long as a test."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from tidemill.rpc.tls import TlsFiles

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Certificates:
    """One authority in a folder."""

    folder: Path
    name: str
    _authority: trustme.CA

    @classmethod
    def of(cls, folder: Path, name: str = "authority") -> Certificates:
        """A new authority; its certificate is in `NAME.pem`."""
        authority = trustme.CA(organization_name=name)
        authority.cert_pem.write_to_path(folder / f"{name}.pem")
        return cls(folder, name, authority)

    @property
    def authority(self) -> Path:
        """The file with its certificate."""
        return self.folder / f"{self.name}.pem"

    def issued(self, name: str, *names: str, expired: bool = False) -> TlsFiles:
        """A certificate for the machine and `names`, replaced at once where there is one
        already.
        """
        made = self._authority.issue_cert(
            "localhost", "127.0.0.1", *names,
            not_before=LONG_AGO if expired else None,
            not_after=LONG_AGO + timedelta(days=1) if expired else None,
        )  # fmt: skip
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        chain = b"".join(each.bytes() for each in made.cert_chain_pems)
        for path, content in ((certificate, chain), (key, made.private_key_pem.bytes())):
            fresh = path.with_suffix(f"{path.suffix}.new")
            fresh.write_bytes(content)
            os.replace(fresh, path)
        return TlsFiles(certificate, key)
