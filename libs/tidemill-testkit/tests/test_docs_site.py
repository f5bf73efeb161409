"""The site of docs/ builds without a warning, lists every page, and asks no other server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def built(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """The result of a strict build of a tree; the site of a good one is in `site`."""
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
