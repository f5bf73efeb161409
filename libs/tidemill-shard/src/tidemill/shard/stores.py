"""Stores by address: a process, a job and a check open the same stores in the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

import msgspec

from tidemill.errors import UsageError
from tidemill.shard.blob_directory import DirectoryBlob
from tidemill.shard.consensus_sqlite import SqliteConsensus
from tidemill.shard.ports import PREFIX, TIMEOUT_S

if TYPE_CHECKING:
    from tidemill.shard.blob_objects import ObjectBlob
    from tidemill.shard.consensus_redis import RedisConsensus

StoredConsensus: TypeAlias = "SqliteConsensus | RedisConsensus"
StoredBlob: TypeAlias = "DirectoryBlob | ObjectBlob"

REGION = "us-east-1"


class BlobPlace(msgspec.Struct, frozen=True):
    """Address of the objects, and the keys of a bucket.

    `address` is `file:FOLDER` or `s3://BUCKET/PREFIX?endpoint=URL&region=NAME`; without an endpoint
    it is that of the region. The secret may be in a file, read where the bucket is opened. Without
    keys the environment's are used, as by every AWS client.
    """

    address: str
    access_key: str = ""
    secret_key: str = ""
    secret_key_file: str = ""

    def __repr__(self) -> str:
        return f"BlobPlace({self.address})"


def open_consensus(
    address: str, *, allow_non_durable: bool = False, timeout_s: float = TIMEOUT_S
) -> StoredConsensus:
    """Consensus at `sqlite:FILE`, `redis://HOST:PORT/DB` or `rediss://…`; nothing is asked yet.

    `?prefix=NAME` keeps systems that share one Redis apart; a Redis that is silent for `timeout_s`
    is given up. Raises: UsageError for another address.
    """
    url = urlsplit(address)
    if (file := consensus_file(address)) is not None:
        return SqliteConsensus(file)
    if url.scheme in ("redis", "rediss") and url.hostname:
        # A process with its versions in a file starts a sixth sooner without this library.
        from tidemill.shard.consensus_redis import RedisConsensus

        options = dict(parse_qsl(url.query))
        prefix = options.pop("prefix", PREFIX)
        plain = url._replace(query=urlencode(options)).geturl()
        return RedisConsensus(
            plain, allow_non_durable=allow_non_durable, timeout_s=timeout_s, prefix=prefix
        )
    raise UsageError(
        f"{_named(url)} is no place for versions: say redis://HOST:PORT/DB, or sqlite:FILE",
        reason="StoreAddress",
    )


def open_claims(
    address: str, *, allow_non_durable: bool = False, timeout_s: float = TIMEOUT_S
) -> StoredConsensus:
    """Consensus for claims beside the collections at `address`: in a file, or under a prefix, of
    its own.

    With a `timeout_s` well below a lease, an answer that is lost costs no claim.
    """
    url = urlsplit(address)
    file = claims_file(address)
    if file is not None:
        return SqliteConsensus(file)
    options = dict(parse_qsl(url.query))
    beside = {**options, "prefix": f"{options.get('prefix', PREFIX)}-claims"}
    return open_consensus(
        url._replace(query=urlencode(beside)).geturl(),
        allow_non_durable=allow_non_durable,
        timeout_s=timeout_s,
    )


def claims_file(address: str) -> Path | None:
    """The file of the claims beside the collections at `address`, if they are in one."""
    file = consensus_file(address)
    return None if file is None else file.with_name(f"{file.name}-claims")


def consensus_file(address: str) -> Path | None:
    """The file of the collections at `address`, if they are in one."""
    url = urlsplit(address)
    return Path(url.path) if url.scheme == "sqlite" and url.path else None


def open_blob(place: BlobPlace, unique: Callable[[], str]) -> StoredBlob:
    """Blob at a place; `unique` names unfinished files. Raises: UsageError for another address."""
    url = urlsplit(place.address)
    if url.scheme == "file" and url.path and not url.netloc:
        return DirectoryBlob(Path(url.path), unique)
    options = dict(parse_qsl(url.query))
    unknown = sorted(set(options) - {"endpoint", "region"})
    if url.scheme == "s3" and url.netloc and not unknown:
        return _bucket(place, url, options)
    why = f"does not know {', '.join(unknown)}" if unknown else "is no place for objects"
    raise UsageError(
        f"{_named(url)} {why}: say s3://BUCKET/PREFIX?endpoint=URL&region=NAME, or file:FOLDER",
        reason="StoreAddress",
    )


def _bucket(place: BlobPlace, url: SplitResult, options: Mapping[str, str]) -> ObjectBlob:
    try:
        from tidemill.shard.blob_objects import Bucket, bucket_blob
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{error.name} is not installed, which object stores need: pip install 'tidemill[s3]'",
            reason="StoreAddress",
        ) from None
    bucket = Bucket(
        name=url.netloc,
        endpoint=options.get("endpoint"),
        region=options.get("region", REGION if "endpoint" in options else None),
        access_key=place.access_key or None,
        secret_key=place.secret_key or _read(place.secret_key_file) or None,
        prefix=url.path.strip("/"),
    )
    return bucket_blob(bucket)


def _read(file: str) -> str:
    """The text of a file of a secret, empty if none is named.

    Raises: UsageError with its name alone.
    """
    try:
        return Path(file).read_text().strip() if file else ""
    except OSError as error:
        raise UsageError(
            f"the file of a secret {file} cannot be read: {error.strerror}", reason="secret"
        ) from error


def _named(url: SplitResult) -> str:
    """An address without what may be a password."""
    return url._replace(netloc=url.netloc.rpartition("@")[2]).geturl() or "an empty address"
