"""Reads and writes of a resource are permitted as planned, whatever its text calls them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidemill.catalog.apply.permissions import permit_topics
from tidemill.catalog.apply.plan import Plan, plan_apply
from tidemill.catalog.store import CatalogMoved
from tidemill.errors import Denied, TidemillError, UnknownCollection, UsageError
from tidemill.rpc.identity import EVERYBODY, PROCESS, Grant, Principal, Role, caller
from tidemill.rpc.messages import Outcome, ResourceDocument
from tidemill.runtime.resources import load_resources
from tidemill.testkit.whole import Whole, opened
from tidemill_query import controller
from tidemill_query.authorizing import AuthorizedCatalog, AuthorizedQueries
from tidemill_server.settings import ServerSettings

SAL = Principal("sal", (Grant(Role.admin, ("s*",)),))
OPS = Principal("ops", (Grant(Role.admin, ("ops-*",)),))


def document(kind: str, name: str, spec: str) -> str:
    return (
        "apiVersion: tidemill.dev/v1alpha1\n"
        f"kind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"
    )


def table(name: str) -> str:
    return document("Table", name, "{columns: [{name: w, type: text}, {name: a, type: int}]}")


PEOPLE = table("people")
PAYROLL = document("View", "payroll", '{program: "salary(w: w, a: a) := people(w, a);"}')


def reading(kind: str, name: str) -> str:
    """A resource that reads what is called `name`."""
    if kind == "View":
        return document(kind, "sneak", f'{{inputs: {{i: {name}}}, program: "got(w, a) := i(w, a);"}}')  # fmt: skip
    if kind == "Rule":
        return document("View", "sneak", f'{{program: "got(w, a) := {name}(w, a);"}}')
    if kind == "Action":
        sink = "sink: {file: {path: out}}"
        return document(kind, "sneak", f'{{view: {name}, goal: "salary(w, a)", {sink}}}')
    if kind == "Arrangement":
        return document(kind, "sneak", f"{{collection: {name}, key: [w]}}")
    return document(kind, "sneak", f"{{collection: {name}}}")


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    async with opened(ServerSettings(directory=str(folder / "state"))) as process:
        await process.start()
        yield process


@contextmanager
def called_by(who: Principal) -> Iterator[None]:
    before = caller.set(who)
    try:
        yield
    finally:
        caller.reset(before)


async def apply(process: Whole, who: Principal, *texts: str) -> list[Outcome]:
    """Apply the texts in a call of `who`."""
    catalog = AuthorizedCatalog(process.controller, process.context.catalog)
    documents = [ResourceDocument(text, "test.yaml") for text in texts]
    with called_by(who):
        return [applied.outcome for applied in await catalog.apply(documents)]


async def meet_refusal(process: Whole, who: Principal, *texts: str) -> TidemillError:
    with pytest.raises(UsageError) as error:
        await apply(process, who, *texts)
    assert all(stored.resource.name != "sneak" for stored in process.context.store.live())
    return error.value


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("Rule", "salary"),  # a rule names predicates alone
        *((k, w) for k in ("View", "Arrangement", "Hold") for w in ("salary", "payroll/salary")),
    ],
)
async def test_a2_what_is_read_is_permitted_under_its_whole_name(
    tmp_path: Path, kind: str, written: str
) -> None:
    async with running(tmp_path) as process:
        await apply(process, EVERYBODY, PEOPLE, PAYROLL)
        error = await meet_refusal(process, SAL, reading(kind, written))
        assert isinstance(error, Denied)
        assert f"sal is no reader of {written}" in str(error)
        if written == "salary":
            assert "payroll" not in str(error)


async def test_a2_an_action_needs_the_right_on_its_view(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, EVERYBODY, PEOPLE, PAYROLL)
        for view in ("payroll", "payrolls"):
            error = await meet_refusal(process, SAL, reading("Action", view))
            assert isinstance(error, Denied), error


async def test_a2_an_action_that_tells_proofs_needs_the_right_on_what_its_view_reads(
    tmp_path: Path,
) -> None:
    sal = Principal("sal", (*SAL.grants, Grant(Role.reader, ("payroll",))))
    async with running(tmp_path) as process:
        await apply(process, EVERYBODY, PEOPLE, PAYROLL)
        told = document(
            "Action", "sneak",
            '{view: payroll, goal: "salary(w, a)", sink: {http: {url: "http://127.0.0.1:1", '
            "contentType: text/plain, body: '${record}'}}}",
        )  # fmt: skip
        error = await meet_refusal(process, sal, told.replace("record", "proof"))
        assert isinstance(error, Denied)
        assert "sal is no reader of people, which payroll reads" in str(error)
        assert await apply(process, sal, told) == [Outcome.CREATED]


async def test_a2_a_changed_view_is_permitted_anew(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, EVERYBODY, PEOPLE, PAYROLL)
        own = document("View", "s-v", '{program: "got(w, a) := s-t(w, a);"}').replace("s-t", "st")
        await apply(process, SAL, table("st"), own)
        with pytest.raises(Denied, match="no reader of salary"):
            await apply(process, SAL, own.replace("st(w", "salary(w"))
        assert await apply(process, SAL, own) == [Outcome.UNCHANGED]


async def test_a2_who_may_read_all_of_it_may_apply_it(tmp_path: Path) -> None:
    both = Principal("both", (Grant(Role.admin, ("s*",)), Grant(Role.reader, ("payroll",))))
    async with running(tmp_path) as process:
        await apply(process, EVERYBODY, PEOPLE, PAYROLL)
        assert await apply(process, both, reading("View", "salary")) == [Outcome.CREATED]


@pytest.mark.parametrize("kind", ["View", "Rule", "Arrangement", "Hold"])
async def test_a2_a_name_that_somebody_takes_later_changes_nothing(
    tmp_path: Path, kind: str
) -> None:
    """`salary` is a predicate of s-pay; a table of that name is another collection."""
    mine = document("View", "s-pay", '{program: "salary(w: w, a: a) := st(w, a);"}')
    async with running(tmp_path) as process:
        await apply(process, SAL, table("st"), mine, reading(kind, "salary"))
        await apply(process, EVERYBODY, table("salary"))
    async with running(tmp_path) as process:
        stored = next(s for s in process.context.store.live() if s.resource.name == "sneak")
        assert list(stored.resolved["reads"].values()) == ["s-pay/salary"]
        if kind in ("View", "Rule"):
            (read,) = process.context.catalog.planned("sneak").inputs.values()
            assert read.name == "s-pay/salary"
        with pytest.raises(UsageError, match="is used by"):
            await process.controller.delete("View", "s-pay")


async def test_a2_a_version_that_took_over_keeps_what_it_reads(tmp_path: Path) -> None:
    mine = document("View", "s-pay", '{program: "salary(w: w, a: a) := st(w, a);"}')
    async with running(tmp_path) as process:
        await apply(process, SAL, table("st"), mine, reading("View", "salary"))
        changed = reading("View", "salary").replace("i(w, a);", "i(w, a) if a > 1;")
        assert await apply(process, SAL, changed) == [Outcome.CONFIGURED]
        await apply(process, EVERYBODY, table("salary"))
    async with running(tmp_path) as process:
        (read,) = process.context.catalog.planned("sneak").inputs.values()
        assert read.name == "s-pay/salary"


# -- races between processes -----------------------------------------------------------------------


@asynccontextmanager
async def two_processes(folder: Path) -> AsyncIterator[tuple[Whole, Whole]]:
    """Two query processes over one catalog; neither follows what the other writes by itself."""
    async with AsyncExitStack() as stack:
        found = []
        for name in ("one", "two"):
            settings = {
                "directory": str(folder / name), "name": name, "role": ["query"],
                "store": {"consensus": f"sqlite:{folder / 'c.sqlite'}", "blob": f"file:{folder / 'b'}"},
                "services": {"address": "127.0.0.1:0"},
            }  # fmt: skip
            chosen = msgspec.convert(settings, ServerSettings)
            process = await stack.enter_async_context(opened(chosen))
            await process.start()
            found.append(process)
        yield found[0], found[1]


OVER = document("View", "ops-v", '{inputs: {i: pay0}, program: "stolen(w, a) := i(w, a);"}')
RULE = document("View", "ops-v", '{program: "stolen(w, a) := pay0(w, a);"}')


@pytest.mark.parametrize("text", [OVER, RULE])
async def test_a3_a_table_made_at_another_process_is_not_read_without_a_right(
    tmp_path: Path, text: str
) -> None:
    async with two_processes(tmp_path) as (one, two):
        await apply(one, EVERYBODY, table("pay0"))
        with pytest.raises(Denied, match="ops is no reader of pay0"):
            await apply(two, OPS, text)
        assert two.context.store.get("View", "ops-v") is None


MINE = document("View", "ops-x", '{program: "pay0(w, a) := ops-t(w, a);"}').replace("ops-t", "opst")


@pytest.mark.parametrize("moment", ["looking", "planning", "writing"])
async def test_a3_what_is_made_meanwhile_is_permitted_at_the_version_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A pause in the middle of the apply, and in it a table that gives the name another meaning."""
    own = Principal("ops", (Grant(Role.admin, ("ops*",)),))
    async with two_processes(tmp_path) as (one, two):
        await apply(two, own, table("opst"), MINE)
        moved: list[str] = []
        ids, put = two.context.collections.ids, two.context.store.put

        async def move_once() -> None:
            if not moved:
                moved.append("moved")
                await apply(one, EVERYBODY, table("pay0"))

        async def read_anew() -> None:
            """The catalog alone: what its names mean is not known yet."""
            await move_once()
            await two.context.store.refresh()

        async def ids_then_moved() -> object:
            found = await ids()
            await read_anew()
            return found

        async def move_then_plan(*arguments: Any) -> Plan:
            await read_anew()
            return await plan_apply(*arguments)

        async def move_then_put(*arguments: object) -> None:
            await move_once()
            try:
                await put(*arguments)  # type: ignore[arg-type]
            except CatalogMoved:
                moved.append("refused")
                raise

        if moment == "looking":
            monkeypatch.setattr(two.context.collections, "ids", ids_then_moved)
        if moment == "planning":
            monkeypatch.setattr(controller, "plan_apply", move_then_plan)
        monkeypatch.setattr(two.context.store, "put", move_then_put)
        with pytest.raises(Denied, match="ops is no reader of pay0"):
            await apply(two, own, RULE)
        assert moved == ["moved", "refused"]
        assert two.context.store.get("View", "ops-v") is None


