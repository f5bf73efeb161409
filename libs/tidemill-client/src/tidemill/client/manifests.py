"""Files of resources."""

from __future__ import annotations

from pathlib import Path

from tidemill.errors import UsageError
from tidemill.rpc.messages import ResourceDocument
from tidemill.runtime.problems import text_of

ENDINGS = {".yaml", ".yml"}
CASES = ".test.yaml"
"""Ending of cases of `tidemill test`, which are no resources."""


def documents_in(path: Path) -> list[ResourceDocument]:
    """The file, or all YAML files of resources below the folder in the order of their names.

    Raises UsageError if there is none, or if one cannot be read as text.
    """
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.suffix in ENDINGS and p.is_file())
        files = [file for file in found if not file.name.endswith(CASES)]
        if not files:
            raise UsageError(f"the folder {path} has no .yaml file", reason="file")
    else:
        files = [path]
    return [ResourceDocument(text_of(file), str(file)) for file in files]
