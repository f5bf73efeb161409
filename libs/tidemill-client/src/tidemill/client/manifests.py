"""Files of resources."""

from __future__ import annotations

from pathlib import Path

from tidemill.errors import UsageError
from tidemill.rpc.messages import ResourceDocument

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
    return [ResourceDocument(_text(file), str(file)) for file in files]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", reason="file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text: {error.reason}", reason="file") from error
