"""Tokens end, are changed without a gap, and do not outlive the file that names them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidemill.errors import Unauthenticated, UsageError
from tidemill.rpc.identity import Tokens

GRANTS = [{"role": "admin", "collections": ["*"]}]
AT_2027 = 1_798_761_600_000


def hashed(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def written(file: Path, **fields: object) -> None:
    user = {"name": "ann", "sha256": hashed("the new token"), "grants": GRANTS, **fields}
    file.write_text(json.dumps({"users": [user]}))


@dataclass
class Now:
    """A clock."""

    ms: int = AT_2027 - 1

    def __call__(self) -> int:
        return self.ms


def opened(file: Path, now: Callable[[], int], told: list[str]) -> Tokens:
    return Tokens(file, json.loads, told.append, now, grace_s=60)


def knows(tokens: Tokens, token: str) -> bool:
    try:
        return tokens.principal({"authorization": f"Bearer {token}"}, tuple).name == "ann"
    except Unauthenticated:
        return False


def test_a4_a_token_ends_when_it_says(tmp_path: Path) -> None:
    written(tmp_path / "users", expires="2027-01-01T00:00:00Z")
    now = Now()
    tokens = opened(tmp_path / "users", now, [])
    assert knows(tokens, "the new token")
    now.ms += 1
    assert not knows(tokens, "the new token")


def test_a4_the_token_before_counts_until_it_ends(tmp_path: Path) -> None:
    old = {"sha256": hashed("the old token"), "expires": "2027-01-01T01:00:00+01:00"}
    written(tmp_path / "users", previous=old)
    now = Now()
    tokens = opened(tmp_path / "users", now, [])
    assert knows(tokens, "the new token")
    assert knows(tokens, "the old token")
    now.ms += 1
    assert knows(tokens, "the new token")
    assert not knows(tokens, "the old token")


@pytest.mark.parametrize("broken", ["gone", "mistake"])
def test_a4_withdrawn_tokens_do_not_count_for_ever(tmp_path: Path, broken: str) -> None:
    file, now, told = tmp_path / "users", Now(), list[str]()
    written(file)
    tokens = opened(file, now, told)
    if broken == "gone":
        file.unlink()
    else:
        file.write_text("{}")
    assert knows(tokens, "the new token")
    now.ms += 59_999
    assert knows(tokens, "the new token")
    now.ms += 1
    assert not knows(tokens, "the new token")
    assert told
    written(file)
    assert knows(tokens, "the new token")


@pytest.mark.parametrize("token", ["", "ann", "password", "changeme", "token\n", "admin"])
def test_a4_a_token_that_anybody_guesses_is_refused(tmp_path: Path, token: str) -> None:
    written(tmp_path / "users", sha256=hashed(token))
    with pytest.raises(UsageError, match="anybody guesses"):
        opened(tmp_path / "users", Now(), [])


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"expires": "tomorrow"}, "with its zone"),
        ({"expires": "2027-01-01"}, "with its zone"),
        ({"previous": {"sha256": hashed("old")}}, "sha256 and expires"),
        ({"previous": {"sha256": hashed("the new token"), "expires": "2027-01-01T00:00:00Z"}}, "one token"),
    ],
)  # fmt: skip
def test_a4_a_mistake_in_what_ends_is_refused(
    tmp_path: Path, fields: dict[str, object], says: str
) -> None:
    written(tmp_path / "users", **fields)
    with pytest.raises(UsageError, match=says):
        opened(tmp_path / "users", Now(), [])
