"""Opening the sink that an action names."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tidemill.catalog.made.actions import ActionCollections
from tidemill.catalog.places import alerts_url, check_sink
from tidemill.datalog.ast import Literal
from tidemill.datalog.goals import Goal
from tidemill.errors import UsageError
from tidemill.host.context import Context
from tidemill.runtime.addresses import host_and_port
from tidemill.runtime.places import Places, Secret
from tidemill.runtime.resources.specs import EmailSinkSpec, HttpSinkSpec, SlackSinkSpec
from tidemill_compute.actions import messages
from tidemill_compute.actions.messages import Names
from tidemill_compute.actions.outbox import Sink
from tidemill_compute.actions.sink_email import EmailSink, Mailbox
from tidemill_compute.actions.sink_file import FileSink
from tidemill_compute.actions.sink_http import Delivery, Endpoint, HttpSink
from tidemill_compute.actions.sink_log import LogSink
from tidemill_compute.actions.sink_sqlite import SqliteSink
from tidemill_compute.settings import ComputeSettings

LASTING = 4
"""An alert ends by itself when it was not told again for so many times its `repeat`."""


def open_sink(made: ActionCollections, host: Context, settings: ComputeSettings) -> Sink:
    """The sink of an action.

    Raises: UsageError for a place that may not be named, or a template that does not fit the goal.
    """
    sink, name, places = made.spec.sink, made.stored.resource.name, host.places
    check_sink(sink, places)
    if sink.file is not None:
        return FileSink(Path(sink.file.path), places.write)
    if sink.sqlite is not None:
        return SqliteSink(Path(sink.sqlite.path), sink.sqlite.table, name, places.write)
    if sink.log is not None:
        return LogSink(host.log, sink.log.topic, name)
    if sink.redis is not None:
        from tidemill_compute.actions.sink_redis import RedisSink

        redis, secret = sink.redis, sink.redis.secret
        return RedisSink(
            redis.url, redis.stream, name, allow_non_durable=redis.allow_non_durable,
            username=redis.username, secret=None if secret is None else places.secret(secret),
            egress=places.sending(*([] if secret is None else [secret])),
        )  # fmt: skip
    group = made.spec.group
    arguments = [name for name, _ in made.watched.shape.argument_columns]
    names = Names(arguments if group is None else group.by, settings.link)
    if sink.email is not None:
        return EmailSink(_mailbox(sink.email, names, places))
    endpoint = _endpoint(made, names, host)
    if sink.slack is None:  # a channel shows messages in the order in which they come
        lane_at = 0 if group is not None else lane_of_goal(made.goal)
        endpoint = replace(endpoint, lanes_max=settings.action_lanes, lane_at=lane_at)
    return HttpSink(endpoint, host.clock)


def lane_of_goal(goal: Goal) -> int:
    """The place of the first argument that the goal leaves open."""
    open_ = (at for at, term in enumerate(goal.terms) if not isinstance(term, Literal))
    return next(open_, 0)


def _endpoint(made: ActionCollections, names: Names, host: Context) -> Endpoint:
    """The endpoint of a sink that speaks HTTP. Raises: UsageError."""
    sink, places = made.spec.sink, host.places
    if sink.http is not None:
        return _http(sink.http, names, places)
    if sink.slack is not None:
        return _slack(sink.slack, names, places)
    if sink.pager_duty is not None:
        pager = sink.pager_duty
        key = places.secret(pager.routing_key)
        compose = messages.pager_duty(
            key.text, pager.severity, pager.summary, names, pager.description
        )
        return Endpoint(
            pager.url, compose=compose, timeout_s=pager.timeout / 1000,
            egress=places.sending(pager.routing_key),
        )  # fmt: skip
    if sink.cloud_events is not None:
        events = sink.cloud_events
        secrets, compose = _secrets(events.secret_headers, places), messages.cloud_events(names)
        return Endpoint(
            events.url, compose=compose, timeout_s=events.timeout / 1000, secrets=secrets,
            egress=places.sending(*events.secret_headers.values()),
        )  # fmt: skip
    alerts, clock = sink.alertmanager, host.clock
    assert alerts is not None
    return Endpoint(
        alerts_url(alerts.url), timeout_s=alerts.timeout / 1000,
        compose=messages.alertmanager(
            alerts.labels, alerts.summary, names, LASTING * alerts.repeat, clock.now_ms,
            alerts.description,
        ),
        secrets=_secrets(alerts.secret_headers, places),
        egress=places.sending(*alerts.secret_headers.values()),
    )  # fmt: skip


def _http(http: HttpSinkSpec, names: Names, places: Places) -> Endpoint:
    compose: messages.Compose = messages.line
    if http.body is not None:
        compose = messages.templated(http.body, http.content_type, http.is_json, names)
    certificate = http.certificate
    return Endpoint(
        http.url, Delivery(http.delivery), http.key_header, http.ask or "", http.timeout / 1000,
        http.method, compose, tuple(sorted(http.headers.items())),
        None if http.signature is None else places.secret(http.signature),
        None if certificate is None
        else (places.secret(certificate.certificate), places.secret(certificate.key)),
        secrets=_secrets(http.secret_headers, places),
        egress=places.sending(*sorted(http.secret_headers.values())),
    )  # fmt: skip


def _slack(slack: SlackSinkSpec, names: Names, places: Places) -> Endpoint:
    webhook = places.secret(slack.webhook)
    url = webhook.text()
    with suppress(ValueError):
        if host_and_port(url, 0)[0] and url.startswith(("https://", "http://")):
            return Endpoint(
                url, Delivery.AT_LEAST_ONCE, compose=messages.slack(slack.text, names),
                timeout_s=slack.timeout / 1000, shown=f"the webhook {webhook.name}",
                egress=places.sending(slack.webhook),
            )  # fmt: skip
    raise UsageError(f"the secret {webhook.name} is no URL", reason="Secret")


def _mailbox(email: EmailSinkSpec, names: Names, places: Places) -> Mailbox:
    secret, encrypted = None, False
    if email.secret is not None:
        secret = places.secret(email.secret)
        host, port = host_and_port(email.server, 587)
        try:
            places.check_clear(host, port, f"the secret {email.secret}")
        except UsageError:
            encrypted = True
    return Mailbox(
        email.server, email.sender, email.to, email.subject, email.text, names,
        email.username or "", secret, encrypted, email.timeout / 1000,
        places.sending(*([] if email.secret is None else [email.secret])),
    )  # fmt: skip


def _secrets(named: Mapping[str, str], places: Places) -> tuple[tuple[str, Secret], ...]:
    return tuple((header, places.secret(name)) for header, name in sorted(named.items()))
