"""Deliveries of webhooks: proved by signatures, written once, with columns from headers."""

from __future__ import annotations

import asyncio
import base64
import hmac
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import Unauthenticated, UsageError
from tidemill.rpc.identity import Grant, Role
from tidemill.rpc.messages import ResourceDocument
from tidemill.runtime.places.settings import PlaceSettings, SecretSettings
from tidemill.runtime.resources import HttpOrigin, VerifySpec
from tidemill.runtime.resources.specs import GithubSpec, HmacSpec, SignatureSpec
from tidemill.testkit.web import Named, Said, Web, web
from tidemill_query.web.signatures import check_signature
from tidemill_query.web.webhooks import delivery_id, rows_of_json

KEY = "It's a Secret to Everybody"
NOW_MS = 1_614_265_330_000
SIGNED = SignatureSpec(secret="key")

SOURCE = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: pushes}
spec:
  http:
    verify: {github: {secret: github}}
    headers: {event: X-GitHub-Event}
    ARRAY
  columns: [{name: n, type: int}, {name: event, type: text, nullable: true}]
  timestampInterval: 50ms
  retain: all
"""


def digest(key: str, signed: bytes, algorithm: str = "sha256") -> bytes:
    return hmac.digest(key.encode(), signed, algorithm)


def test_published_signatures_are_those_that_are_wanted() -> None:
    """The examples of GitHub's page and of the specification of Standard Webhooks."""
    sent = {
        "x-hub-signature-256": "sha256="
        "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    }
    github = VerifySpec(github=GithubSpec(secret="key"))
    check_signature(github, KEY, sent, b"Hello, World!", NOW_MS)
    standard = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    verify = VerifySpec(standard_webhooks=SIGNED)
    key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    check_signature(verify, key, standard, b'{"test": 2432232314}', NOW_MS)


def signed_by(name: str, key: str, body: bytes, seconds: int) -> tuple[VerifySpec, dict[str, str]]:
    """A form of signatures, and the headers by which a service states one."""
    at = str(seconds).encode()
    match name:
        case "stripe":
            told = digest(key, at + b"." + body).hex()
            sent = {"stripe-signature": f"t={seconds},v0=old,v1={told}"}
            return VerifySpec(stripe=SIGNED), sent
        case "slack":
            told = digest(key, b"v0:" + at + b":" + body).hex()
            sent = {"x-slack-request-timestamp": str(seconds), "x-slack-signature": f"v0={told}"}
            return VerifySpec(slack=SIGNED), sent
        case "standard":
            told = base64.b64encode(digest(key, b"id." + at + b"." + body)).decode()
            sent = {"webhook-id": "id", "webhook-timestamp": str(seconds)}
            return VerifySpec(standard_webhooks=SIGNED), {**sent, "webhook-signature": f"v1,{told}"}
        case _:
            spec = HmacSpec(
                secret="key", header="X-Sign", algorithm="sha512", encoding="base64", prefix="s="
            )
            told = base64.b64encode(digest(key, body, "sha512")).decode()
            return VerifySpec(hmac=spec), {"x-sign": f"s={told}"}


FORMS = ["stripe", "slack", "standard", "hmac"]


@pytest.mark.parametrize("form", FORMS)
@given(body=st.binary(max_size=200), other=st.binary(max_size=200))
def test_a_signature_is_of_one_body_and_one_key(form: str, body: bytes, other: bytes) -> None:
    verify, sent = signed_by(form, KEY, body, NOW_MS // 1000)
    check_signature(verify, f"new key\n{KEY}\n", sent, body, NOW_MS)
    with pytest.raises(Unauthenticated):
        check_signature(verify, "new key", sent, body, NOW_MS)
    if other != body:
        with pytest.raises(Unauthenticated):
            check_signature(verify, KEY, sent, other, NOW_MS)


def test_a_key_of_no_bytes_is_refused() -> None:
    """Anybody signs with it."""
    verify, sent = signed_by("standard", "", b"{}", NOW_MS // 1000)
    with pytest.raises(UsageError, match="begins with whsec_"):
        check_signature(verify, "whsec_", sent, b"{}", NOW_MS)


@pytest.mark.parametrize("form", ["stripe", "slack", "standard"])
def test_a_recorded_delivery_is_refused_later(form: str) -> None:
    verify, sent = signed_by(form, KEY, b"{}", NOW_MS // 1000)
    for now_ms in (NOW_MS - 300_000, NOW_MS + 300_000):
        check_signature(verify, KEY, sent, b"{}", now_ms)
    for now_ms in (NOW_MS - 301_000, NOW_MS + 301_000):
        with pytest.raises(Unauthenticated, match="more than 5m from now"):
            check_signature(verify, KEY, sent, b"{}", now_ms)


@given(st.dictionaries(st.sampled_from(
    ["stripe-signature", "x-slack-signature", "x-slack-request-timestamp", "webhook-id",
     "webhook-timestamp", "webhook-signature", "x-sign"]), st.text(max_size=60)))  # fmt: skip
def test_any_header_is_refused_or_taken(sent: Mapping[str, str]) -> None:
    for form in FORMS:
        verify, _ = signed_by(form, KEY, b"{}", 0)
        with pytest.raises(Unauthenticated):
            check_signature(verify, KEY, sent, b"{}", NOW_MS)


def test_rows_of_a_delivery_are_single_lines_with_the_columns_of_headers() -> None:
    body = b'[{"n": 1.50,\n "event": "forged"}, {"n": 2}]'
    origin = HttpOrigin(array=True, headers={"event": "X-Event", "other": "X-Other"})
    assert rows_of_json(body, origin, {"x-event": "push"}, 10) == [
        b'{"n":1.50,"event":"push","other":null}',
        b'{"n":2,"event":"push","other":null}',
    ]
    assert rows_of_json(b'{"a":\n1}', HttpOrigin(), {}, 10) == [b'{"a":1}']
    with pytest.raises(UsageError, match=r"limits\.push_rows"):
        rows_of_json(b"[1, 2, 3]", HttpOrigin(array=True), {}, 2)
    for wrong in (b"{}", b"[1", b"[" * 100_000, b"\xff"):
        with pytest.raises(UsageError, match="not a JSON array"):
            rows_of_json(wrong, HttpOrigin(array=True), {}, 10)


def test_the_id_of_a_delivery_is_where_its_service_states_it() -> None:
    stripe = HttpOrigin(verify=VerifySpec(stripe=SIGNED))
    assert delivery_id(stripe, {}, b'{"id": "evt_1", "x": 1}') == "evt_1"
    standard = HttpOrigin(verify=VerifySpec(standard_webhooks=SIGNED))
    assert delivery_id(standard, {"webhook-id": "msg_1"}, b"") == "msg_1"
    github = HttpOrigin(verify=VerifySpec(github=GithubSpec(secret="key")))
    ids = [delivery_id(github, {"x-github-delivery": ident}, b"{}") for ident in "12"]
    assert ids[0] == ids[1] != delivery_id(github, {}, b"[]")
    assert delivery_id(HttpOrigin(dedupe="X-Id"), {"x-id": "7"}, b"") == "7"
    assert delivery_id(HttpOrigin(), {}, b"") is None
    with pytest.raises(UsageError, match="no header X-Id"):
        delivery_id(HttpOrigin(dedupe="X-Id"), {}, b"")


def system(folder: Path) -> dict[str, Any]:
    file = folder / "github.key"
    file.write_text(KEY + "\n")
    return {"places": PlaceSettings(secrets={"github": SecretSettings(file=str(file))})}


async def deliver(asked: Web, rows: object, ident: str = "1", key: str = KEY) -> Said:
    body = json.dumps(rows).encode()
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": "push",
        "X-GitHub-Delivery": ident,
        "X-Hub-Signature-256": f"sha256={digest(key, body).hex()}",
    }
    return await asked.ask("/v1/webhooks/pushes", "POST", data=body, headers=headers)


@pytest.mark.parametrize("array", [False, True])
async def test_a_signed_delivery_is_written_once_without_a_token(
    tmp_path: Path, array: bool
) -> None:
    users = Named(rita=Grant(Role.reader))
    async with web(tmp_path, users, system=system(tmp_path)) as asked:
        text = SOURCE.replace("ARRAY", f"array: {str(array).lower()}")
        await asked.whole.controller.apply([ResourceDocument(text, "test.yaml")])

        def rows(*numbers: int) -> object:
            return [{"n": n} for n in numbers] if array else {"n": numbers[0]}

        forged = await deliver(asked, rows(9), key="another key")
        assert (forged.status, forged.json["type"]) == (401, "urn:tidemill:error:unauthenticated")
        for ident in ("1", "1", "recorded, and sent again under another id"):
            assert (await deliver(asked, rows(1), ident)).json == {"accepted": 1}
        assert (await deliver(asked, rows(3, 4), "2")).status == 200
        wanted = {1: 1, 3: 1, 4: 1} if array else {1: 1, 3: 1}
        assert await count_pushed(asked, len(wanted)) == wanted


async def test_a_header_that_a_source_names_is_the_id_of_a_delivery(tmp_path: Path) -> None:
    """The companion: by an id that nobody has signed a copy of a delivery is another one."""
    async with web(tmp_path, system=system(tmp_path)) as asked:
        text = SOURCE.replace("ARRAY", "dedupe: X-GitHub-Delivery")
        await asked.whole.controller.apply([ResourceDocument(text, "test.yaml")])
        for n, ident in ((1, "1"), (1, "1"), (2, "1"), (1, "2"), (3, "3")):  # the third one differs
            assert (await deliver(asked, {"n": n}, ident)).json == {"accepted": 1}
        assert await count_pushed(asked, 2) == {1: 2, 3: 1}


async def count_pushed(asked: Web, rows: int) -> dict[int, int]:
    """The count of each number, once so many are there."""
    async with asyncio.timeout(60):
        while True:
            said = await asked.whole.query.ask("pushes(n, e)", None, 30.0)
            found = said.table.to_pylist()
            if len(found) >= rows:
                break
            await asyncio.sleep(0.05)
    assert {row["e"] for row in found} == {"push"}
    return {row["n"]: row["_diff"] for row in found}


async def test_slack_is_told_its_challenge_and_nothing_is_written(tmp_path: Path) -> None:
    async with web(tmp_path, system=system(tmp_path)) as asked:
        text = SOURCE.replace("{github: {secret: github}}", "{slack: {secret: github}}")
        text = text.replace("ARRAY", "")
        await asked.whole.controller.apply([ResourceDocument(text, "test.yaml")])

        async def send(body: bytes) -> Said:
            seconds = asked.whole.context.clock.now_ms() // 1000
            _, headers = signed_by("slack", KEY, body, seconds)
            headers = {**headers, "Content-Type": "application/json"}
            return await asked.ask("/v1/webhooks/pushes", "POST", data=body, headers=headers)

        said = await send(b'{"type": "url_verification", "challenge": "3eZbrw1a"}')
        assert (said.status, said.body) == (200, b"3eZbrw1a")
        assert (await send(b'{"n": 1}')).json == {"accepted": 1}
        at, found = None, []
        async with asyncio.timeout(60):
            while not found:
                said_rows = await asked.whole.query.ask("pushes(n, e)", at, 30.0)
                found = said_rows.table["n"].to_pylist()
                await asyncio.sleep(0.05)
        assert found == [1]


async def test_a_source_without_keys_takes_no_delivery(tmp_path: Path) -> None:
    async with web(tmp_path, system=system(tmp_path)) as asked:
        assert (await deliver(asked, {})).status == 404
        plain = SOURCE.replace("verify: {github: {secret: github}}", "").replace("ARRAY", "")
        await asked.whole.controller.apply([ResourceDocument(plain, "test.yaml")])
        refused = await deliver(asked, {})
        assert refused.status == 404
        assert "http.verify" in refused.json["detail"]
        long = await asked.ask(  # refused before its body is read
            "/v1/webhooks/pushes", "POST", data=io.BytesIO(b"x" * (17 << 20)),
            headers={"Content-Type": "application/json"},
        )  # fmt: skip
        assert long.status == 404
        unknown = SOURCE.replace("secret: github", "secret: gitlab").replace("ARRAY", "")
        with pytest.raises(UsageError, match="there is no secret gitlab"):
            await asked.whole.controller.apply(
                [ResourceDocument(unknown.replace("name: pushes", "name: more"), "test.yaml")]
            )
