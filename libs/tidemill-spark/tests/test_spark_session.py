"""Sessions of one machine: what their JVM is started with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tidemill.spark import session
from tidemill.spark.local_settings import LocalSettings

MINE = "-XX:Tier4InvocationThreshold=7"
LAUNCHER = ("org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit")


def command_of(settings: dict[str, str], folder: Path) -> list[str]:
    """The command of a JVM, as Spark makes it of these settings and of a user's folder of them."""
    home = Path(pyspark.__file__).parent
    java = Path(os.environ["JAVA_HOME"], "bin/java") if os.environ.get("JAVA_HOME") else "java"
    given = [word for pair in settings.items() for word in ("--conf", "=".join(pair))]
    called = [str(java), "-cp", f"{home}/jars/*", *LAUNCHER, *given, "pyspark-shell"]
    known = {
        "SPARK_HOME": str(home), "SPARK_CONF_DIR": str(folder), "SPARK_SCALA_VERSION": "2.13",
    }  # fmt: skip
    told = subprocess.run(called, env={**os.environ, **known}, stdout=subprocess.PIPE, check=True)
    return told.stdout.decode().split("\0")


@pytest.mark.server
def test_options_of_a_user_for_the_jvm_win(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Settings of a session replace those of `spark-defaults.conf`, so ours are defaults."""
    builders: list[Any] = []
    monkeypatch.setattr(session, "_opened", builders.append)
    session.local_session("mine", LocalSettings(cores=1))
    (tmp_path / "spark-defaults.conf").write_text(f"spark.driver.extraJavaOptions {MINE}\n")
    command = command_of(builders[0]._options, tmp_path)
    ours = [command.index(option) for option in session.PATIENT_COMPILER.split()]
    assert max(ours) < command.index(MINE)
