"""Answers to editors about rules and resources, over the Language Server Protocol."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path
from pygls.workspace import PositionCodec, ServerTextPosition

from tidemill.catalog.apply.check import RESOURCE_ENDINGS, Finding, format_file
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.errors import TidemillError
from tidemill.runtime.clock import Clock
from tidemill.runtime.problems import Position
from tidemill_server.commands.editing import findings_in, known_at, ours

PAUSE_S = 0.2
"""Time without a keystroke after which a text is checked."""
FILE_BYTES_MAX = 1 << 20
"""Size of a file beside an open one that is read."""


class Editor:
    """Answers about the texts that an editor has open, and the files beside them."""

    def __init__(self, server: LanguageServer, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._shown: set[str] = set()

    async def check_soon(self, uri: str) -> None:
        """Publish what is wrong with a text and those beside it, once nobody writes any more."""
        document = self._server.workspace.get_text_document(uri)
        version = document.version
        await self._clock.sleep(PAUSE_S)
        if self._server.workspace.get_text_document(uri).version != version:
            return
        texts = self._texts(uri)
        found = await asyncio.to_thread(findings_in, texts)
        for file, findings in found.items():
            if findings or file in self._shown or file == to_fs_path(uri):
                self._publish(file, texts.get(file, ""), findings)
        self._shown = {file for file, findings in found.items() if findings}

    def hover(self, uri: str, position: lsp.Position) -> lsp.Hover | None:
        """The columns, types or meaning of the word at a place."""
        file = self._file(uri)
        texts = self._texts(uri)
        if file not in texts:
            return None
        known = known_at(texts, file, *self._asked(uri, position))
        if known is None:
            return None
        span, lines = known.span, texts[file].splitlines(True)
        begin = self._place(lines, span.line, span.column)
        end = self._place(lines, span.end_line, span.end_column)
        content = lsp.MarkupContent(lsp.MarkupKind.Markdown, known.says)
        return lsp.Hover(content, lsp.Range(begin, end))

    def definitions(self, uri: str, position: lsp.Position) -> list[lsp.Location]:
        """Places of the rules of a predicate, or of the resource that it reads."""
        texts = self._texts(uri)
        if self._file(uri) not in texts:
            return []
        known = known_at(texts, self._file(uri), *self._asked(uri, position))
        return [] if known is None else [self._location(at, texts) for at in known.defined]

    def formatted(self, uri: str) -> list[lsp.TextEdit]:
        """The text with its programs in canonical layout; nothing for one that cannot be read."""
        document = self._server.workspace.text_documents.get(uri)
        text = "" if document is None else document.source
        try:
            made = format_file(text, self._file(uri))
        except (ProgramErrors, TidemillError):
            return []
        if made == text:
            return []
        whole = lsp.Range(lsp.Position(0, 0), lsp.Position(len(text.splitlines()) + 1, 0))
        return [lsp.TextEdit(whole, made)]

    def _texts(self, uri: str) -> dict[str, str]:
        """The text, and of resources those of its folder, as they are open or on disk."""
        file = self._file(uri)
        open_now = {
            self._file(each): document.source
            for each, document in self._server.workspace.text_documents.items()
        }
        text = open_now.get(file)  # None once it is closed
        texts = {file: text} if text is not None and ours(file, text) else {}
        if not file.endswith(RESOURCE_ENDINGS) or not texts:
            return texts
        for beside in sorted(Path(file).parent.glob("*")):
            name = str(beside)
            if beside.suffix in RESOURCE_ENDINGS and name != file:
                text = open_now.get(name) or _read(beside)
                if ours(name, text):
                    texts[name] = text
        return texts

    def _file(self, uri: str) -> str:
        return to_fs_path(uri) or uri

    def _asked(self, uri: str, position: lsp.Position) -> tuple[int, int]:
        """A place of the editor as line and column from 1."""
        document = self._server.workspace.get_text_document(uri)
        found = self._codec.position_from_client_units(document.lines, position)
        return found.line + 1, found.character + 1

    def _place(self, lines: list[str], line: int, column: int) -> lsp.Position:
        place = ServerTextPosition(max(line - 1, 0), max(column - 1, 0))
        return self._codec.position_to_client_units(lines, place)

    @property
    def _codec(self) -> PositionCodec:
        return self._server.workspace.position_codec

    def _location(self, at: Position, texts: dict[str, str]) -> lsp.Location:
        lines = texts.get(at.file, "").splitlines(True)
        place = self._place(lines, at.line, at.column)
        return lsp.Location(from_fs_path(at.file) or at.file, lsp.Range(place, place))

    def _publish(self, file: str, text: str, findings: list[Finding]) -> None:
        lines = text.splitlines(True)
        told = [self._diagnostic(lines, finding) for finding in findings]
        params = lsp.PublishDiagnosticsParams(from_fs_path(file) or file, told)
        self._server.text_document_publish_diagnostics(params)

    def _diagnostic(self, lines: list[str], finding: Finding) -> lsp.Diagnostic:
        at = finding.position
        begin = self._place(lines, at.line, at.column)
        end = begin if finding.end is None else self._place(lines, *finding.end)
        severity = (
            lsp.DiagnosticSeverity.Warning if finding.warning else lsp.DiagnosticSeverity.Error
        )
        says = f"{finding.message}\n{finding.hint}" if finding.hint else finding.message
        return lsp.Diagnostic(
            lsp.Range(begin, end), says, severity=severity, code=finding.code, source="tidemill"
        )


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            return ""
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def editor_server(clock: Clock) -> LanguageServer:
    """A server of the protocol that nobody has connected to yet."""
    server = LanguageServer("tidemill", "1", lsp.TextDocumentSyncKind.Incremental)
    editor = Editor(server, clock)

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    async def check_opened(params: lsp.DidOpenTextDocumentParams) -> None:
        await editor.check_soon(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    async def check_changed(params: lsp.DidChangeTextDocumentParams) -> None:
        await editor.check_soon(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        return editor.hover(params.text_document.uri, params.position)

    @server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
    def definition(params: lsp.DefinitionParams) -> list[lsp.Location]:
        return editor.definitions(params.text_document.uri, params.position)

    @server.feature(lsp.TEXT_DOCUMENT_FORMATTING)
    def formatted(params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit]:
        return editor.formatted(params.text_document.uri)

    return server
