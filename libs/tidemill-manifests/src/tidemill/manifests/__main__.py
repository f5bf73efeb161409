"""`tidemill-manifests CHARTS`: write what is built from code into the folder of the charts."""

from __future__ import annotations

import sys
from pathlib import Path

from tidemill.manifests.dashboards import BOARDS
from tidemill.manifests.definitions import NAMES, template


def generated() -> dict[str, str]:
    """Path below the folder of the charts → text, for every generated file."""
    dashboards = "tidemill/monitoring/dashboards"
    definitions = "tidemill/charts/crds/templates"
    return {
        **{f"{dashboards}/{board.uid}.json": board.to_json() for board in BOARDS},
        **{f"{definitions}/{each.plural}.yaml": template(kind) for kind, each in NAMES.items()},
    }


def main() -> None:
    """Write every file below the folder that the command names."""
    if len(sys.argv) != 2:
        sys.exit("usage: tidemill-manifests CHARTS")
    for path, text in generated().items():
        file = Path(sys.argv[1]) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main()
