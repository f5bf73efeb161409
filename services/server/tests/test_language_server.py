"""The language server, by a client of the protocol over standard input and output."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

from tidemill_server.commands.editing import known_at

ROOT = Path(__file__).resolve().parents[3]
RULES = "late(p, d) := flight(p, d) if d > 30;\ntold(p) := late(p, _);\n"
WRONG = "late(p, d) := flight(p, d) if d > ;\n"
RESOURCES = """apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: flights}
spec: {columns: [{name: plane, type: text}, {name: delay, type: int}]}
"""
VIEW = """apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: delays}
spec:
  inputs: {flight: flights}
  program: |
    // \U0001f6e9 late ones
    late(p,d) := flight(p, d) if d > 30;
"""


class Client(LanguageClient):
    """An editor: it keeps what it was told of each file."""

    def __init__(self) -> None:
        super().__init__("editor", "1")
        self.told: dict[str, list[lsp.Diagnostic]] = {}
        self.news = asyncio.Event()

        @self.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def hear(params: lsp.PublishDiagnosticsParams) -> None:
            self.told[params.uri] = list(params.diagnostics)
            self.news.set()

    def open(self, file: Path, text: str) -> str:
        document = lsp.TextDocumentItem(file.as_uri(), "tidelog", 1, text)
        self.text_document_did_open(lsp.DidOpenTextDocumentParams(document))
        return file.as_uri()

    def change(self, uri: str, version: int, text: str) -> None:
        self.text_document_did_change(
            lsp.DidChangeTextDocumentParams(
                lsp.VersionedTextDocumentIdentifier(version, uri),
                [lsp.TextDocumentContentChangeWholeDocument(text)],
            )
        )

    async def hears(self, uri: str, codes: list[str]) -> list[lsp.Diagnostic]:
        """The mistakes told of a file, once they are of these codes."""
        async with asyncio.timeout(60):
            while [
                str(each.code) for each in self.told.get(uri, [])
            ] != codes or uri not in self.told:
                self.news.clear()
                await self.news.wait()
        return self.told[uri]


@asynccontextmanager
async def editing(folder: Path) -> AsyncIterator[Client]:
    client = Client()
    code = "from tidemill.client.command import main; main()"
    await client.start_io(sys.executable, "-c", code, "language-server")
    await client.initialize_async(
        lsp.InitializeParams(lsp.ClientCapabilities(), root_uri=folder.as_uri())
    )
    client.initialized(lsp.InitializedParams())
    yield client
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()


def at(line: int, character: int) -> lsp.Position:
    return lsp.Position(line, character)


async def test_an_editor_hears_of_mistakes_and_asks_about_words(tmp_path: Path) -> None:
    async with editing(tmp_path) as client:
        rules = client.open(tmp_path / "rules.tidelog", WRONG)
        (mistake,) = await client.hears(rules, ["E009"])
        assert mistake.range.start == at(0, 34)
        assert mistake.severity is lsp.DiagnosticSeverity.Error
        client.change(rules, 2, RULES)
        await client.hears(rules, [])
        named = lsp.TextDocumentIdentifier(rules)
        hover = await client.text_document_hover_async(lsp.HoverParams(named, at(1, 13)))
        assert hover is not None
        assert isinstance(hover.contents, lsp.MarkupContent)
        assert "derived in stratum" in hover.contents.value
        found = await client.text_document_definition_async(lsp.DefinitionParams(named, at(1, 13)))
        assert isinstance(found, list)
        assert [(each.uri, each.range.start) for each in found] == [(rules, at(0, 0))]


async def test_a_file_that_was_closed_meanwhile_has_nothing_to_tell(tmp_path: Path) -> None:
    async with editing(tmp_path) as client:
        uri = client.open(tmp_path / "a.tl", RULES)
        client.change(uri, 2, WRONG)
        asked = lsp.TextDocumentIdentifier(uri)
        client.text_document_did_close(lsp.DidCloseTextDocumentParams(asked))
        place = lsp.Position(0, 1)
        assert await client.text_document_hover_async(lsp.HoverParams(asked, place)) is None
        told = await client.text_document_definition_async(lsp.DefinitionParams(asked, place))
        assert not told
        layout = lsp.DocumentFormattingParams(asked, lsp.FormattingOptions(2, True))
        assert not await client.text_document_formatting_async(layout)


async def test_resources_of_a_folder_see_each_other_and_programs_are_laid_out(
    tmp_path: Path,
) -> None:
    (tmp_path / "tables.yaml").write_text(RESOURCES)
    (tmp_path / "others.yaml").write_text("services: {}\n")
    async with editing(tmp_path) as client:
        view = client.open(tmp_path / "views.yaml", VIEW)
        await client.hears(view, [])
        named = lsp.TextDocumentIdentifier(view)
        found = await client.text_document_definition_async(lsp.DefinitionParams(named, at(7, 19)))
        assert isinstance(found, list)
        ((uri, place),) = [(each.uri, each.range.start) for each in found]
        assert (uri, place.line) == ((tmp_path / "tables.yaml").as_uri(), 2)
        edits = await client.text_document_formatting_async(
            lsp.DocumentFormattingParams(named, lsp.FormattingOptions(2, True))
        )
        assert edits is not None
        assert "late(p, d) := flight(p, d)" in edits[0].new_text
        client.change(view, 2, VIEW.replace("flights", "fligths"))
        (mistake,) = await client.hears(view, ["resource"])
        assert "fligths" in mistake.message
        # A letter of two units before a place moves it in the editor, not in the file.
        client.change(
            view, 3, VIEW.replace("// \U0001f6e9 late ones", "/* \U0001f6e9 */ late(p) := ;")
        )
        (mistake,) = await client.hears(view, ["E006"])
        assert mistake.range.start == at(6, 24)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("late(plane", "`late(plane: text, delay: int)`"),
        ("flight(p", "input of relation"),
        ("d > 30", "`d: int`"),
        ("length", "function `length`"),
        ("count", "@count"),
    ],
)
def test_each_word_is_known(word: str, says: str) -> None:
    text = VIEW.replace("late(p,d) := flight(p, d) if d > 30;", (
        "late(plane: p, delay: d) := flight(p, d) if d > 30 ^ length(p) > 1; n(p) @count(d) := flight(p, d);"
    ).replace(" ^ ", " && "))  # fmt: skip
    lines = text.splitlines()
    line = next(n for n, each in enumerate(lines) if word in each)
    known = known_at(
        {"v.yaml": text, "t.yaml": RESOURCES}, "v.yaml", line + 1, lines[line].index(word) + 2
    )
    assert known is not None
    assert says in known.says


def test_the_extension_names_what_is_there() -> None:
    folder = ROOT / "docs" / "editors"
    told = json.loads((folder / "package.json").read_text())
    (grammar,) = told["contributes"]["grammars"]
    (language,) = told["contributes"]["languages"]
    assert (folder / grammar["path"]).exists()
    assert (folder / language["configuration"]).exists()
    assert (folder / told["main"]).exists()
    assert "language-server" in (folder / told["main"]).read_text()
