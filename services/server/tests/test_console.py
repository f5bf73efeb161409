"""The console in a real browser: each screen by its use, its policy, and its barriers."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from playwright.async_api import Browser, Route, expect

from tidemill.rpc.identity import Grant, Role
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.browsing import barriers, console
from tidemill.testkit.web import Named, web
from tidemill_query.web.console import POLICY

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="session")]
expect.set_options(timeout=30_000)


async def test_every_screen_is_without_barriers_in_dark_and_light(
    tmp_path: Path, chromium: Browser
) -> None:
    async with web(tmp_path) as asked:
        at = await asked.insert()
        await asked.ask(f"/v1/collections/late/late?as_of={at}&wait_s=60")
        async with console(chromium, asked.address, color_scheme="dark") as page:
            for theme in ("dark", "light"):
                for screen, shows in (
                    ("graph?at=View%2Flate", "definite before"),
                    ("resource?key=View%2Flate", "What keeps its history"),
                    ("ask?goal=late(p,d)&record=late(%22N2%22,45)", "proof"),
                    ("insert", "One row a line"),
                    ("apply", "Documents"),
                ):
                    await page.goto(f"{asked.address}/#/{screen}")
                    await expect(page.locator("main")).to_contain_text(shows)
                    assert await barriers(page) == [], (theme, screen)
                await page.get_by_role(
                    "button", name="Light" if theme == "dark" else "Dark"
                ).click()


async def test_pages_have_a_policy_that_runs_nothing_foreign(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        page = await asked.ask("/")
        assert page.headers["Content-Security-Policy"] == POLICY
        assert "'unsafe" not in POLICY
        assert b"<script>" not in page.body
        assert b" style=" not in page.body
        again = await asked.ask("/", headers={"If-None-Match": page.headers["ETag"]})
        assert again.status == 304
        assert (await asked.ask("/console/none.js")).status == 404
        assert (await asked.ask("/console/..%2Fservice.py")).status == 404


async def test_a_click_on_a_row_shows_its_proof_and_a_missing_record_its_reasons(
    tmp_path: Path,
    chromium: Browser,
) -> None:
    async with web(tmp_path) as asked:
        at = await asked.insert()
        await asked.ask(f"/v1/collections/late/late?as_of={at}&wait_s=60")
        async with console(chromium, asked.address) as page:
            await page.goto(f"{asked.address}/#/ask")
            await page.get_by_label("Goal or collection").fill("late(p, d)")
            await page.get_by_role("button", name="Ask").click()
            await page.get_by_role("button", name='Proof of late("N2", 45)').click()
            await expect(page.locator(".tree")).to_contain_text('delays("N2", 45, "B")')
            await page.get_by_label("Record").fill('late("N1", 5)')
            await page.get_by_role("button", name="Why", exact=True).click()
            await expect(page.locator(".tree")).to_contain_text("the guard is false for d = 5")
            await page.get_by_label("Goal or collection").fill("late/late")
            await page.get_by_role("button", name="Ask", exact=True).click()
            await page.get_by_role("button", name='Proof of late/late("N3", 30)').click()
            await expect(page.locator(".tree")).to_contain_text('delays("N3", 30, null)')


async def test_numbers_are_shown_as_they_are_and_their_records_proved(
    tmp_path: Path, chromium: Browser
) -> None:
    documents = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: scores}
spec: {columns: [{name: score, type: float}, {name: n, type: int}], retain: all}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: scored}
spec: {retain: all, program: "scored(score: s, n: n) := scores(s, n);"}
"""
    row = b'{"score": 45.0, "n": 9007199254740993}'
    json_rows = {"Content-Type": "application/json"}
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        await asked.whole.controller.apply([ResourceDocument(documents, "test.yaml")])
        sent = await asked.ask("/v1/tables/scores/rows", "POST", data=row, headers=json_rows)
        await asked.ask(f"/v1/collections/scored/scored?as_of={sent.json['time']}&wait_s=60")
        await page.goto(f"{asked.address}/#/ask?goal=scored(s, n)")
        table = page.get_by_role("region", name="Answer")
        await expect(table).to_contain_text("45.0")
        await expect(table).to_contain_text("9007199254740993")
        await page.get_by_role("button", name="Proof of").click()
        await expect(page.locator(".tree")).to_contain_text("scores(45.0, 9007199254740993)")


