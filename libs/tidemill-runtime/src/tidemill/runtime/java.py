"""Java, as Spark's launcher looks for it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def java_is_found() -> bool:
    """Whether JAVA_HOME names an installation, or PATH has java where JAVA_HOME is unset."""
    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java").exists() if home else shutil.which("java") is not None
