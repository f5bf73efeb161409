"""`python -m tidemill.testkit.reference`: write the generated pages of docs/reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tidemill.testkit.reference import (
    commands,
    grammar,
    grpc_calls,
    http_routes,
    monitoring,
    resources,
    settings,
)

PAGES: Mapping[str, Callable[[Path], str]] = {
    "docs/reference/grammar.md": lambda _: grammar.page(),
    "docs/reference/resources.md": lambda _: resources.page(),
    "docs/reference/cli.md": commands.page,
    "docs/reference/settings.md": lambda _: settings.page(),
    "libs/tidemill-errors/src/tidemill/errors/variables.txt": lambda _: settings.known_variables(),
    "docs/reference/metrics.md": monitoring.page,
    "docs/reference/http.md": http_routes.page,
    "docs/reference/grpc.md": grpc_calls.page,
}
"""Page → its text, from the sources of a checkout."""


def main() -> None:
    """Write all pages into the checkout that this file belongs to."""
    root = next(p for p in Path(__file__).resolve().parents if (p / "infra").is_dir())
    for name, page in PAGES.items():
        (root / name).write_text(page(root))


if __name__ == "__main__":
    main()