# -- what nobody is told ---------------------------------------------------------------------------


async def test_a4_hints_name_nothing_that_the_caller_may_not_list(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, EVERYBODY, PEOPLE, PAYROLL, table("salaries"))
        hidden = Principal("sal", (Grant(Role.admin, ("sal", "sneak", "salary1")),))
        queries = AuthorizedQueries(process.query, process.context.catalog)
        said = [
            str(await meet_refusal(process, hidden, reading("View", "sal"))),
            str(await meet_refusal(process, hidden, reading("Rule", "salary1"))),
        ]
        for asking in ("sal(x)", "salary1(x)"):
            with called_by(hidden), pytest.raises(UnknownCollection) as unknown:
                await queries.ask(asking, None, None)
            said.append(str(unknown.value))
        with called_by(hidden), pytest.raises(Denied) as denied:
            await queries.ask("salary(w, a)", None, None)
        said.append(str(denied.value))
        for each in said:
            assert "payroll" not in each
            assert "salaries" not in each
        with called_by(EVERYBODY), pytest.raises(UnknownCollection, match="did you mean salar"):
            await queries.ask("salary1(x)", None, None)


async def test_a4_who_deletes_is_told_of_readers_that_it_may_see(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, EVERYBODY, PEOPLE, PAYROLL)
        owner = Principal("owner", (Grant(Role.admin, ("people",)),))
        catalog = AuthorizedCatalog(process.controller, process.context.catalog)
        with called_by(owner), pytest.raises(UsageError, match="1 that you may not see") as used:
            await catalog.delete("Table", "people")
        assert "payroll" not in str(used.value)
        with called_by(EVERYBODY), pytest.raises(UsageError, match="used by View/payroll"):
            await catalog.delete("Table", "people")


