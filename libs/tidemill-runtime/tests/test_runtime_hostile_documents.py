"""Documents that are small and stand for much, or are wrong everywhere: refused in a moment, in few
words.
"""

from __future__ import annotations

import gc
import tracemalloc
from itertools import pairwise

import pytest

from tidemill.errors import UsageError
from tidemill.runtime import documents
from tidemill.runtime.documents import DOCUMENTS_MAX, LEVELS_MAX, PROBLEMS_MAX, parse_yaml
from tidemill.runtime.resources import load_resources, resource_from
from tidemill.testkit.runs import hold_again

HEAD = "apiVersion: tidemill.dev/v1alpha1\nkind: Table\nmetadata:\n  name: t\n"
SPEC = "spec: {columns: [{name: x, type: int}]}\n"


def refusal(text: str) -> str:
    """The refusal of a text, in much less room than the text repeated."""
    tracemalloc.start()
    try:
        with pytest.raises(UsageError) as refused:
            load_resources(text)
        assert tracemalloc.get_traced_memory()[1] < 60 * len(text) + (8 << 20)
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 200_000
    return str(refused.value)


def test_a3_a_text_that_aliases_repeat_is_counted_each_time() -> None:
    """A3: a document of a megabyte was one of thirty gigabytes in the catalog."""
    aliases = ", ".join(f"b{number}: *x" for number in range(3_000))
    text = f"{HEAD}  annotations: {{a: &x '{'y' * 30_000}', {aliases}}}\n{SPEC}"
    assert "repeats too much" in refusal(text)


def test_a3_a_long_key_is_not_repeated_by_each_mistake_below_it() -> None:
    """A3: fifty thousand mistakes below a key of half a megabyte were twenty-seven gigabytes."""
    inner = ", ".join(f"a{number}: !x 1" for number in range(2_000))
    says = refusal(f"? {'k' * 30_000}\n: {{{inner}}}\n")
    assert says.count("\n") + 1 == PROBLEMS_MAX
    assert "kkk…" in says


def test_a3_a_document_that_is_wrong_everywhere_is_told_so_a_hundred_times() -> None:
    fields = ", ".join(f"f{number}: 1" for number in range(5_000))
    assert refusal(f"{HEAD}spec: {{{fields}}}\n").count("\n") + 1 == PROBLEMS_MAX
    several = "---\n".join(["a: b\n"] * 2_000)
    assert refusal(several).count("\n") + 1 <= PROBLEMS_MAX + 10
    aliased = f"{HEAD}spec: {{columns: [&x {'y' * 1_000}, {', '.join(['*x'] * 3_000)}]}}\n"
    assert refusal(aliased).count("\n") + 1 == PROBLEMS_MAX


def test_a3_items_without_an_order_are_told_apart_in_linear_time() -> None:
    """A3: numbers among texts have no order, so that the validator compared each with all
    others.
    """
    compared = 0

    class Item(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    mixed = [each for number in range(3_000) for each in (number, Item(f"a{number}"))]
    with pytest.raises(UsageError, match="too long"):
        resource_from(
            {
                "apiVersion": "tidemill.dev/v1alpha1",
                "kind": "View",
                "metadata": {"name": "v"},
                "spec": {"program": "a(x) := b(x);", "outputs": mixed},
            }
        )
    assert compared < 100_000
    with pytest.raises(UsageError, match="holds something twice"):
        load_resources(
            f"{HEAD.replace('Table', 'View')}spec: {{program: 'a(x) := b(x);', outputs: [a, a]}}\n"
        )


def test_a3_a_word_that_is_long_is_compared_with_none() -> None:
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + 5_000)))
    text = f"{HEAD}spec:\n  columns: [{{name: x, type: int}}]\n  ? {letters}\n  : 1\n"
    assert "nothing that is known is so long" in refusal(text)


