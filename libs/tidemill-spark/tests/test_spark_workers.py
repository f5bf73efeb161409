"""The parent of Python workers imports once what tasks of all jobs need."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from zipimport import zipimporter

import pyspark
import pytest

from tidemill.spark import worker_daemon


def test_workers_begin_with_the_modules_that_services_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, there = list[str](), list[bool]()

    def named(group: str) -> Sequence[EntryPoint]:
        asked.append(group)
        return [EntryPoint("a job", "colorsys", group)]

    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.setattr(worker_daemon, "entry_points", named)
    monkeypatch.setattr("pyspark.daemon.manager", lambda: there.append("colorsys" in sys.modules))
    worker_daemon.main()
    gc.unfreeze()
    assert (asked, there) == (["tidemill.spark.jobs"], [True])


def test_workers_import_spark_from_its_folder_and_from_no_archive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Archives of another Spark stay: their version is the one of the driver."""
    own = sorted(map(str, Path(pyspark.__file__).parent.glob("python/lib/*.zip")))
    assert len(own) == 2
    other = tmp_path / "pyspark.zip"
    other.write_bytes(Path(own[1]).read_bytes())
    path = [*sys.path]
    monkeypatch.setattr(sys, "path", [*own, str(other), *path])
    for each in own:
        monkeypatch.setitem(sys.path_importer_cache, each, zipimporter(each))
    worker_daemon.leave_archives_out()
    assert sys.path == [str(other), *path]
    assert not set(own) & set(sys.path_importer_cache)


def test_workers_keep_archives_where_spark_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archives = sorted(map(str, Path(pyspark.__file__).parent.glob("python/lib/*.zip")))
    monkeypatch.setattr(sys, "path", archives)
    worker_daemon.leave_archives_out()
    assert sys.path == archives
