"""`python -m tidemill.host.warming`: compile all loops before any process needs them.

With `--portable` for every processor of the last ten years instead of this one. These need a C
compiler besides, and no process needs one of loops afterwards:

    --ahead FOLDER      one module of all loops, below FOLDER
    --wheel WHEEL OUT   WHEEL, of tidemill-arrangement, with this module, into the folder OUT
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tidemill.arrangement.machine_code import PORTABLE
from tidemill.host.warming.compiling import warm


def main() -> None:
    """Compile, and say how many loops were missing, or what was written."""
    if sys.argv[1:]:
        name, _ = PORTABLE[platform.machine()]
        # The compiler reads it when it is imported, here and in the processes that compile.
        os.environ.update(NUMBA_CPU_NAME=name, NUMBA_CPU_FEATURES="")  # noqa: TID251
    match sys.argv[1:]:
        case ["--ahead", folder]:
            from tidemill.host.warming.ahead import build  # the compiler

            print(build(Path(folder)))
        case ["--wheel", wheel, out]:
            from tidemill.host.warming.ahead import build, wheel_with

            with TemporaryDirectory() as folder:
                print(wheel_with(build(Path(folder)), Path(wheel), Path(out)))
        case _:
            print(f"{warm()} loops compiled")


if __name__ == "__main__":
    main()
