"""`python -m tidemill.host.warming`: compile all loops before any process needs them.

With `--portable` for every processor of the last ten years instead of this one: for images.
"""

from __future__ import annotations

import os
import platform
import sys

from tidemill.arrangement.machine_code import PORTABLE
from tidemill.host.warming.compiling import warm


def main() -> None:
    """Compile, and say how many loops were missing."""
    if "--portable" in sys.argv[1:]:
        name, _ = PORTABLE[platform.machine()]
        # The compiler reads it when it is imported, here and in the processes that compile.
        os.environ.update(NUMBA_CPU_NAME=name, NUMBA_CPU_FEATURES="")  # noqa: TID251
    print(f"{warm()} loops compiled")


if __name__ == "__main__":
    main()
