"""The forms of words in resources: what a name, a duration, an instant may look like.

Each form says in one sentence what it allows; the schemas refer to it by its name as a `format`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import cast

from jsonschema import FormatChecker

from tidemill.arrangement.column_types import COLUMN_TYPE_RULE, type_named
from tidemill.runtime.durations import DURATION_RULE, parse_duration
from tidemill.runtime.templates import NAMES, is_template
from tidemill.time.instants import ms_since_epoch

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
PREDICATE = re.compile(r"(?!_$)[A-Za-z_][A-Za-z0-9_]{0,254}")
COLUMN = re.compile(r"(?!_)[^\W\d][\w.-]{0,254}")
TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
HEADER = re.compile(r"[A-Za-z0-9-]{1,255}")
HOST = r"[!-\"$-.0->A-~]{1,1000}"
"""Form of the host in a URL: it has neither user nor password, which come before an @."""
REDIS_URL = re.compile(rf"rediss?://{HOST}(/[0-9]{{0,5}})?")
SMTP_URL = re.compile(rf"smtps?://{HOST}")
MAIL_ADDRESS = "[!-?A-~]{1,64}@[A-Za-z0-9.-]{1,255}"
HEADER_VALUE = "[!-~]([ -~]{0,998}[!-~])?"
URL = re.compile(rf"https?://{HOST}([/?#][!-~]{{0,1000}})?")
SECRET_QUERY = "(?i)[?&][a-z0-9_.-]*(token|secret|passwd|password|signature|api_?-?key)="
"""A part of a URL behind its ? that holds what nobody may see."""
SECRET_HEADER = (
    "(?i)((auth|authorization|authentication|bearer|cookie|credential|hmac|jwt|passcode|passphrase"
    "|passwd|password|secret|signature|token|(access|account|api|auth|pass|private|secret)key"
    "|(^|[-_])(key|pass|pwd|sig))s?([-_]?(v|ed|sha-?)?[0-9]+)?)$"
)
"""The name of a header whose value nobody may see: its last word, but for a number, is a secret.

The last word of a name is the thing: X-Auth-Key is a key, X-Auth-User and X-Key-Of-Row are none.
"""
ORDINARY_HEADER = (
    "(?i)(^|[-_])((idempotency|dedup|deduplication)[-_]?(key|token)"
    "|(cache|event|message|object|ordering|partition|public|record|routing|row|sort|surrogate)"
    "[-_]?key)s?$"
)
"""The keys that name data and permit nothing. Any other one is refused: secretHeaders has it."""
RESERVED_WORDS = frozenset({"if", "where", "not", "true", "false", "null", "next", "async"})
FORMATS = FormatChecker(formats=())
"""The checker to validate the schemas of resources with."""

RULES: dict[str, str] = {}
"""Rule of each form, in words."""


def names_secret(header: str) -> bool:
    """Whether the value of a header of this name is one that nobody may see."""
    ordinary = re.search(ORDINARY_HEADER, header)
    return ordinary is None and re.search(SECRET_HEADER, header) is not None


def parse_instant(value: object) -> int | None:
    """Milliseconds of a timeline; None if `value` is neither those nor ISO 8601 (UTC unless it
    says).
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value < 1 << 63 else None
    if not isinstance(value, str) or len(value) > 64:
        return None
    if value.isascii() and value.isdigit():
        return parse_instant(int(value))
    try:
        ms = ms_since_epoch(datetime.fromisoformat(value))
    except ValueError:
        return None
    return ms if ms >= 0 else None


def _form(
    name: str, rule: str, allowed: Callable[[str | int], bool], *, text_only: bool = True
) -> None:
    def check(value: object) -> bool:
        checked = isinstance(value, str) or (not text_only and type(value) is int)
        if checked and not allowed(cast("str | int", value)):
            raise ValueError(rule)
        return True

    FORMATS.checks(name, raises=ValueError)(check)
    RULES[name] = rule


def _matches(pattern: re.Pattern[str]) -> Callable[[str | int], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _collection(value: str | int) -> bool:
    name, _, part = str(value).partition("/")
    return DNS_LABEL.fullmatch(name) is not None and (
        "/" not in str(value) or PREDICATE.fullmatch(part) is not None
    )


def _predicate(value: str | int) -> bool:
    return PREDICATE.fullmatch(str(value)) is not None and value not in RESERVED_WORDS


_form(
    "dns-label",
    "a name has 1 to 63 lower-case letters, digits or '-', and begins and ends with a letter or digit",
    _matches(DNS_LABEL),
)
_form(
    "predicate",
    "a predicate is letters, digits and '_', does not begin with a digit, and is no word of the language",
    _predicate,
)
_form(
    "column",
    "a column is letters, digits, '_', '.' or '-', and begins with a letter",
    _matches(COLUMN),
)
_form("column-type", COLUMN_TYPE_RULE, lambda value: type_named(str(value)) is not None)
_form("table-name", "a table is 1 to 255 letters, digits and '_', no digit first", _matches(TABLE))
_form("header-name", "a header is 1 to 255 letters, digits and '-'", _matches(HEADER))
_form(
    "http-url",
    "a URL begins with http:// or https://, and has neither blanks nor a user or password: these are secrets of "
    "the server, and are named by secret or secretHeaders",
    _matches(URL),
)
_form(
    "redis-url",
    "the URL of a Redis is redis://HOST:PORT/NUMBER, or rediss:// likewise: user and password are written as "
    "username and secret, the name of a secret of the server",
    _matches(REDIS_URL),
)
_form(
    "smtp-url",
    "a mail server is smtp://HOST:PORT or smtps://HOST:PORT: user and password are written as username "
    "and secret, the name of a secret of the server",
    _matches(SMTP_URL),
)
_form("mail-address", "an address is NAME@HOST, without blanks", _matches(re.compile(MAIL_ADDRESS)))
_form(
    "header-value",
    "the value of a header is visible letters and blanks between them",
    _matches(re.compile(HEADER_VALUE)),
)
_form(
    "template",
    f"a $ begins a placeholder, ${{NAME}} with one of {', '.join(NAMES)} or arg.NAME; $$ is a dollar sign",
    lambda value: is_template(str(value)),
)
_form("topic", "a topic is 1 to 249 letters, digits, '.', '_' or '-'", _matches(TOPIC))
_form(
    "collection",
    "a collection is the name of a source, table or view, or view/predicate",
    _collection,
)
_form("duration", DURATION_RULE, lambda value: parse_duration(str(value)) is not None)
_form(
    "retention",
    f'{DURATION_RULE}; "all" keeps everything',
    lambda value: value == "all" or parse_duration(str(value)) is not None,
)
_form("character", "a delimiter is one character", lambda value: len(str(value)) == 1)
_form(
    "start-offset",
    "an offset is earliest, latest, or a whole number from 0 on",
    lambda value: (
        value in ("earliest", "latest") or (isinstance(value, int) and 0 <= value < 1 << 63)
    ),
    text_only=False,
)
_form(
    "instant",
    "an instant is a whole number of milliseconds or ISO 8601 such as 2013-07-04T12:00:00Z",
    lambda value: parse_instant(value) is not None,
    text_only=False,
)
_form(
    "fire-from",
    "fireFrom is creation, beginning, milliseconds, or ISO 8601 such as 2013-07-04T12:00:00Z",
    lambda value: value in ("creation", "beginning") or parse_instant(value) is not None,
    text_only=False,
)
