"""Mails over SMTP as a sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import aiosmtplib

from tidemill.errors import Unavailable, UsageError
from tidemill.runtime.addresses import host_and_port
from tidemill.runtime.places import ANYWHERE, Egress, Secret
from tidemill_compute.actions.messages import Names, mail
from tidemill_compute.actions.outbox import Firing, Took, untold

_WRONG_FROM = 500
"""Answers of SMTP from here on are refusals for good; smaller ones are for now."""


@dataclass(frozen=True, slots=True)
class Mailbox:
    """The server of outgoing mail, who sends, who gets it, and what it says.

    `encrypted` asks for STARTTLS; without it, a server that offers it is taken at its word.
    """

    server: str
    sender: str
    to: tuple[str, ...]
    subject: str
    text: str
    names: Names
    username: str = ""
    secret: Secret | None = None
    encrypted: bool = False
    timeout_s: float = 10.0
    egress: Egress = ANYWHERE


class EmailSink:
    """Sends a mail for each firing, over one connection a call. Delivery: at least once.

    A mail that is sent again after a failure has the id that it had: programs may show it once.
    """

    at_most_once = False

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        """None: a mail server cannot be asked."""
        return frozenset()

    async def fire(self, firings: Sequence[Firing], took: Took = untold) -> None:
        """Send a mail for each firing in turn; `took` hears of each that the server has taken.

        Raises: Unavailable; UsageError for a login, a sender or a receiver that is refused.
        """
        if not firings:
            return
        box = self._mailbox
        try:
            async with await self._connect() as server:
                if box.secret is not None:
                    await server.login(box.username, box.secret.text())
                for firing in firings:
                    made = mail(firing, box.sender, box.to, box.subject, box.text, box.names)
                    await server.send_message(made)
                    took([firing])
        except aiosmtplib.SMTPException as error:
            raise self._refusal(error) from error
        except (OSError, TimeoutError) as error:
            raise Unavailable(
                f"the mail server {box.server} did not answer: {type(error).__name__}",
                url=box.server,
            ) from error

    async def close(self) -> None:
        """Nothing is held open between two calls."""

    async def _connect(self) -> aiosmtplib.SMTP:
        """Raises: UsageError for a host that may not be called; OSError; SMTPException."""
        box = self._mailbox
        at_once = box.server.startswith("smtps:")
        host, port = host_and_port(box.server, 465 if at_once else 587)
        sock = await box.egress.connect_allowed(host, port)
        server = aiosmtplib.SMTP(
            hostname=host, sock=sock, use_tls=at_once, timeout=box.timeout_s,
            start_tls=False if at_once else True if box.encrypted else None,
        )  # fmt: skip
        await server.connect()
        return server

    def _refusal(self, error: aiosmtplib.SMTPException) -> Exception:
        """The error for a mistake of the server, with nothing of what was sent."""
        code = getattr(error, "code", None)
        about = type(error).__name__.removeprefix("SMTP")
        if isinstance(error, aiosmtplib.SMTPRecipientsRefused):
            code, about = max(each.code for each in error.recipients), "the receivers"
        what = f"the mail server {self._mailbox.server}"
        if code is not None and code >= _WRONG_FROM:
            return UsageError(f"{what} answered {code}: {about}", reason="SinkRefused")
        return Unavailable(f"{what}: {type(error).__name__} {code or ''}".rstrip(), url=what)
