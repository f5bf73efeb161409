"""The demo's views evaluated window by window: the other way in which we keep a view."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from bench.views.flights import windowed


def main() -> None:
    """Run the job with the sizes of the command line."""
    sys.stdout.write(json.dumps(asdict(windowed(*map(int, sys.argv[2:])))) + "\n")


if __name__ == "__main__":
    main()
