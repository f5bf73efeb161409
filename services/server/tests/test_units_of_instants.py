"""Instants in seconds or microseconds: every surface says what they look like."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from tidemill.client import Client
from tidemill.client.showing import ShownAnswer
from tidemill.errors import BeforeSince, NotYet
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.command_host import command_host
from tidemill.testkit.up import UpProcess, up_process
from tidemill.testkit.web import TABLE, VIEW

BRIEF = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: brief}
spec: {columns: [{name: n, type: int}], retain: 1ms}
"""


def refusal(server: UpProcess, path: str) -> str:
    """The detail of a refusal over HTTP."""
    with pytest.raises(HTTPError) as refused, urlopen(f"{server.address('http')}{path}"):
        pass
    return str(json.loads(refused.value.read())["detail"])


def moved_on(client: Client) -> None:
    """Insert rows until the first ones are not kept any more."""
    while True:
        client.insert("brief", [{"n": 1}])
        try:
            client.query("brief", as_of=1)
        except BeforeSince:
            return


def test_an_instant_of_another_unit_is_told_over_every_surface(tmp_path: Path) -> None:
    with up_process(tmp_path) as server, server.client() as client, command_host() as commands:
        client.apply(ResourceDocument("---".join((TABLE, VIEW, BRIEF)), "test.yaml"))
        at = client.insert("delays", [{"plane": "N2", "delay": 45, "gate": "A"}]).time
        client.query("late(p, d)", as_of=at, timeout_s=60.0)

        def told(*words: str) -> str:
            command = [commands / "tidemill", "--address", server.address("grpc"), *words]
            ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            return " ".join(ran.stderr.split())

        hint = (
            f"{at // 1000} looks like seconds: instants are milliseconds, such as {at // 1000}000"
        )
        # All history is kept: the answer is exact, and says what its instant looks like.
        assert hint in told("query", "late(p, d)", "--as-of", str(at // 1000))
        path = f"/v1/ask?goal={quote('late(p, d)')}&as_of={at // 1000}"
        with urlopen(f"{server.address('http')}{path}") as answer:
            assert answer.headers["Tidemill-Note"] == hint
        answered = client.query("late(p, d)", as_of=at // 1000)
        assert isinstance(answered, ShownAnswer)
        assert hint in answered._repr_html_()
        # History is not kept: the refusal says it.
        moved_on(client)
        with pytest.raises(BeforeSince, match="looks like seconds"):
            client.query("brief", as_of=at // 1000)
        assert hint in told("query", "brief", "--as-of", str(at // 1000))
        assert hint in refusal(server, f"/v1/collections/brief?as_of={at // 1000}")
        assert hint in refusal(server, f"/v1/subscribe?goal=brief&start={at // 1000}")
        # And an instant to come is one of microseconds.
        hint = f"{at * 1000} looks like microseconds: instants are milliseconds, such as {at}"
        with pytest.raises(NotYet, match="looks like microseconds"):
            client.query("late(p, d)", as_of=at * 1000)
        assert hint in told("query", "late(p, d)", "--as-of", str(at * 1000))
        assert hint in refusal(server, f"/v1/collections/delays?as_of={at * 1000}")