def test_a3_many_documents_are_freed_between_looks() -> None:
    """All at once are tens of milliseconds, in which nothing else happens in the process."""
    texts = [f"{HEAD}{SPEC}".replace("name: t", f"name: t{number}") for number in range(60)]
    objects: list[int] = []

    def look() -> None:
        objects.append(len(gc.get_objects()))

    gc.disable()
    gc.freeze()  # those of other tests are not looked through each time
    try:
        found = load_resources("---\n".join(texts), "x.yaml", look)
        look()
    finally:
        hold_again()
        gc.enable()
    assert len(found) == 60
    freed = [before - after for before, after in pairwise(objects) if after < before]
    assert 0 < max(freed) < sum(freed) / 10


def test_a3_a_document_is_read_with_looks() -> None:
    looks: list[int] = []
    parse_yaml("[" + "[],\n" * 1_000 + "]", "x.yaml", lambda: looks.append(1))
    assert len(looks) > 1_000


DEEP = {
    "a: 1\nb: " + "[" * 9_000: "2:104",
    "a: 1\nb: " + "{c: " * 9_000: "2:401",
    "- " * 9_000 + "x": "1:202",
    "".join("  " * at + f"k{at}:\n" for at in range(300)): "101:206",
    "a0: &a0 [x]\n" + "".join(f"a{at}: &a{at} [*a{at - 1}]\n" for at in range(1, 300)): "1:10",
}
"""Places by documents that nest too deep: in either style, and by what aliases stand for."""


@pytest.mark.parametrize(
    ("text", "place"), DEEP.items(), ids=["lists", "fields", "dashes", "keys", "aliases"]
)
def test_a3_a_document_that_nests_too_deep_is_refused_with_the_place(text: str, place: str) -> None:
    """A3: it was refused by the stack of the process, which knows no place."""
    _, (problem,) = parse_yaml(text, "x.yaml")
    assert str(problem).startswith(f"x.yaml:{place}: ")
    assert f"nests too deep: more than {LEVELS_MAX} levels" in str(problem)


def test_a_document_may_nest_as_deep_as_the_limit() -> None:
    inner = LEVELS_MAX - 2
    (document,), problems = parse_yaml("a: " + "[" * inner + "]" * inner, "x.yaml")
    assert not problems
    assert document.position(("a", *[0] * (inner - 1))).column == inner + 3


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("%YAML 1.3\n---\na: 1\n", "2:1"),
        ('a: 1\nb: "\\UFFFFFFFF"\n', "2:3"),
        ('a: 1\nb: "\\U00110000"\n', "2:3"),
    ],
)
def test_what_the_reader_of_yaml_fails_at_is_a_mistake_with_a_place(text: str, place: str) -> None:
    _, (problem,) = parse_yaml(text, "x.yaml")
    assert str(problem).startswith(f"x.yaml:{place}: not YAML 1.2: ")


MANY = {
    "---\n" * 20_000: "more than 1,000 documents in one file",
    "--- a\n" * 20_000: "more than 1,000 documents in one file",
    "[" + "a," * 40_000 + "]": "more than 4,000 values, keys and marks in one file",
    "- \n" * 40_000: "more than 4,000 values, keys and marks in one file",
}


@pytest.mark.parametrize(("text", "says"), MANY.items(), ids=["empty", "marked", "flow", "block"])
def test_a_text_of_more_than_anybody_writes_is_refused_before_it_is_read(
    text: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200,000 empty documents held a thread for a minute."""
    monkeypatch.setattr(documents, "TOKENS_MAX", 4_000)
    monkeypatch.setattr(documents, "DOCUMENTS_MAX", 1_000)
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1

    found, (problem,) = parse_yaml(text, "x.yaml", look)
    assert says in str(problem)
    assert looks <= 4_001
    assert len(found) <= 1_000


def test_as_many_documents_as_the_limit_are_read() -> None:
    assert parse_yaml("---\n" * DOCUMENTS_MAX, "x.yaml") == ([], [])


def test_an_anchor_that_is_set_again_is_no_line_in_the_log(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """Each wrote three lines with texts of the document to the log of the server."""
    (document,), problems = parse_yaml("[&a 1, &a 2, *a]", "x.yaml")
    assert document.value == [1, 2, 2]
    assert not problems
    assert not recwarn.list
