"""Launchers of a process's bulk jobs: beside it, or in pods of a cluster."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from urllib.parse import urlsplit

from tidemill.errors import UsageError
from tidemill.host.roles import LAUNCHING, ROLES, roles_of
from tidemill.host.settings import ProcessSettings
from tidemill.runtime.clock import Clock
from tidemill.runtime.ids import random_id
from tidemill.runtime.java import java_is_found
from tidemill.shard.stores import open_blob
from tidemill.spark.launcher import JobListener, SparkLauncher
from tidemill.spark.local import LocalLauncher
from tidemill.spark.local_settings import LocalSettings


def lacking_for_jobs() -> str:
    """A sentence if bulk jobs cannot run on this machine: what to install, and where."""
    lacking = []
    if find_spec("pyspark") is None:
        lacking.append(f"pyspark is not installed in {sys.prefix}: pip install 'tidemill[spark]'")
    if not java_is_found():
        lacking.append(
            "there is no java on the PATH, and JAVA_HOME names none: install a JDK 17 or newer, such "
            "as Debian's openjdk-17-jre-headless, and start this process again"
        )
    return "; ".join(lacking)


def check_launching(chosen: ProcessSettings) -> None:
    """Raises: UsageError if jobs in pods could not reach the objects."""
    if chosen.spark.launcher == "process":
        return
    if urlsplit(chosen.blob_place.address).scheme != "s3":
        raise UsageError(
            f"spark.launcher is {chosen.spark.launcher} and store.blob is no bucket: pods share no disk with this "
            "process; set store.blob to s3://BUCKET/PREFIX?endpoint=URL",
            reason="launcher",
        )
    if chosen.store.access_key and not chosen.spark.pods.blob_secret:
        raise UsageError(
            "store.access_key is set and spark.pods.blob_secret is not: pods take the secret of the "
            "bucket from a Secret of their namespace",
            reason="launcher",
        )


async def launcher_of(chosen: ProcessSettings, clock: Clock, told: JobListener) -> SparkLauncher:
    """The launcher of bulk jobs. Raises: UsageError if pods are asked for without a cluster.

    A process whose roles launch none gets one of processes, which costs nothing: its image does not
    have the client of a cluster.
    """
    spark, place = chosen.spark, chosen.blob_place
    launches = not set(roles_of(chosen.role or ROLES)).isdisjoint(LAUNCHING)
    if spark.launcher == "process" or not launches:
        scratch = str((chosen.root / "spark").resolve())
        session = LocalSettings(spark.cores, spark.memory_mb, spark.jars, scratch)
        folder = chosen.root / "jobs"
        return LocalLauncher(folder, place, session, told=told, lacking=lacking_for_jobs)
    # The client of the API takes memory, which only who launches pods has to spend.
    try:
        from tidemill.kubernetes.api import KubernetesApi, in_this_place
        from tidemill.spark.pod_launcher import APPLICATIONS, COMPONENT, PODS, PodLauncher
    except ModuleNotFoundError as error:
        raise UsageError(
            f"spark.launcher is {spark.launcher} and {error.name} is not installed: "
            "pip install 'tidemill[kubernetes]'",
            reason="launcher",
        ) from error

    configuration = await in_this_place()
    api = KubernetesApi(configuration, COMPONENT)
    drivers = APPLICATIONS if spark.launcher == "sparkapplication" else PODS
    return PodLauncher(api, open_blob(place, random_id), place, spark.pods, clock, told, drivers)