async def test_a4_who_keeps_history_is_named_to_who_may_see_it(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, EVERYBODY, PEOPLE, PAYROLL)
        owner = Principal("owner", (Grant(Role.reader, ("people",)),))
        catalog = AuthorizedCatalog(process.controller, process.context.catalog)
        queries = AuthorizedQueries(process.query, process.context.catalog)
        with called_by(owner):
            status = await catalog.describe("Table", "people")
            listed = await queries.collections()
        reader = Principal("reader", (Grant(Role.reader, ("payroll",)),))
        with called_by(reader):
            (read,) = await catalog.get("View", None)
        assert read.details["reads"] == ["…"]
        assert "payroll" not in str(status.details) + str(listed)
        assert {each.id for each in listed} == {"people"}


async def test_a4_nobody_may_do_anything_where_nobody_was_asked(tmp_path: Path) -> None:
    """A path that forgets to set who calls is refused, not an administrator."""
    async with running(tmp_path) as process:
        catalog = AuthorizedCatalog(process.controller, process.context.catalog)
        with pytest.raises(Denied, match="nobody is no admin"):
            await catalog.apply([ResourceDocument(PEOPLE, "test.yaml")])


# -- topics of the own log -------------------------------------------------------------------------

COLUMNS = "columns: [{name: a, type: int}], format: {json: {}}"


