"""Files of resources: every document of every file, or every problem of all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tidemill.runtime.documents import PROBLEMS_MAX, parse_yaml
from tidemill.runtime.problems import Position, Problem, no_text, refuse
from tidemill.runtime.resources.resource import REASON, Resource, to_resource
from tidemill.runtime.resources.validation import find_problems

SUFFIXES = (".yaml", ".yml", ".json")


def load_resources(
    text: str, file: str = "stdin", look: Callable[[], None] = lambda: None
) -> tuple[Resource, ...]:
    """The resources of a text with any number of documents, in its order.

    `look` is called after each token and each document: it may pause for other work.

    Raises: UsageError with reason `resources`; its message names file, line, column and field of
    every problem, and `problems` holds them.
    """
    return _checked(*_read(text, file, look))


def load_resource_files(paths: Iterable[Path | str]) -> tuple[Resource, ...]:
    """The resources of files, and of all YAML and JSON files directly in folders, in order of
    names.

    Raises: as load_resources, for all files together.
    """
    resources: list[Resource] = []
    problems: list[Problem] = []
    for path in map(Path, paths):
        found = (
            sorted(each for each in path.iterdir() if each.suffix in SUFFIXES)
            if path.is_dir()
            else [path]
        )
        if not found:
            problems.append(Problem(Position(str(path)), "", "holds no file that ends in .yaml"))
        for file in found:
            try:
                text = file.read_text(encoding="utf-8")
            except OSError as error:
                says = f"cannot be read: {error.strerror}"
                problems.append(Problem(Position(str(file)), "", says))
                continue
            except UnicodeDecodeError as error:
                problems.append(no_text(str(file), error))
                continue
            more, wrong = _read(text, str(file), lambda: None)
            resources += more
            problems += wrong
    return _checked(resources, problems)


def _read(text: str, file: str, look: Callable[[], None]) -> tuple[list[Resource], list[Problem]]:
    documents, problems = parse_yaml(text, file, look)
    resources: list[Resource] = []
    documents.reverse()
    while documents:
        look()
        document = documents.pop()  # freed here: a thousand at once are some milliseconds
        if len(problems) >= PROBLEMS_MAX:
            continue
        wrong = [] if document.flawed else find_problems(document)
        problems += wrong
        if not wrong and not document.flawed:
            resources.append(to_resource(document))
    return resources, problems


def _checked(resources: list[Resource], problems: list[Problem]) -> tuple[Resource, ...]:
    first: dict[tuple[str, str], Resource] = {}
    for resource in resources:
        earlier = first.setdefault((resource.kind, resource.name), resource)
        if earlier is not resource:
            says = f"{resource} is there already, at {earlier.position}"
            problems.append(Problem(resource.position, "metadata.name", says))
    if problems:
        raise refuse(problems, REASON)
    return tuple(resources)
