"""The server with its collections in Redis and in a bucket, and what it says of a Redis that
forgets.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from secrets import token_hex

import pyarrow as pa
import pytest
import redis

from tidemill.errors import Unavailable, UsageError
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.ids import random_id
from tidemill.shard import Collections, MemoryConsensus
from tidemill.shard.stores import BlobPlace, open_blob, open_consensus
from tidemill.testkit.servers import redis_server
from tidemill.testkit.up import UpProcess, up_process

pytestmark = pytest.mark.server

TABLE = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: planes}
spec: {timeline: system, retain: all, columns: [{name: plane, type: text}, {name: seats, type: int}]}
"""
# Texts that do not compress, so that they are an object and not a part of a version.
PLANES = [{"plane": token_hex(64), "seats": n % 400} for n in range(3000)]


@pytest.fixture
def stores(object_store: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options that name both stores; keys come as they do for every AWS client."""
    name = random_id()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
    return [
        "--consensus", f"{redis_url}?prefix={name}",
        "--blob", f"s3://tidemill/{name}?endpoint={object_store}",
    ]  # fmt: skip


def planes(server: UpProcess) -> pa.Table:
    """Everything in the table, once that is all that was inserted."""
    return server.until(
        lambda client: (
            table
            if (table := client.query("planes", timeout_s=120).table).num_rows == len(PLANES)
            else None
        )
    )


def checked(folder: Path, stores: list[str]) -> subprocess.CompletedProcess[str]:
    """The words of `tidemill fsck` about the stores."""
    command = [sys.executable, "-m", "tidemill.client", "fsck", str(folder / "state"), *stores]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_check_finds_the_stores_by_the_settings_of_the_server(
    tmp_path: Path, stores: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings of a pod: addresses in variables, the secret in a file."""
    with up_process(tmp_path, *stores) as server, server.client():
        pass
    (tmp_path / "secret").write_text("test-secret")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    chosen = {
        "CONSENSUS": stores[1], "BLOB": stores[3],
        "ACCESS_KEY": "test", "SECRET_KEY_FILE": str(tmp_path / "secret"),
    }  # fmt: skip
    for name, value in chosen.items():
        monkeypatch.setenv(f"TIDEMILL_UP_STORE__{name}", value)
    for folder in (tmp_path, tmp_path / "nowhere"):  # a machine that has no folder of the server
        found = checked(folder, [])
        assert found.returncode == 0, found.stderr
        assert "1 collections" in found.stdout
    monkeypatch.setenv("TIDEMILL_UP_STORE__SECRET_KEY_FILE", str(tmp_path / "none"))
    found = checked(tmp_path, [])
    assert (found.returncode, found.stdout) == (2, "")
    assert "cannot be read" in found.stderr


async def test_collections_in_redis_and_a_bucket_survive_a_kill_and_a_lost_object_is_found(
    tmp_path: Path, stores: list[str]
) -> None:
    (tmp_path / "table.yaml").write_text(TABLE)
    with up_process(tmp_path, "-f", "table.yaml", *stores) as server:
        server.until(lambda client: client.insert("planes", PLANES))
        assert planes(server)["seats"].to_pylist()
        server.stop(signal.SIGKILL)
        server.start()
        table = planes(server)
        assert sorted(table["plane"].to_pylist()) == sorted(row["plane"] for row in PLANES)
        assert server.stop(signal.SIGTERM) == 0
    assert not (tmp_path / "state" / "consensus.sqlite").exists()
    assert not (tmp_path / "state" / "blob").exists()
    found = checked(tmp_path, stores)
    assert found.returncode == 0, found.stdout
    assert found.stdout.splitlines()[-1].endswith("nothing wrong")

    blob = open_blob(BlobPlace(stores[3]), random_id)
    part = next(entry for entry in await blob.list("") if "/part-" in entry.key)
    await blob.delete(part.key)
    found = checked(tmp_path, stores)
    assert found.returncode == 1
    assert f"{part.key}: the object is missing" in found.stdout


def test_a_redis_that_forgets_is_refused_by_name_and_accepted_only_with_a_warning(
    tmp_path: Path,
) -> None:
    with redis_server("forgets") as weak:
        admin = redis.Redis.from_url(weak.address)
        admin.config_set("appendfsync", "everysec")
        admin.close()
        with up_process(tmp_path, "--consensus", weak.address) as refused:
            assert refused.ended() == 1
        assert "appendfsync is everysec, not always" in refused.log.read_text()
        (tmp_path / "settings.toml").write_text(
            f'http_port = 0\n[store]\nconsensus = "{weak.address}"\nallow_non_durable = true\n'
        )
        with up_process(tmp_path, "--config", "settings.toml") as told:
            told.until(lambda client: client.get() is not None or None)
            assert "appendfsync is everysec" in told.fetched("/healthz")
            assert 'tidemill_store_not_durable{risk="appendfsync' in told.fetched("/metrics")


@pytest.mark.parametrize(
    ("bucket", "secret"), [("no-such-bucket", "test-secret"), ("tidemill", "wrong")]
)
async def test_a_bucket_that_cannot_be_used_is_found_out_at_the_start(
    object_store: str, bucket: str, secret: str
) -> None:
    place = BlobPlace(f"s3://{bucket}?endpoint={object_store}", "test", secret)
    blob = open_blob(place, random_id)
    with pytest.raises(Unavailable):
        await Collections(MemoryConsensus(), blob, ManualClock(), random_id).open()


@pytest.mark.parametrize("address", ["", "redis://", "postgres://host/db", "sqlite:"])
def test_a_place_that_is_none_for_versions_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="redis://HOST"):
        open_consensus(address)


@pytest.mark.parametrize(
    "address", ["", "s3://", "gs://bucket", "file:", "s3://b/p?endpint=http://h"]
)
def test_a_place_that_is_none_for_objects_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="s3://BUCKET"):
        open_blob(BlobPlace(address), random_id)


def test_an_address_is_named_without_its_password() -> None:
    with pytest.raises(UsageError) as refused:
        open_consensus("rdis://user:secret@host:1/0")
    assert "secret" not in str(refused.value)
    assert "host:1" in str(refused.value)
