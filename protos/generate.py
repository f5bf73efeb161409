"""Regenerate libs/tidemill-protos from the .proto files next to this script.

The output of protoc below `tidemill` is moved to `tidemill_protos`, with its imports: the names of
our own libraries stay free. Run it by `make protos`; the output is committed, and a second run
leaves it as it is.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent
OUTPUT = PROTOS.parent / "libs/tidemill-protos/src/tidemill_protos"
IMPORT = re.compile(r"^from tidemill\.", re.MULTILINE)


def generate(sources: list[str], into: Path) -> int:
    """Exit code of protoc, which writes messages, stubs and their types below `into`."""
    beside = Path(sys.executable).parent
    return int(
        protoc.main(
            [
                "protoc",
                f"--proto_path={PROTOS}",
                f"--proto_path={files('grpc_tools') / '_proto'}",
                f"--python_out={into}",
                f"--grpc_python_out={into}",
                f"--plugin=protoc-gen-mypy={beside / 'protoc-gen-mypy'}",
                f"--plugin=protoc-gen-mypy_grpc={beside / 'protoc-gen-mypy_grpc'}",
                f"--mypy_out=quiet:{into}",
                f"--mypy_grpc_out=quiet:{into}",
                *sources,
            ]
        )
    )


def main() -> int:
    """Exit code of protoc; without an error the output is there, and nothing else beside it."""
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        code = generate(sources, Path(folder))
        if code == 0:
            shutil.rmtree(OUTPUT, ignore_errors=True)
            for written in sorted(Path(folder, "tidemill").rglob("*.py*")):
                path = OUTPUT / written.relative_to(Path(folder, "tidemill"))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(IMPORT.sub("from tidemill_protos.", written.read_text()))
    return code


if __name__ == "__main__":
    sys.exit(main())
