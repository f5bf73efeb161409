"""Regenerate libs/tidemill-protos from the .proto files next to this script.

The source path mirrors the Python path, so the generated imports need no rewriting. Run it by
`make protos`; the output is committed, and a second run leaves it as it is.
"""

from __future__ import annotations

import shutil
import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent
OUTPUT = PROTOS.parent / "libs" / "tidemill-protos" / "src"


def clear_output(areas: list[str]) -> None:
    """Remove what an earlier run wrote, so that a deleted .proto leaves nothing behind."""
    for area in areas:
        shutil.rmtree(OUTPUT / "tidemill" / area, ignore_errors=True)


def main() -> int:
    """Exit code of protoc; the output appears only in the areas that have .proto files."""
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    clear_output(sorted({Path(source).parts[1] for source in sources}))
    beside = Path(sys.executable).parent
    return int(
        protoc.main(
            [
                "protoc",
                f"--proto_path={PROTOS}",
                f"--proto_path={files('grpc_tools') / '_proto'}",
                f"--python_out={OUTPUT}",
                f"--grpc_python_out={OUTPUT}",
                f"--plugin=protoc-gen-mypy={beside / 'protoc-gen-mypy'}",
                f"--plugin=protoc-gen-mypy_grpc={beside / 'protoc-gen-mypy_grpc'}",
                f"--mypy_out=quiet:{OUTPUT}",
                f"--mypy_grpc_out=quiet:{OUTPUT}",
                *sources,
            ]
        )
    )


if __name__ == "__main__":
    sys.exit(main())
