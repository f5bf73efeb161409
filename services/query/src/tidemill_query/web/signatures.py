"""Signatures of deliveries: by which service, over which bytes, in which headers.

Each is an HMAC of the raw body, compared in constant time. A signed instant that is further from
now than the tolerance is refused: a delivery that somebody has recorded cannot be sent later.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterator, Mapping
from contextlib import suppress

from tidemill.errors import Unauthenticated, UsageError
from tidemill.runtime.durations import Milliseconds
from tidemill.runtime.resources import VerifySpec

STANDARD_KEY = "whsec_"
"""Beginning of a key of Standard Webhooks, with base64 behind it."""

SIGNATURES_MAX = 20
"""Signatures that one delivery may bring, for keys that change."""


def check_signature(
    verify: VerifySpec, secret: str, sent: Mapping[str, str], body: bytes, now_ms: int
) -> None:
    """Return if one of the keys, which are the lines of `secret`, has signed the delivery.

    `sent` are the headers, with names in lower case. Raises: Unauthenticated without saying which
    part was wrong beyond a missing header and a late instant; UsageError for a key that is none.
    """
    keys = [line.strip() for line in secret.splitlines() if line.strip()]
    signed, given = _told(verify, sent, body, now_ms)
    for key in keys:
        wanted = _signature(verify, key, signed)
        for each in given[:SIGNATURES_MAX]:
            if hmac.compare_digest(wanted, each.encode("utf-8", "replace")):
                return
    raise Unauthenticated("delivery refused: no key of this source has signed it")


def _told(
    verify: VerifySpec, sent: Mapping[str, str], body: bytes, now_ms: int
) -> tuple[bytes, list[str]]:
    """The bytes that are signed, and the signatures that came."""
    if verify.standard_webhooks is not None:
        ident, at = _header(sent, "webhook-id"), _header(sent, "webhook-timestamp")
        _refuse_old(at, verify.standard_webhooks.tolerance, now_ms)
        found = _header(sent, "webhook-signature").split(" ")
        given = [each.removeprefix("v1,") for each in found if each.startswith("v1,")]
        return f"{ident}.{at}.".encode() + body, given
    if verify.stripe is not None:
        parts = [each.split("=", 1) for each in _header(sent, "stripe-signature").split(",")]
        pairs = [(each[0].strip(), each[1]) for each in parts if len(each) == 2]
        at = next((value for name, value in pairs if name == "t"), "")
        _refuse_old(at, verify.stripe.tolerance, now_ms)
        return f"{at}.".encode() + body, [value for name, value in pairs if name == "v1"]
    if verify.slack is not None:
        at = _header(sent, "x-slack-request-timestamp")
        _refuse_old(at, verify.slack.tolerance, now_ms)
        given = list(_behind("v0=", _header(sent, "x-slack-signature")))
        return f"v0:{at}:".encode() + body, given
    if verify.github is not None:
        return body, list(_behind("sha256=", _header(sent, "x-hub-signature-256")))
    assert verify.hmac is not None
    return body, list(_behind(verify.hmac.prefix, _header(sent, verify.hmac.header.lower())))


def _behind(prefix: str, text: str) -> Iterator[str]:
    if text.startswith(prefix):
        yield text.removeprefix(prefix)


def _header(sent: Mapping[str, str], name: str) -> str:
    found = sent.get(name)
    if found is None:
        raise Unauthenticated(f"delivery refused: it has no header {name}")
    return found


def _refuse_old(at: str, tolerance: Milliseconds, now_ms: int) -> None:
    seconds = int(at) if at.isascii() and at.isdecimal() and len(at) <= 15 else None
    if seconds is None:
        raise Unauthenticated("delivery refused: its signed instant is no number of seconds")
    if abs(now_ms - seconds * 1000) > tolerance:
        raise Unauthenticated(f"delivery refused: it was signed more than {tolerance} from now")


def _signature(verify: VerifySpec, key: str, signed: bytes) -> bytes:
    """The signature by one key, as the service writes it."""
    if verify.standard_webhooks is not None:
        digest = hmac.digest(_standard_key(verify, key), signed, "sha256")
        return base64.b64encode(digest)
    told = verify.hmac
    digest = hmac.digest(key.encode(), signed, "sha256" if told is None else told.algorithm)
    if told is not None and told.encoding == "base64":
        return base64.b64encode(digest)
    return digest.hex().encode()


def _standard_key(verify: VerifySpec, key: str) -> bytes:
    if not key.startswith(STANDARD_KEY):
        return key.encode()
    with suppress(binascii.Error):
        known = base64.b64decode(key.removeprefix(STANDARD_KEY), validate=True)
        if known:  # anybody signs with a key of no bytes
            return known
    raise UsageError(
        f"a key of the secret {verify.secret} begins with {STANDARD_KEY} and is no base64",
        reason="Secret",
    )
