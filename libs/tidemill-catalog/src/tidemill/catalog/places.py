"""Whether resources may name what they name: files, addresses, topics, secrets, by the settings of
the process.

Looked at when a resource is applied, and when it begins; what opens a file or makes a connection
looks again.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.catalog.entry import located
from tidemill.errors import UsageError
from tidemill.runtime.addresses import host_and_port
from tidemill.runtime.kafka_access import kafka_files
from tidemill.runtime.places import Places
from tidemill.runtime.resources import ActionSpec, RegistrySpec, Resource, SinkSpec, SourceSpec
from tidemill.runtime.resources.decoding import descriptor_files, registries_of


def check_resource(resource: Resource, places: Places) -> None:
    """Raises: UsageError with its place, which says what is not allowed and by which setting."""
    spec = resource.spec
    if isinstance(spec, SourceSpec):
        with located(resource, "spec"):
            check_source(spec, places)
        if spec.http is not None and spec.http.verify is not None:
            # The processes that receive deliveries have the secret, those that read the log do not.
            with located(resource, "spec", "http", "verify"):
                places.secret(spec.http.verify.secret)
    elif isinstance(spec, ActionSpec):
        with located(resource, "spec", "sink"):
            check_sink(spec.sink, places)


def check_source(spec: SourceSpec, places: Places) -> None:
    """Raises: UsageError if a source names what it may not."""
    if spec.file is not None:
        places.read.check(spec.file.path)
    for path in descriptor_files(spec).values():
        places.read.check(path)
    if spec.kafka is not None:
        places.topics_read.check(spec.kafka.topic)
        if spec.kafka.bootstrap is not None:
            kafka_files(spec.kafka, places)
    for registry in registries_of(spec).values():
        check_registry(registry, places)


def check_registry(registry: RegistrySpec, places: Places) -> None:
    """Raises: UsageError if a registry, or a secret of it, may not be named."""
    host, port = _place(registry.url)
    names = [] if registry.secret is None else [registry.secret]
    places.sending(*names).check_name(host, port)
    if registry.authority is not None:
        places.secret(registry.authority)
    if names and registry.url.startswith("http:"):
        places.check_clear(host, port, f"the secret {registry.secret}")


def check_sink(sink: SinkSpec, places: Places) -> None:
    """Raises: UsageError if a sink names what it may not."""
    if sink.file is not None:
        places.write.check(sink.file.path)
    if sink.sqlite is not None:
        places.write.check(sink.sqlite.path)
    if sink.log is not None:
        places.topics_written.check(sink.log.topic)
    if sink.redis is not None:
        _check_url(sink.redis.url, [sink.redis.secret] if sink.redis.secret else [], places)
    for url, names in _called(sink, places):
        _check_url(url, names, places)


def _called(sink: SinkSpec, places: Places) -> Iterator[tuple[str, list[str]]]:
    """URLs that a sink calls, and the secrets that travel there. Raises: UsageError."""
    for named in (sink.http, sink.cloud_events, sink.alertmanager):
        if named is not None:
            yield named.url, sorted(named.secret_headers.values())
    if (http := sink.http) is not None:
        if http.ask is not None:
            yield http.ask, sorted(http.secret_headers.values())
        kept = (
            [] if http.certificate is None else [http.certificate.certificate, http.certificate.key]
        )
        for name in (*kept, *([] if http.signature is None else [http.signature])):
            places.secret(name)
    if sink.pager_duty is not None:
        yield sink.pager_duty.url, [sink.pager_duty.routing_key]
    if sink.slack is not None:
        yield places.secret(sink.slack.webhook).text(), [sink.slack.webhook]
    if sink.email is not None:
        email = sink.email
        host, port = host_and_port(email.server, 465 if email.server.startswith("smtps:") else 587)
        places.sending(*([] if email.secret is None else [email.secret])).check_name(host, port)


def alerts_url(base: str) -> str:
    """The address at which an Alertmanager takes alerts, by its API of version 2."""
    return f"{base.rstrip('/')}/api/v2/alerts"


def _check_url(url: str, names: list[str], places: Places) -> None:
    host, port = _place(url)
    places.sending(*names).check_name(host, port)
    if names and not url.startswith(("https:", "rediss:")):
        places.check_clear(host, port, f"the secret {names[0]}")


def _place(url: str) -> tuple[str, int]:
    try:
        return host_and_port(url, 0)
    except ValueError as error:
        raise UsageError(f"the address has no host and port: {error}", reason="Address") from error
