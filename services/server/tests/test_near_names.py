"""Misspelt names: every surface proposes the nearest one that the caller may read, and no other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tidemill.errors import UnknownCollection
from tidemill.rpc.identity import Grant, Role
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.command_host import command_host
from tidemill.testkit.up import up_process
from tidemill.testkit.web import TABLE, VIEW, Named, web

SOURCE = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: events}
spec: {http: {}, format: {json: {}}, columns: [{name: n, type: int}]}
"""
ACTION = """
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {name: told}
spec: {view: late, goal: "late(p, d)", sink: {file: {path: told.jsonl}}}
"""
ASKED = (
    ("GET", "/v1/resources/View/laet", "late"),
    ("DELETE", "/v1/resources/View/laet", "late"),
    ("POST", "/v1/views/laet/approve", "late"),
    ("GET", "/v1/collections/deleys", "delays"),
    ("GET", "/v1/views/laet/plan", "late"),
    ("POST", "/v1/tables/deleys/rows", "delays"),
    ("POST", "/v1/sources/event/rows", "events"),
)


async def test_http_proposes_what_the_caller_may_read(tmp_path: Path) -> None:
    wrong = ("laet", "deleys", "event")
    users = Named(all=Grant(Role.admin), few=Grant(Role.admin, wrong))
    async with web(tmp_path, users) as asked:
        await asked.whole.controller.apply([ResourceDocument(SOURCE, "test.yaml")])
        for method, path, meant in ASKED:
            for name in ("all", "few"):
                token = {"Authorization": f"Bearer {name}"}
                body = b'{"n": 1}' if path.endswith("rows") else None
                headers = {"Content-Type": "application/json", **token} if body else token
                said = await asked.ask(path, method, headers=headers, data=body)
                assert said.status == 404, (path, said.body)
                hint = f"; did you mean {meant}?"
                assert (hint in said.json["detail"]) == (name == "all"), (path, said.body)
                assert name == "all" or "did you mean" not in said.json["detail"]


COMMANDS = (
    (("describe", "view", "laet"), "there is no View laet; did you mean late?"),
    (("get", "view", "laet"), "there is no View laet; did you mean late?"),
    (("delete", "view", "laet"), "there is no View laet; did you mean late?"),
    (("query", "deleys"), "there is no deleys; did you mean delays?"),
    (("push", "event"), "there is no Source event; did you mean events?"),
    (("action", "replay", "tolt"), "there is no action tolt; did you mean told?"),
    (("test", ".", "--record", "laet"), "there is no view laet; did you mean late?"),
)


def test_the_command_and_grpc_propose_alike(tmp_path: Path) -> None:
    with up_process(tmp_path) as server, server.client() as client, command_host() as commands:
        documents = "---".join((TABLE, VIEW, SOURCE, ACTION))
        client.apply(ResourceDocument(documents, "test.yaml"))
        with pytest.raises(UnknownCollection, match="no View laet; did you mean late"):
            client.describe("View", "laet")
        for words, says in COMMANDS:
            command = [commands / "tidemill", "--address", server.address("grpc"), *words]
            ran = subprocess.run(command, cwd=tmp_path, input="1", capture_output=True, text=True)
            assert ran.returncode != 0
            assert says in " ".join(ran.stderr.split()), (words, ran.stderr)
