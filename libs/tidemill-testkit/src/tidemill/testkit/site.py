"""Hooks of MkDocs for the site of docs/: contents from docs/index.md, and pages outside docs/.

The navigation is the list of links of docs/index.md, by its second-level headings. A link to the
README of a folder of docs/ stands for all pages of that folder. Markdown documents outside docs/
become pages below `repository/`; a link to any other file of the repository becomes its text.
A link to a file that does not exist stays, so that the strict build refuses it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

DOCS, OUTSIDE, CONTENTS = "docs", "repository", "index.md"

_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
"""A link of Markdown, or an image behind its `!`: text, path, anchor."""
_PICTURE = re.compile(r"\b(src|srcset)=\"([^\":]+)\"")

_ENTRY = re.compile(r"^\* \[([^\]]+)\]\(([^)#]+)\)", re.M)
_FENCED = re.compile(r"(^```.*?^```[ ]*$)", re.M | re.S)
_INFO = re.compile(r"^```(\w+) .*$", re.M)


def documents(root: Path) -> list[str]:
    """Markdown documents that git tracks or would track, as paths from the root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return sorted({line for line in listed.stdout.splitlines() if (root / line).exists()})


def joined(document: str, link: str) -> str:
    """The path from the root that a relative link of a document names."""
    return os.path.normpath(PurePosixPath(document).parent / link)


def page_of(document: str) -> str:
    """The place of a document of the repository among the sources of the site."""
    inside = document.startswith(f"{DOCS}/")
    return document.removeprefix(f"{DOCS}/") if inside else f"{OUTSIDE}/{document}"


def document_of(page: str) -> str:
    """The document that a page of the site was made from."""
    outside = page.startswith(f"{OUTSIDE}/")
    return page.removeprefix(f"{OUTSIDE}/") if outside else f"{DOCS}/{page}"


def with_links_of_site(text: str, document: str, root: Path) -> str:
    """The text of a document with links to the pages of the site.

    Fenced code keeps its text, and of its information the language, which is all that MkDocs reads.
    """
    here = PurePosixPath(page_of(document)).parent

    def rewritten(link: re.Match[str]) -> str:
        says, path, anchor = link[1], link[2], link[3] or ""
        if not path or "://" in path or path.startswith("mailto:"):
            return link[0]
        target = joined(document, path)
        if not (root / target).exists():
            return link[0]
        if target.endswith(".md") or target.startswith(f"{DOCS}/"):
            return f"[{says}]({os.path.relpath(page_of(target), here)}{anchor})"
        return says

    def moved(picture: re.Match[str]) -> str:
        source = os.path.relpath(page_of(joined(document, picture[2])), here)
        return f'{picture[1]}="{source}"'

    return "".join(
        _INFO.sub(r"```\1", part)
        if part.startswith("```")
        else _PICTURE.sub(moved, _LINK.sub(rewritten, part))
        for part in _FENCED.split(text)
    )


def contents(root: Path) -> Mapping[str, list[tuple[str, str]]]:
    """Section → (title, document) in the order of docs/index.md."""
    index = f"{DOCS}/{CONTENTS}"
    _, *sections = re.split(r"^## ", (root / index).read_text(), flags=re.M)
    return {
        section.partition("\n")[0]: [
            (says, joined(index, path)) for says, path in _ENTRY.findall(section)
        ]
        for section in sections
    }


def pages_of(entry: str, root: Path) -> Iterator[str]:
    """The documents that an entry of the contents stands for: itself, and those beside a README."""
    yield entry
    if entry.startswith(f"{DOCS}/") and entry.endswith("/README.md"):
        folder = str(PurePosixPath(entry).parent)
        yield from (f"{folder}/{each.name}" for each in sorted((root / folder).glob("[!R]*.md")))


def unlisted(root: Path) -> list[str]:
    """Documents of docs/ that its index does not list."""
    listed = {
        page
        for entries in contents(root).values()
        for _, entry in entries
        for page in pages_of(entry, root)
    }
    inside = {each for each in documents(root) if each.startswith(f"{DOCS}/")}
    return sorted(inside - listed - {f"{DOCS}/{CONTENTS}"})


def on_config(config: Any) -> Any:  # MkDocs' own types are not checked here
    """The configuration with the navigation of docs/index.md."""
    root = Path(config["config_file_path"]).parent
    navigation: list[Any] = [{"Start": CONTENTS}]
    for section, entries in contents(root).items():
        below: list[Any] = []
        for title, entry in entries:
            pages = [page_of(page) for page in pages_of(entry, root)]
            below.append({title: pages if len(pages) > 1 else pages[0]})
        navigation.append({section: below})
    config["nav"] = navigation
    return config


def on_files(files: Any, config: Any) -> Any:  # likewise
    """The files of the site, with a page for each Markdown document outside docs/."""
    from mkdocs.structure.files import File, InclusionLevel

    root = Path(config["config_file_path"]).parent
    listed = {entry for entries in contents(root).values() for _, entry in entries}
    for document in documents(root):
        if not document.startswith(f"{DOCS}/"):
            level = InclusionLevel.INCLUDED if document in listed else InclusionLevel.NOT_IN_NAV
            text = (root / document).read_text()
            files.append(File.generated(config, page_of(document), content=text, inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:  # likewise
    """The text of a page with links that the site has."""
    root = Path(config["config_file_path"]).parent
    return with_links_of_site(markdown, document_of(page.file.src_uri), root)