@pytest.mark.parametrize("known", [True, False])
async def test_a_record_of_other_types_has_its_proof(
    tmp_path: Path, chromium: Browser, known: bool
) -> None:
    """Also where the console has not heard of the columns before somebody asks for a proof."""
    documents = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: paid}
spec:
  retain: all
  columns: [{name: at, type: timestamp}, {name: sum, type: "decimal(9, 2)"}, {name: took, type: duration},
    {name: day, type: date}, {name: id, type: uuid}, {name: data, type: bytes}, {name: doc, type: json}]
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: v}
spec:
  retain: all
  program: |
    told(at: a, sum: s, took: t, day: d, id: i, data: b, doc: j) := paid(a, s, t, d, i, b, j);
"""
    row = (
        b'{"at": "2026-01-01T00:00:00Z", "sum": "1.50", "took": "1h30m", "day": "0001-01-01", "data": "AP8=", '
        b'"id": "6f9619ff8b86d01142b42d00c04fc964", "doc": {"a": [1.0, 12345678901234567.89, null], "b": "\\"q"}}'
    )
    json_rows = {"Content-Type": "application/json"}
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        await asked.whole.controller.apply([ResourceDocument(documents, "test.yaml")])
        sent = await asked.ask("/v1/tables/paid/rows", "POST", data=row, headers=json_rows)
        await asked.ask(f"/v1/collections/v/told?as_of={sent.json['time']}&wait_s=60")
        answered = known

        async def collections(route: Route) -> None:
            await (route.continue_() if answered else route.abort())

        await page.route("**/v1/collections", collections)
        await page.goto(f"{asked.address}/#/ask?goal=told(a, s, t, d, i, b, j)")
        answer = page.get_by_role("region", name="Answer")
        await expect(answer).to_contain_text('{"a":[1,12345678901234567.89,null],"b":"\\"q"}')
        answered = True
        await page.get_by_role("button", name="Proof of").click()
        await expect(page.locator(".tree")).to_contain_text("1h30m, ")
        await expect(page.locator(".tree")).to_contain_text("by told(at: a, sum: s, took: t, ")
        await expect(page.locator(".tree")).not_to_contain_text("absent")


async def test_the_slider_moves_the_answer_and_the_graph(tmp_path: Path, chromium: Browser) -> None:
    async with web(tmp_path) as asked:
        first = await asked.insert()
        await asked.whole.context.clock.sleep(2.0)
        row = b'{"plane": "N9", "delay": 99}'
        headers = {"Content-Type": "application/json"}
        sent = await asked.ask("/v1/tables/delays/rows", "POST", data=row, headers=headers)
        await asked.ask(f"/v1/collections/late/late?as_of={sent.json['time']}&wait_s=60")
        async with console(chromium, asked.address) as page:
            await page.goto(f"{asked.address}/#/ask?goal=late(p, d)")
            table = page.get_by_role("region", name="Answer")
            await expect(table).to_contain_text("N9")
            await page.get_by_label("exactly").fill(str(first))
            await page.get_by_label("exactly").press("Enter")
            await expect(table).not_to_contain_text("N9")
            await expect(table).to_contain_text("N2")
            await page.get_by_role("link", name="Graph").click()
            node = page.get_by_role("button", name="View late")
            await expect(node).to_have_attribute("aria-label", "View late, definite")
            await page.get_by_label("exactly").fill(str(first + 86_400_000))
            await page.get_by_label("exactly").press("Enter")
            await expect(node).to_have_attribute("aria-label", "View late, not definite yet")
            await page.get_by_role("slider").focus()
            await page.keyboard.press("End")
            await page.get_by_role("button", name="Latest").click()
            await expect(node).to_have_attribute("class", "node s-ok")


async def test_rows_are_inserted_and_their_answer_is_watched(
    tmp_path: Path, chromium: Browser
) -> None:
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        await asked.insert()
        await page.goto(f"{asked.address}/#/insert?key=Table%2Fdelays")
        await page.get_by_label("Goal").fill("late(p, d)")
        await page.get_by_role("button", name="Watch").click()
        answer = page.get_by_role("region", name="Watched answer")
        await expect(answer).to_contain_text("N2")
        await page.get_by_label("Rows").fill('{"plane": "N7", "delay": 77}')
        await page.get_by_role("button", name="Insert").click()
        await expect(page.locator(".done")).to_contain_text("1 rows are in delays")
        await expect(answer).to_contain_text("N7")
        assert await barriers(page) == []


async def test_an_answer_is_followed_over_a_stream_that_ends(
    tmp_path: Path, chromium: Browser
) -> None:
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        at = await asked.insert()
        await asked.ask(f"/v1/collections/late/late?as_of={at}&wait_s=60")
        lasts: list[str] = []

        async def cut(route: Route) -> None:
            """End the first stream soon."""
            lasts.append(route.request.headers.get("last-event-id", ""))
            soon_ms = asked.whole.context.clock.now_ms() + 1_500
            end = "" if len(lasts) > 1 else f"&until={soon_ms}"
            await route.continue_(url=route.request.url + end)

        await page.route("**/v1/subscribe?*", cut)
        await page.goto(f"{asked.address}/#/ask?goal=late(p, d)")
        await page.get_by_label("follow").check()
        table = page.get_by_role("region", name="Answer")
        await expect(table).to_contain_text("N2")
        while len(lasts) < 2:
            await page.wait_for_timeout(50)
        await asked.insert(pa.table({"plane": ["N8"], "delay": [88], "gate": ["A"]}))
        await expect(table).to_contain_text("N8")
        cells = table.get_by_role("row").filter(has_text="N2").get_by_role("cell")
        await expect(cells.last).to_have_text("1")  # the snapshot is not there twice
        assert lasts[0] == ""
        assert int(lasts[1].partition("-")[0]) > at


async def test_documents_are_checked_with_places_and_applied(
    tmp_path: Path, chromium: Browser
) -> None:
    good = (
        "apiVersion: tidemill.dev/v1alpha1\nkind: View\nmetadata: {name: early}\nspec:\n"
        "  program: |\n    early(plane: p) := delays(p, d, g) if d < 10;\n"
    )
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        await page.goto(f"{asked.address}/#/apply")
        text = page.get_by_label("Documents")
        await text.fill(good.replace("d < 10", "d < ten").replace("spec:", "spec:\n  much: 1"))
        await page.get_by_role("button", name="Check").click()
        await page.get_by_role("button", name="line 5, column 3").click()
        chosen = "document.activeElement.value.slice(document.activeElement.selectionStart)"
        assert (await page.evaluate(chosen)).startswith("much: 1")
        await text.fill(good.replace("d < 10", "d < ten"))
        await page.get_by_role("button", name="Check").click()
        await page.get_by_role("button", name="line 6").click()
        assert (await page.evaluate(chosen)).startswith("ten")
        await text.fill(good)
        await page.get_by_role("button", name="Check").click()
        await expect(page.locator(".done")).to_contain_text("View/early created")
        assert (await asked.ask("/v1/resources/View/early")).status == 404
        await page.get_by_role("button", name="Apply").click()
        await page.get_by_role("link", name="View/early").click()
        await expect(page.locator("main")).to_contain_text("View early")
        assert (await asked.ask("/v1/resources/View/early")).status == 200


async def test_a_token_is_asked_for_and_kept_by_the_tab_alone(
    tmp_path: Path, chromium: Browser
) -> None:
    users = Named(rita=Grant(Role.reader, ("delays",)))
    async with web(tmp_path, users) as asked, console(chromium, asked.address) as page:
        await page.goto(asked.address)
        await page.get_by_label("Token", exact=True).fill("rita")
        await page.get_by_role("button", name="Use it").click()
        await expect(page.get_by_role("button", name="Table delays")).to_be_visible()
        await expect(page.locator("main")).not_to_contain_text("View late")
        assert await page.evaluate("Object.keys(localStorage).length") == 0
        await page.goto(f"{asked.address}/#/insert?key=Table%2Fdelays")
        await page.get_by_label("Rows").fill('{"plane": "N7", "delay": 77}')
        await page.get_by_role("button", name="Insert").click()
        await expect(page.get_by_role("alert")).to_contain_text("needs the role writer")


def resource(number: int) -> dict[str, Any]:
    """A view that reads the one ten numbers before it."""
    return {
        "kind": "View", "name": f"v{number:04}", "ready": True, "reason": "Running",
        "message": "", "since": [0], "upper": [1_700_000_000_000 + number], "lag_ms": number,
        "age_ms": 1000, "document": "kind: View\n", "records_per_s": None,
        "records_behind": None, "left_ms": None,
        "details": {"reads": [f"v{number - 10:04}/out"]} if number >= 10 else {},
    }  # fmt: skip


async def test_the_frontiers_of_a_resource_are_drawn_over_time(
    tmp_path: Path, chromium: Browser
) -> None:
    async with web(tmp_path) as asked:
        at = await asked.insert()
        await asked.ask(f"/v1/collections/late/late?as_of={at}&wait_s=60")
        looks = (await asked.ask("/v1/frontiers/late/late")).json
        assert looks[-1]["upper"] > at >= looks[-1]["since"]
        assert (await asked.ask("/v1/frontiers/none")).status == 404
        async with console(chromium, asked.address) as page:
            await page.goto(f"{asked.address}/#/resource?key=View%2Flate")
            drawing = page.get_by_label("Frontiers over time")
            await expect(drawing.locator("polyline").first).to_have_attribute(
                "points", re.compile(r"\d+\.\d,\d+\.\d")
            )
            await expect(page.locator("main")).to_contain_text("late/late: ")


COUNTS_CHANGES = """() => {
  window.most = 0;
  const seen = new MutationObserver((found) => {
    window.most = Math.max(window.most, found.length);
  });
  const all = { subtree: true, childList: true, attributes: true, characterData: true };
  seen.observe(document.body, all);
}"""
"""Keeps the most changes of the page between two turns of its event loop."""

CHANGES_MAX = 6
"""Changes of one drawn element at a look: its texts, its class, its bar."""


@pytest.mark.parametrize("count", [1_000, 4_000])
async def test_a_look_at_any_number_of_resources_changes_what_is_drawn_alone(
    tmp_path: Path, chromium: Browser, count: int
) -> None:
    """All resources change at each look."""
    looks = 0

    async def answer(route: Route) -> None:
        nonlocal looks
        looks += 1
        told = [resource(number) for number in range(count)]
        moved = [{**each, "lag_ms": each["lag_ms"] + looks * 1_111} for each in told]
        await route.fulfill(body=json.dumps(moved))

    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        await page.route("**/v1/resources?*", answer)
        await page.goto(asked.address)
        await expect(page.locator("main")).to_contain_text(f"{count} resources; the")
        await page.evaluate(COUNTS_CHANGES)
        before = looks
        while looks < before + 3:
            await asyncio.sleep(0.05)
        await page.wait_for_function("window.most > 0")
        found: int = await page.evaluate("window.most")
        drawn = await page.locator(".node").count() + await page.locator(".item").count()
        assert found <= CHANGES_MAX * drawn
        assert drawn < 220


async def test_a_thousand_resources_are_listed_and_drawn_by_few_elements(
    tmp_path: Path, chromium: Browser
) -> None:
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        body = json.dumps([resource(number) for number in range(1000)])
        await page.route("**/v1/resources?*", lambda route: route.fulfill(body=body))
        await page.goto(asked.address)
        await expect(page.locator("main")).to_contain_text("1000 resources; the")
        listed = page.get_by_role("listbox", name="Resources")
        await listed.focus()
        await page.keyboard.press("End")
        chosen = listed.get_by_role("option", selected=True)
        await expect(chosen).to_contain_text("v0999")
        await expect(page.locator(".sentence")).to_contain_text(
            "it waits for View v0989 (989 ms behind), which waits for View v0979"
        )
        assert await page.locator(".item").count() < 60
        assert await page.locator(".node").count() <= 150
        await page.get_by_label("Search resources").fill("v0123")
        await expect(listed.get_by_role("option")).to_have_count(1)
        assert await barriers(page) == []
