"""The places that resources may name in this process, by its settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidemill.host.settings import ProcessSettings
from tidemill.runtime.places import Places, is_loopback, places_of


def places_of_process(chosen: ProcessSettings, config: Path | None = None) -> Places:
    """The places of this process. `config` is the file of these settings. Raises: UsageError."""
    hosts = (chosen.grpc.rpartition(":")[0], chosen.http_host)
    alone = not chosen.token_file and not chosen.role and all(map(is_loopback, hosts))
    return places_of(
        chosen.places, open_unless_set=alone, directory=chosen.root,
        private=_own_files(chosen, config),
    )  # fmt: skip


def _own_files(chosen: ProcessSettings, config: Path | None) -> Sequence[Path]:
    """Files of the process itself: settings, tokens, certificates, passwords."""
    ends = (chosen.tls, chosen.http_tls, chosen.services.tls, chosen.log_kafka)
    names = [chosen.token_file, chosen.store.password_file, chosen.store.secret_key_file]
    names += [name for end in ends for name in (end.certificate, end.key, end.authority)]
    names.append(chosen.log_kafka.password_file)
    found = [Path(name) for name in names if name]
    return found if config is None else [config, *found]
