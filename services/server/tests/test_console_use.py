"""The console as people use it: by keys, in narrow windows, over reloads, with hostile texts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, Route, expect

from tidemill.rpc.identity import Grant, Role
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.browsing import barriers, console
from tidemill.testkit.web import VIEW, Named, Web, web

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="session")]
expect.set_options(timeout=15_000)

TABS_MAX = 60
"""Stops of the tab key within which everything on a screen is reached."""

SCREENS = (
    "graph?at=View%2Flate", "resource?key=View%2Flate", "insert", "apply",
    "ask?goal=late(p,d)&record=late(%22N2%22,45)",
)  # fmt: skip


async def definite(asked: Web, at: int, collection: str = "late/late") -> None:
    """Return once the instant is definite."""
    said = await asked.ask(f"/v1/collections/{collection}?as_of={at}&wait_s=60")
    assert said.status == 200, said.body


async def reach(page: Page, wanted: Locator) -> None:
    """Press the tab key until an element has the focus."""
    for _ in range(TABS_MAX):
        if await wanted.evaluate("element => element === document.activeElement"):
            return
        await page.keyboard.press("Tab")
    raise AssertionError(f"the tab key does not lead to {wanted}")


async def test_every_screen_is_used_by_keys_alone(tmp_path: Path, chromium: Browser) -> None:
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        await definite(asked, await asked.insert())
        keys, main = page.keyboard, page.locator("main")
        await page.goto(asked.address)
        await expect(page.locator(".item")).to_have_count(2)
        await reach(page, page.get_by_role("listbox", name="Resources"))
        await keys.press("End")
        await expect(page.locator(".sentence")).to_contain_text("View late")
        await reach(page, page.get_by_role("button", name="Open late"))
        await keys.press("Enter")
        await expect(main).to_contain_text("What keeps its history")
        await keys.press("1")
        await reach(page, page.get_by_role("button", name="Table delays"))
        await keys.press("Enter")
        await expect(main).to_contain_text("Table delays")
        await keys.press("2")
        await expect(page.get_by_role("heading", name="Ask")).to_be_visible()
        await keys.press("/")
        await keys.type("late(p, d)")
        await keys.press("Enter")
        await reach(page, page.get_by_role("button", name='Proof of late("N2", 45)'))
        await keys.press("Enter")
        await expect(page.locator(".tree")).to_contain_text('delays("N2", 45, "B")')
        record = page.get_by_label("Record")
        await reach(page, record)
        await keys.press("ControlOrMeta+A")
        await keys.type('late("N1", 5)')
        await keys.press("Enter")
        await expect(page.locator(".tree")).to_contain_text("the guard is false for d = 5")
        fold = page.locator(".tree summary").first
        await reach(page, fold)
        await keys.press("Enter")
        await expect(page.locator(".tree details").first).not_to_have_attribute("open", "")
        await keys.press("3")
        await expect(page.get_by_role("heading", name="Insert")).to_be_visible()
        await keys.press("/")
        await keys.type('{"plane": "N7", "delay": 77}')
        await keys.press("Tab")
        await keys.press("Enter")
        await expect(page.locator(".done")).to_contain_text("1 rows are in delays")
        await keys.press("4")
        await expect(page.get_by_role("heading", name="Apply")).to_be_visible()
        await keys.press("/")
        await keys.type(VIEW.strip().replace("d >= 30", "d >= x"))
        await keys.press("Tab")  # to check
        await keys.press("Enter")
        await reach(page, page.get_by_role("button", name="line 4, column 83"))
        await keys.press("Enter")
        chosen = "document.activeElement.value.slice(document.activeElement.selectionStart)"
        assert (await page.evaluate(chosen)).startswith("x;")


async def test_keys_of_one_letter_are_turned_off_and_stay_off(
    tmp_path: Path, chromium: Browser
) -> None:
    """WCAG 2.1.4: whoever speaks to a machine presses keys that nobody meant."""
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        await page.goto(asked.address)
        graph, ask = (page.get_by_role("link", name=name, exact=True) for name in ("Graph", "Ask"))
        await page.keyboard.press("2")
        await expect(ask).to_have_attribute("aria-current", "page")
        await reach(page, page.get_by_role("checkbox", name="Keys"))
        await page.keyboard.press("Space")
        await page.keyboard.press("1")
        await page.reload()
        await expect(page.get_by_role("checkbox", name="Keys")).not_to_be_checked()
        for key in ("1", "/", "l"):
            await page.keyboard.press(key)
        await expect(ask).to_have_attribute("aria-current", "page")
        assert await page.evaluate("document.activeElement === document.body")
        await page.get_by_role("checkbox", name="Keys").check()
        await page.keyboard.press("1")
        await expect(graph).to_have_attribute("aria-current", "page")


async def test_the_instant_is_chosen_by_keys(tmp_path: Path, chromium: Browser) -> None:
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        await definite(asked, await asked.insert())
        await page.goto(asked.address)
        slider = page.get_by_role("slider")
        await expect(slider).to_be_enabled()
        await reach(page, slider)
        await page.keyboard.press("ArrowLeft")
        await expect(slider).not_to_have_attribute("aria-valuetext", "latest")
        await page.keyboard.press("End")
        await expect(slider).to_have_attribute("aria-valuetext", "latest")


@pytest.mark.parametrize("screen", SCREENS)
async def test_a_narrow_window_needs_no_scrolling_aside(
    tmp_path: Path, chromium: Browser, screen: str
) -> None:
    """The width of a page of 1,280 pixels that is enlarged four times."""
    size: Any = {"width": 320, "height": 800}
    async with web(tmp_path) as asked, console(chromium, asked.address, viewport=size) as page:
        await definite(asked, await asked.insert())
        await page.goto(f"{asked.address}/#/{screen}")
        await expect(page.locator("#said")).to_contain_text("2 resources")
        await expect(page.locator("main h2").first).to_be_visible()
        wide = "[document.documentElement.scrollWidth, document.querySelector('main').scrollWidth]"
        assert max(await page.evaluate(wide)) <= 320
        assert await barriers(page) == []


async def test_a_screen_that_is_loaded_again_shows_the_same(
    tmp_path: Path, chromium: Browser
) -> None:
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        first = await asked.insert()
        await asked.whole.context.clock.sleep(0.5)
        row = b'{"plane": "N9", "delay": 99}'
        headers = {"Content-Type": "application/json"}
        sent = await asked.ask("/v1/tables/delays/rows", "POST", data=row, headers=headers)
        await definite(asked, sent.json["time"])
        await page.goto(f"{asked.address}/#/ask?goal=late(p, d)")
        table = page.get_by_role("region", name="Answer")
        await expect(table).to_contain_text("N9")
        await page.get_by_label("exactly").fill(str(first))
        await page.get_by_label("exactly").press("Enter")
        await expect(table).not_to_contain_text("N9")
        await page.get_by_role("button", name='Proof of late("N2", 45)').click()
        await expect(page.locator(".tree")).to_contain_text("delays")
        await page.reload()
        await expect(page.locator(".tree")).to_contain_text("delays")
        await expect(table).to_contain_text("N2")
        await expect(table).not_to_contain_text("N9")
        await page.get_by_role("link", name="Graph").click()
        node = page.get_by_role("button", name="View late")
        await node.click()
        await page.reload()
        await expect(node).to_have_attribute("aria-label", "View late, definite")
        await expect(node).to_have_attribute("class", "node s-ok chosen")
        await page.get_by_role("button", name="Latest").click()
        await page.go_back()  # to the question, whose address states its instant
        await expect(table).to_contain_text("N2")
        await expect(table).not_to_contain_text("N9")
        await page.go_forward()  # to the graph, whose address states none
        await expect(page.locator("#t-said")).to_contain_text("latest")
        for screen in SCREENS:
            await page.goto(f"{asked.address}/#/{screen}")
            await page.reload()
            await expect(page.locator("main h2").first).to_be_visible()


NOW = ("State", "Lag over time", "Holders", "What keeps its history", "Plan")


async def test_the_slider_moves_the_panels_of_a_resource(tmp_path: Path, chromium: Browser) -> None:
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        at = await asked.insert()
        await definite(asked, at)
        await page.goto(f"{asked.address}/#/resource?key=View%2Flate")
        main, exactly = page.locator("main"), page.get_by_label("exactly")
        await expect(page.locator(".spark polyline").first).to_be_attached()
        line = page.get_by_label("Frontiers over time").locator(".at")
        await expect(line).to_have_attribute("y1", "-9")
        await exactly.fill(str(at))
        await exactly.press("Enter")
        await expect(main.locator("dt").first).to_contain_text("as of ")
        await expect(main.locator("dd").first).to_have_text("definite")
        await expect(main.locator("dl").first).to_contain_text("became definite")
        for title in NOW:
            await expect(main.locator("h3", has_text=title)).to_have_text(f"{title} now")
            await expect(main.locator("h3", has_text=title).locator(".now")).to_be_visible()
        await expect(page.locator(".sentence").first).to_contain_text("Now: ")
        await expect(line).not_to_have_attribute("y1", "-9")
        await exactly.fill(str(at + 86_400_000))
        await exactly.press("Enter")
        await expect(main.locator("dd").first).to_have_text("not definite yet")
        await page.get_by_role("button", name="Latest").click()
        await expect(main.locator("dl").first).to_be_hidden()
        await expect(main.locator(".now:visible")).to_have_count(0)
        await expect(page.locator(".sentence").first).not_to_contain_text("Now: ")


@pytest.mark.parametrize(
    ("screen", "says"), [("insert", "watched answer"), ("apply", "from now on")]
)
async def test_a_screen_of_the_present_says_so_while_the_slider_is_in_the_past(
    tmp_path: Path, chromium: Browser, screen: str, says: str
) -> None:
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        at = await asked.insert()
        await definite(asked, at)
        await page.goto(f"{asked.address}/#/{screen}?t={at}")
        told = page.locator(".sentence")
        await expect(told).to_contain_text(says)
        await expect(told.locator(".now")).to_be_visible()
        assert await barriers(page) == []
        await page.get_by_role("button", name="Latest").click()
        await expect(told).to_be_hidden()


PAST = """async () => {
  const { past } = await import("/console/resource.js");
  const looks = [[1000, 0, 900], [2000, 100, 1800], [3000, 200, 2300], [4000, 300, null]]
    .map(([at_ms, since, upper]) => ({ at_ms, since, upper }));
  return [[past(looks, 500, true), past(looks, 2500, true), past(looks, 2500, false),
    past(looks, 3999, true), past(looks, null, true), past([], 5, true), past(looks, 99_999_999, true)],
    looks.map((each) => each.at_ms)];
}"""


async def test_frontiers_of_the_past_are_those_of_the_last_look_before(
    tmp_path: Path, chromium: Browser
) -> None:
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        await page.goto(asked.address)
        (early, middle, events, late, latest, empty, future), _ = await page.evaluate(PAST)
        assert early == {"definite": "before 1970-01-01 00:00:01.000Z"}
        when = "between 1970-01-01 00:00:03.000Z and 1970-01-01 00:00:04.000Z"
        assert middle == {"definite": when, "upper": 1800, "since": 100, "rate": "0.90"}
        assert events == {"definite": when}  # no wall clock is at an event's instant
        assert (late["upper"], late["since"], late["rate"]) == (2300, 200, "0.50")
        assert (latest, empty) == (None, None)
        assert "upper" not in future


async def test_a_resource_that_is_deleted_while_it_is_open_is_gone_and_comes_back(
    tmp_path: Path,
    chromium: Browser,
) -> None:
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        await definite(asked, await asked.insert())
        await page.goto(f"{asked.address}/#/resource?key=View%2Flate")
        main = page.locator("main")
        await expect(main).to_contain_text("What keeps its history")
        assert (await asked.ask("/v1/resources/View/late", "DELETE")).status == 204
        await expect(main.get_by_role("alert")).to_contain_text("There is no View/late")
        await expect(page.get_by_text("What keeps its history")).to_be_hidden()
        await asked.whole.controller.apply([ResourceDocument(VIEW, "test.yaml")])
        await expect(page.get_by_text("What keeps its history")).to_be_visible()
        # Its collection has another id, and the same name.
        await expect(page.get_by_role("link", name="Ask late/late")).to_be_visible()
        await expect(main).to_contain_text("late/late: ")
        await page.get_by_role("link", name="Ask late/late").click()
        await page.get_by_role("button", name='Proof of late/late("N2", 45)').click()
        await expect(page.locator(".tree")).to_contain_text('delays("N2", 45, "B")')


async def test_an_answer_of_a_view_that_was_made_again_comes_from_no_cache(
    tmp_path: Path, chromium: Browser
) -> None:
    """Caches keep what is definite for a year, and the name means another collection by then."""
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        at = await asked.insert()
        await definite(asked, at)
        await page.goto(f"{asked.address}/#/ask?goal=late(p, d)&t={at}")
        table = page.get_by_role("region", name="Answer")
        await expect(table).to_contain_text("N3")
        assert (await asked.ask("/v1/resources/View/late", "DELETE")).status == 204
        changed = VIEW.replace("d >= 30", "d >= 40")
        await asked.whole.controller.apply([ResourceDocument(changed, "test.yaml")])
        await definite(asked, at)
        await page.get_by_role("button", name="Ask", exact=True).click()
        await expect(table).not_to_contain_text("N3")
        await expect(table).to_contain_text("N2")


HOSTILE = (
    "<img src=x onerror=alert(1)><script>alert(2)</script>", "javascript:alert(3)", "</td></table>",
    "\u202egnp.exe\u202c", "\u05d0\u05d1 (1, 2) \u05d2", "\u0000\u0001\b\f\r\n\t\x7f", '"\\\'`${7*7}',
    "\U0001f469\u200d\U0001f469", "x" * 200_000,
)  # fmt: skip


async def test_no_text_of_a_row_is_more_than_text(tmp_path: Path, chromium: Browser) -> None:
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        dialogs: list[str] = []
        page.on("dialog", lambda shown: dialogs.append(shown.message))
        rows = "\n".join(json.dumps({"plane": text, "delay": 60}) for text in HOSTILE)
        headers = {"Content-Type": "application/json"}
        sent = await asked.ask("/v1/tables/delays/rows", "POST", data=rows, headers=headers)
        assert sent.status == 200, sent.body
        await definite(asked, sent.json["time"])
        await page.goto(f"{asked.address}/#/ask?goal=late(p, d)")
        table = page.get_by_role("region", name="Answer")
        await expect(table.locator("tbody tr")).to_have_count(len(HOSTILE))
        shown = await table.locator("tbody tr td:nth-child(2)").all_text_contents()
        assert set(HOSTILE[:-1]) <= set(shown)
        assert max(map(len, shown)) < 400  # one that nobody can read whole is cut
        for at, text in enumerate(shown):
            await table.get_by_role("button", name="Proof of").nth(at).click()
            await expect(page.locator(".tree")).to_contain_text("delays(")
            await expect(page.locator(".tree")).not_to_contain_text("absent")
            if text.endswith("characters)"):
                await expect(page.locator(".tree")).to_contain_text("… (200")
        await page.get_by_label("follow").check()
        await expect(page.locator("main")).to_contain_text("followed")
        assert await page.locator("main img, main script").count() == 0
        assert not dialogs


async def test_a_token_that_is_not_valid_any_more_is_told_of_and_replaced(
    tmp_path: Path, chromium: Browser
) -> None:
    grants = {"rita": Grant(Role.reader)}
    users = Named(**grants)
    async with web(tmp_path, users) as asked, console(chromium, asked.address) as page:
        await page.goto(asked.address)
        await page.get_by_label("Token", exact=True).fill("rita")
        await page.get_by_role("button", name="Use it").click()
        await expect(page.get_by_role("button", name="View late")).to_be_visible()
        users.rename("rita", "rosa")
        alert = page.get_by_role("alert")
        await expect(alert).to_contain_text("give a token")
        await expect(page.get_by_role("button", name="View late")).to_be_hidden()
        await page.get_by_role("button", name="Token", exact=True).click()
        await page.get_by_label("Token", exact=True).fill("rosa")
        await page.get_by_role("button", name="Use it").click()
        await expect(page.get_by_role("button", name="View late")).to_be_visible()
        await expect(alert).to_have_count(0)


async def test_too_much_to_follow_is_told_and_not_drawn(tmp_path: Path, chromium: Browser) -> None:
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        rows = "\n".join(json.dumps({"plane": f"N{n}", "delay": 60}) for n in range(25_000))
        headers = {"Content-Type": "application/json"}
        sent = await asked.ask("/v1/tables/delays/rows", "POST", data=rows, headers=headers)
        await definite(asked, sent.json["time"])
        await page.goto(f"{asked.address}/#/ask?goal=late(p, d)")
        await expect(page.locator("main")).to_contain_text("the first 500 rows as of")
        await page.get_by_label("follow").check()
        await expect(page.get_by_role("alert")).to_contain_text("too long to be followed")


async def test_the_slider_moves_definitions_and_the_graph(
    tmp_path: Path, chromium: Browser
) -> None:
    """Resources that came later or are gone are told apart; an instant that is not kept is too."""
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        controller, store = asked.whole.controller, asked.whole.context.store
        first = store.upper - 1
        changed = ResourceDocument(VIEW.replace("d >= 30", "d >= 40"), "test.yaml")
        await controller.apply([changed])
        other = VIEW.replace("name: late", "name: later").replace("late(plane", "later(plane")
        await controller.apply([ResourceDocument(other, "test.yaml")])
        defined, exactly = page.get_by_label("Definition"), page.get_by_label("exactly")
        await page.goto(f"{asked.address}/#/resource?key=View%2Flate")
        await expect(defined).to_contain_text("d >= 40")
        await exactly.fill(str(first))
        await exactly.press("Enter")
        await expect(defined).to_contain_text("d >= 30")
        heading = page.locator("main h3", has_text="Definition")
        await expect(heading).to_contain_text("as of 2")
        assert await barriers(page) == []
        await page.get_by_role("link", name="Graph", exact=True).click()
        await expect(page.get_by_role("button", name="View later, not there then")).to_be_visible()
        await controller.delete("View", "late")
        await expect(page.get_by_role("button", name="View late, deleted since")).to_be_visible()
        await page.goto(f"{asked.address}/#/resource?key=View%2Flate&t={first}")
        await expect(page.get_by_role("alert")).to_contain_text("There is no View/late")
        await expect(defined).to_contain_text("d >= 30")
        await page.get_by_role("button", name="Latest").click()
        await expect(defined).to_be_hidden()
        await page.goto(f"{asked.address}/#/resource?key=Table%2Fdelays&t=5")
        await expect(defined).to_contain_text("they can be read since")


async def test_an_instant_that_was_left_before_its_answer_came_is_not_shown(
    tmp_path: Path, chromium: Browser
) -> None:
    """The companion: the request for that instant was under way, and is given up."""
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        first = asked.whole.context.store.upper - 1
        other = VIEW.replace("name: late", "name: later").replace("late(plane", "later(plane")
        await asked.whole.controller.apply([ResourceDocument(other, "test.yaml")])
        held: list[Route] = []
        requested = asyncio.Event()

        async def hold(route: Route) -> None:
            held.append(route)
            requested.set()

        await page.route("**/v1/resources?*as_of=*", hold)
        await page.goto(asked.address)
        await page.get_by_label("exactly").fill(str(first))
        await page.get_by_label("exactly").press("Enter")
        await asyncio.wait_for(requested.wait(), 60)
        async with page.expect_event("requestfailed", lambda each: "as_of=" in each.url):
            await page.get_by_role("button", name="Latest").click()
        await expect(page.get_by_role("button", name="View later")).to_be_visible()
        await expect(page.get_by_role("button", name="not there then")).to_have_count(0)
        assert len(held) == 1