def over_topic(name: str, topic: str, bootstrap: str = "") -> str:
    at = f", bootstrap: '{bootstrap}'" if bootstrap else ""
    return document("Source", name, f"{{kafka: {{topic: {topic}{at}}}, {COLUMNS}}}")


def into_topic(name: str, topic: str) -> str:
    sink = f"sink: {{log: {{topic: {topic}}}}}"
    return document("Action", name, f'{{view: ops-v, goal: "got(a)", {sink}}}')


PUSHED = document("Source", "payments", f"{{http: {{}}, {COLUMNS}}}")
WATCHED = document("View", "ops-v", '{program: "got(w) := opst(w, _);"}')


async def test_a1_what_was_pushed_to_a_source_is_read_and_written_by_who_may(
    tmp_path: Path,
) -> None:
    own = Principal("ops", (Grant(Role.admin, ("ops*",)),))
    reader = Principal("ops", (*own.grants, Grant(Role.reader, ("payments",))))
    async with running(tmp_path) as process:
        await apply(process, EVERYBODY, PUSHED)
        await apply(process, own, table("opst"), WATCHED.replace("got(w)", "got(a)").replace("(w, _)", "(_, a)"))  # fmt: skip
        for topic in ("http.payments", "http.payments.2", "http.elsewhere"):
            with pytest.raises(Denied, match="no reader of"):
                await apply(process, own, over_topic("ops-s", topic))
            with pytest.raises(Denied, match="no writer of"):
                await apply(process, reader, into_topic("ops-a", topic))
        assert await apply(process, reader, over_topic("ops-s", "http.payments"))
        with pytest.raises(UsageError, match="not its own"):
            await process.controller.push("ops-s", [b'{"a": 1}'])
        assert (await process.controller.push("payments", [b'{"a": 1}'])).accepted == 1


@pytest.mark.parametrize("who", [EVERYBODY, PROCESS])
async def test_s5_topics_of_the_system_are_nobodys(tmp_path: Path, who: Principal) -> None:
    async with running(tmp_path) as process:
        await apply(process, EVERYBODY, table("opst"), WATCHED)
        for text in (
            over_topic("ops-s", "tidemill.commits"),
            into_topic("ops-a", "tidemill.commits").replace("got(a)", "got(w)"),
        ):
            with pytest.raises(UsageError, match="talks to itself"):
                await process.controller.apply([ResourceDocument(text, "test.yaml")], who)


def test_a1_the_own_log_is_not_reached_by_its_brokers_address() -> None:
    (source,) = load_resources(over_topic("ops-s", "http.payments", "kafka:9092"), "test.yaml")
    permit_topics(source, OPS, shared_brokers=False)  # a log of somebody else
    with pytest.raises(Denied, match="no reader of payments"):
        permit_topics(source, OPS, shared_brokers=True)
