"""`tidemill-manifests CHARTS`: write what is built from code into the folder of the charts."""

from __future__ import annotations

import sys
from pathlib import Path

from tidemill.manifests.chart_values import page
from tidemill.manifests.dashboards import BOARDS
from tidemill.manifests.definitions import NAMES, template


def generated(charts: Path) -> dict[str, str]:
    """Path below the folder of the charts → text, for every generated file."""
    dashboards = "tidemill/monitoring/dashboards"
    definitions = "tidemill/charts/crds/templates"
    return {
        "tidemill/README.md": page((charts / "tidemill/values.yaml").read_text()),
        **{f"{dashboards}/{board.uid}.json": board.to_json() for board in BOARDS},
        **{f"{definitions}/{each.plural}.yaml": template(kind) for kind, each in NAMES.items()},
    }


def main() -> None:
    """Write every file below the folder that the command names."""
    if len(sys.argv) != 2:
        sys.exit("usage: tidemill-manifests CHARTS")
    charts = Path(sys.argv[1])
    for path, text in generated(charts).items():
        file = charts / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main()
