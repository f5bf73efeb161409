"""`python -m tidemill.testkit.prose`: write the counts of breaches, if no rule has more of them."""

from __future__ import annotations

import sys
from pathlib import Path

from tidemill.testkit.prose.counts import (
    RECORDED,
    breaches,
    changed_files,
    counted,
    differences,
    recorded,
    risen,
    text_of,
)


def main() -> int:
    """Write the counts of the checkout that this file belongs to; 1 if a rule has more breaches."""
    root = next(p for p in Path(__file__).resolve().parents if (p / "infra").is_dir())
    found, before = breaches(root), recorded()
    if more := risen(before, counted(found)):
        for rule in more:
            for said in differences(rule, found, before, changed_files(root)):
                sys.stderr.write(f"{said}\n")
        sys.stderr.write(f"more breaches than recorded, nothing is written: {more}\n")
        return 1
    RECORDED.write_text(text_of(counted(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
