"""Answers in caches: asked about by their tags, or kept for ever under an identity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.web import TABLE, VIEW, web
from tidemill_query.contents import Contents


async def test_the_answer_of_an_identity_is_immutable_to_caches(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        at = await asked.insert()
        named = await asked.ask(f"/v1/collections/late/late?as_of={at}&wait_s=60")
        assert named.headers["Cache-Control"] == "no-cache"
        assert "Accept" in named.headers["Vary"]
        path = named.headers["Content-Location"]
        first = await asked.ask(path)
        assert first.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        assert (first.headers["Content-Location"], first.body) == (path, named.body)
        later = await asked.insert(pa.table({"plane": ["N9"], "delay": [99], "gate": ["C"]}))
        await asked.ask(f"/v1/collections/late/late?as_of={later}&wait_s=60")
        again = await asked.ask(path)
        assert (again.headers["ETag"], again.body) == (first.headers["ETag"], first.body)
        latest = await asked.ask("/v1/collections/late/late")
        assert latest.headers["Cache-Control"] == "no-cache"
        assert {row["plane"] for row in latest.json["rows"]} == {"N2", "N3", "N9"}
        future = await asked.ask(f"/v1/collections/delays?as_of={later + 3_600_000}")
        assert (future.status, future.headers["Cache-Control"]) == (425, "no-store")
        assert future.json["title"] == "The time is not sealed; wait."
        assert future.json["upper"][0] > later


FORMS_OF_QUESTION = ("/v1/collections/late/late?", "/v1/ask?goal=late(p,d)&",
                     "/v1/collections/late/late?where=delay>=0&")  # fmt: skip


@pytest.mark.parametrize("path", FORMS_OF_QUESTION)
async def test_an_answer_is_asked_about_by_its_tag_and_nothing_is_read(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with web(tmp_path) as asked:
        at = await asked.insert()
        path = f"{path}as_of={at}&wait_s=60"
        first = await asked.ask(path)
        reads: list[object] = []
        read = Contents.read

        async def count_reads(*given: Any, **named: Any) -> pa.Table:
            reads.append(given)
            return await read(*given, **named)

        monkeypatch.setattr(Contents, "read", count_reads)
        has = {"If-None-Match": first.headers["ETag"]}
        kept = first.headers["Content-Location"]
        same = {"If-None-Match": (await asked.ask(kept)).headers["ETag"]}
        reads.clear()
        for where, tag in ((path, has), (kept, same)):
            said = await asked.ask(where, headers=tag)
            assert (said.status, said.body, reads) == (304, b"", [])
            assert said.headers["ETag"] == tag["If-None-Match"]
            assert said.headers["Content-Location"] == kept
        assert (await asked.ask(path, headers={"If-None-Match": 'W/"other"'})).status == 200
        assert reads  # the count counts
        denied = await asked.ask(path.replace("late", "none"), headers=has)
        assert denied.status == 404


@pytest.mark.parametrize("path", FORMS_OF_QUESTION)
async def test_a_name_that_is_made_anew_has_another_identity(tmp_path: Path, path: str) -> None:
    async with web(tmp_path) as asked:
        at = await asked.insert()
        path = f"{path}as_of={at}&wait_s=60"
        before = await asked.ask(path)
        kept = before.headers["Content-Location"]
        assert (await asked.ask("/v1/resources/View/late", "DELETE")).status == 204
        assert (await asked.ask(kept)).status == 404
        changed = VIEW.replace("d >= 30", "d >= 40")
        await asked.whole.controller.apply([ResourceDocument(changed, "test.yaml")])
        after = await asked.ask(path, headers={"If-None-Match": before.headers["ETag"]})
        assert after.status == 200
        assert (b"N3" in before.body, b"N3" in after.body) == (True, False)
        gone = await asked.ask(kept, headers={"If-None-Match": before.headers["ETag"]})
        assert (gone.status, gone.headers["Cache-Control"]) == (404, "no-store")
        assert "another collection" in gone.json["detail"]
        assert (await asked.ask(after.headers["Content-Location"])).body == after.body


async def test_more_columns_give_another_identity(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        at = await asked.insert()
        assert (await asked.ask("/v1/resources/View/late", "DELETE")).status == 204
        path = f"/v1/collections/delays?as_of={at}&wait_s=60"
        before = await asked.ask(path)
        wider = TABLE.replace("], retain", ", {name: crew, type: text, nullable: true}], retain")
        await asked.whole.controller.apply([ResourceDocument(wider, "test.yaml")])
        after = await asked.ask(path, headers={"If-None-Match": before.headers["ETag"]})
        assert (after.status, "crew" in after.json["rows"][0]) == (200, True)
        assert (await asked.ask(before.headers["Content-Location"])).status == 404
