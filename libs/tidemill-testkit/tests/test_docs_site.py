"""The site of docs/ builds without a warning, lists every page, and asks no other server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tidemill.testkit.site import documents

ROOT = Path(__file__).resolve().parents[3]


def built(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """What the strict build of a tree says; the site of a good one is in `site`."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-f", str(root / "mkdocs.yml"), "-d", site],
        capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def test_the_site_builds_without_a_warning_and_asks_no_other_server(tmp_path: Path) -> None:
    run = built(ROOT, tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    pages = [each.read_text() for each in tmp_path.rglob("*.html")]
    assert len(pages) > 50
    fetched = r"<(?:script|img|source|iframe)[^>]* src(?:set)?=\"?https?:|<link[^>]*\"https?:"
    assert [found[0] for page in pages for found in re.finditer(fetched, page)] == []
    pictures = [
        (each, source)
        for each in tmp_path.rglob("*.html")
        for source in re.findall(r'<(?:img|source)[^>]* src(?:set)?="([^"]+)"', each.read_text())
    ]
    assert pictures
    assert [source for each, source in pictures if not (each.parent / source).exists()] == []


def test_a_broken_link_a_lost_anchor_and_an_unlisted_page_are_refused(tmp_path: Path) -> None:
    """Each fault is named; the same tree without them builds."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    hook = "libs/tidemill-testkit/src/tidemill/testkit/site.py"
    for name in ("mkdocs.yml", hook):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    docs = tmp_path / "docs"
    docs.mkdir()
    index = "# Here\n\n## Pages\n\n* [One](one.md)\n* [Readme](../README.md)\n"
    (docs / "index.md").write_text(index)
    (tmp_path / "README.md").write_text("# Readme\n\n[one](docs/one.md#part), [it](mkdocs.yml)\n")
    (docs / "one.md").write_text("# One\n\n## Part\n\n[here](index.md#pages)\n")
    run = built(tmp_path, tmp_path / "good")
    assert run.returncode == 0, run.stdout + run.stderr
    readme = (tmp_path / "good/repository/index.html").read_text()
    assert 'href="../one.html#part"' in readme
    assert ", it</p>" in readme
    (docs / "one.md").write_text("# One\n\n[a](gone.md), [b](index.md#gone), [c](../gone.py)\n")
    (docs / "two.md").write_text("# Two\n")
    run = built(tmp_path, tmp_path / "bad")
    assert run.returncode != 0
    for fault in ("'gone.md'", "'index.md#gone'", "'../gone.py'", "two.md", "one.md#part"):
        assert fault in run.stdout + run.stderr


CITATION = re.compile(r"\b([A-Za-z][A-Za-z-]*\.md) ([0-9]+(?:\.[0-9]+)?)\b")
"""A document by its name, and a section: `language.md 4.3`."""


def unresolved(text: str) -> list[str]:
    """Citations whose document is not in the tree, or does not have the section."""
    found = []
    for name, section in CITATION.findall(text):
        number = re.escape(section)
        wanted = rf"^(?:#+ |\* \*\*|){number}(?:\.? |\*\*)"
        cited = [each for each in documents(ROOT) if each.rpartition("/")[2] == name]
        if not any(re.search(wanted, (ROOT / each).read_text(), re.M) for each in cited):
            found.append(f"{name} {section}")
    return found


def test_every_page_and_section_that_is_cited_is_in_the_tree() -> None:
    files = subprocess.run(
        ["git", "ls-files", "*.py", "*.toml", "*.proto", "*.lark", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    this = Path(__file__).name
    texts = "\n".join(
        (ROOT / name).read_text()
        for name in files.stdout.splitlines()
        if not name.endswith(this) and (ROOT / name).exists()
    )
    named = set(re.findall(r"\bdocs/[\w/-]+\.md\b", texts))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    cited = {found[0] for found in CITATION.finditer(texts)}
    assert len(cited) > 10
    assert unresolved("\n".join(sorted(cited))) == []
    assert unresolved("as language.md 4.3, language.md 99.1 and gone.md 1 say") == [
        "language.md 99.1", "gone.md 1",
    ]  # fmt: skip
