"""The tree keeps the rules of STYLE.md that no other tool checks."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 600
TOP_LEVEL = {
    "services", "libs", "charts", "protos", "infra", "e2e", "bench", "examples", "docs", "Makefile",
    ".ci", "README.md", "ARCHITECTURE.md", "GLOSSARY.md", "STYLE.md", "LICENSE", "NOTICE", "SECURITY.md", "pyproject.toml",
    "mkdocs.yml", "requirements.lock", ".gitignore", ".gitattributes", ".dockerignore",
}  # fmt: skip
FORBIDDEN_MODULES = {"utils", "util", "common", "base", "manager", "misc", "helpers"}
FORBIDDEN_VERBS = ("process_", "manage_", "handle_", "do_")
SCRATCH_NAMES = re.compile(r"(?i)(^|/)(todo|plan|notes?|progress|scratch|report)s?(\.|$)")
GENERATED = "libs/tidemill-protos/"


def tracked_files() -> list[str]:
    """Paths of all files that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


FILES = tracked_files()
SOURCES = [name for name in FILES if name.endswith(".py") and not name.startswith(GENERATED)]


@cache
def definitions(name: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Every function and class of a source file, nested ones included, without their bodies."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    found = [n for n in ast.walk(ast.parse((ROOT / name).read_text())) if isinstance(n, kinds)]
    for node in found:
        node.body = []  # the bodies of all sources together would fill the memory
    return found


def functions(name: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of a source file, nested ones included."""
    return [node for node in definitions(name) if not isinstance(node, ast.ClassDef)]


READMES = [
    name for name in FILES if re.fullmatch(r"(libs|services|examples)/[^/]+/README.md", name)
]


def test_each_member_says_what_it_is_for() -> None:
    members = {name.rpartition("/")[0] for name in FILES if name.endswith("/pyproject.toml")}
    assert {name.rpartition("/")[0] for name in READMES} == members


@pytest.mark.parametrize("name", READMES)
def test_a_member_says_what_it_promises_and_names_modules_that_are_there(name: str) -> None:
    text, member = (ROOT / name).read_text(), name.rpartition("/")[0]
    for word in ("owns", "reads", "writes", "promises", "fails", "runs"):
        assert f"**{word}**" in text.lower(), word
    inside = [
        each.removeprefix(f"{member}/src/") for each in FILES if each.startswith(f"{member}/")
    ]
    modules = {part.removesuffix(".py") for each in inside for part in each.split("/")}
    for row in re.findall(r"^\| (`.+?) \|", text.partition("| module |")[2], re.MULTILINE):
        assert {each.rstrip("/") for each in re.findall(r"`([^`]+)`", row)} <= modules


def test_the_top_level_holds_exactly_what_the_architecture_names() -> None:
    assert {name.split("/")[0] for name in FILES} <= TOP_LEVEL


@pytest.mark.parametrize("name", SOURCES)
def test_no_function_is_longer_than_a_page(name: str) -> None:
    long = [
        f"{name}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in functions(name)
        if node.end_lineno is not None and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long


def test_no_module_is_longer_than_a_sitting() -> None:
    lengths = {name: len((ROOT / name).read_text().splitlines()) for name in SOURCES}
    assert {name: n for name, n in lengths.items() if n > MODULE_LINES_MAX} == {}


def test_no_module_or_class_has_a_name_that_says_nothing() -> None:
    stems = {name for name in SOURCES if Path(name).stem in FORBIDDEN_MODULES}
    assert stems == set()
    classes = [
        f"{name}: {node.name}"
        for name in SOURCES
        for node in definitions(name)
        if isinstance(node, ast.ClassDef) and re.search(r"(Utils?|Manager|Helper|Misc)$", node.name)
    ]
    assert classes == []


def test_verbs_say_what_changes() -> None:
    vague = [
        f"{name}:{node.lineno} {node.name}"
        for name in SOURCES
        if "/tests/" not in name
        for node in functions(name)
        if node.name.lstrip("_").startswith(FORBIDDEN_VERBS)
    ]
    assert vague == []


def test_no_plan_or_scratch_file_is_tracked() -> None:
    # A query has plans, too; and helm shows a file of this name after an installation.
    texts = [name for name in FILES if not name.endswith((".py", "templates/NOTES.txt"))]
    assert [name for name in texts if SCRATCH_NAMES.search(name)] == []


def test_no_line_defers_work() -> None:
    deferred = [
        f"{name}:{number}"
        for name in SOURCES
        if name != "libs/tidemill-testkit/tests/test_tidy.py"
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", line)
    ]
    assert deferred == []


def test_no_machine_path_or_registry_address_is_tracked() -> None:
    address = re.compile(
        r"(?<![A-Za-z0-9_.])/(?:work|farm)/|python" + r"hosted|pypi\.o" + r"rg|crates\.i" + r"o/"
        r"|npmjs\.|repo\.maven|proxy\.gol" + r"ang|deb\.deb" + r"ian"
    )
    found = [
        f"{name}:{number}"
        for name in FILES
        if not name.endswith((".png", ".parquet"))
        for number, line in enumerate((ROOT / name).read_text(errors="ignore").splitlines(), 1)
        if address.search(line)
    ]
    assert found == []


def test_no_distribution_ships_the_namespace_package_itself() -> None:
    assert [name for name in FILES if name.endswith("src/tidemill/__init__.py")] == []


def test_every_public_function_below_the_services_says_what_it_guarantees() -> None:
    silent = [
        f"{name}:{node.lineno} {node.name}"
        for name in SOURCES
        if name.startswith("libs/") and "/src/" in name
        if "/kits/" not in name  # the name of a law of a kit is its sentence
        for node in ast.parse((ROOT / name).read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if not node.name.startswith("_") and ast.get_docstring(node) is None
    ]
    assert silent == []


def test_every_glossary_term_is_used() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\* \|", (ROOT / "GLOSSARY.md").read_text(), re.M)
    assert len(terms) > 30
    text = "\n".join(
        (ROOT / name).read_text(errors="ignore").lower()
        for name in FILES
        if name.endswith((".py", ".md", ".proto", ".yaml")) and name != "GLOSSARY.md"
    )
    assert [term for term in terms if term.lower() not in text] == []
