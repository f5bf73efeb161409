"""The dashboards: overview, sources, collections, views, actions, Spark jobs."""

from __future__ import annotations

from tidemill.manifests.panels import Board, Panel, Query, figure
from tidemill.manifests.spark_board import SPARK
from tidemill.manifests.stage_panels import STAGES

_LAG_S = (5.0, 60.0)
"""Yellow and red for a lag: the objective, and where the alert begins."""

_FRESHEST = (
    "{agg} by (collection) (min by (namespace, collection) "
    "(tidemill_collection_upper_lag_seconds{{$sel}}))"
)


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{$sel}}[$__rate_interval]))"


def _quantile(metric: str, by: str, share: float) -> str:
    buckets = f"sum by (le, {by}) (rate({metric}_bucket{{$sel}}[$__rate_interval]))"
    return f"histogram_quantile({share}, {buckets})"


def _durations(metric: str, by: str) -> tuple[Query, ...]:
    return (
        Query(_quantile(metric, by, 0.5), f"{{{{{by}}}}} p50"),
        Query(_quantile(metric, by, 0.99), f"{{{{{by}}}}} p99"),
    )


_LAG = Panel(
    "Frontier lag",
    "How far each collection on the system timeline is behind the present: now − upper. A line that "
    "climbs at 45° is a frontier that stands still.",
    (Query(_FRESHEST.format(agg="max"), "{{collection}}"),),
    unit="s", width=24, height=12, limits=_LAG_S,
)  # fmt: skip

OVERVIEW = Board(
    "tidemill-overview",
    "Tidemill / Overview",
    "Whether everything that was declared does its work, and how fresh it is.",
    (
        (
            "Now",
            (
                figure(
                    "Ready", "Resources that do their work.", "sum(tidemill_resource_ready{$sel})"
                ),
                figure(
                    "Not ready",
                    "Resources that start, retry, or stalled.",
                    "sum(1 - tidemill_resource_ready{$sel})",
                    (1, 1),
                ),
                figure(
                    "Hydrating",
                    "Collections that no frontier is known of yet.",
                    "sum(tidemill_collections_hydrating{$sel})",
                    (1, 10),
                ),
                Panel(
                    "Worst lag",
                    "The collection that is furthest behind the present.",
                    (Query("max(" + _FRESHEST.format(agg="max") + ")"),),
                    "s",
                    "stat",
                    4,
                    4,
                    _LAG_S,
                ),
                figure(
                    "Dead letters, 1 h",
                    "Rows that could not be read, or came too late.",
                    "sum(increase(tidemill_decode_errors_total{$sel}[1h])) + "
                    "sum(increase(tidemill_late_events_total{$sel}[1h]))",
                    (1, 100),
                ),
                figure(
                    "Store at risk",
                    "Settings of a store that may lose acknowledged writes; nothing if it is durable.",
                    "sum(tidemill_store_not_durable{$sel}) or vector(0)",
                    (1, 1),
                ),
            ),
        ),
        ("Freshness", (_LAG,)),
        STAGES,
        (
            "Work",
            (
                Panel(
                    "Rows in",
                    "Records read from each source.",
                    (Query(_rate("tidemill_source_records_total", "source"), "{{source}}"),),
                    "rowsps",
                ),
                Panel(
                    "Resources by kind",
                    "How many do their work.",
                    (Query("sum by (kind) (tidemill_resource_ready{$sel})", "{{kind}}"),),
                ),
                Panel(
                    "Answers",
                    "Time to answer, waiting included.",
                    _durations("tidemill_query_duration_seconds", "kind"),
                    "s",
                ),
                Panel(
                    "Subscriptions",
                    "Open subscriptions by what they follow.",
                    (
                        Query(
                            "sum by (collection) (tidemill_subscriptions{$sel})", "{{collection}}"
                        ),
                    ),
                ),
                Panel(
                    "Calls",
                    "gRPC calls that ended, by status.",
                    (Query(_rate("grpc_server_handled_total", "grpc_code"), "{{grpc_code}}"),),
                    "reqps",
                ),
                Panel(
                    "Calls, time",
                    "From the arrival of a call to its end.",
                    _durations("grpc_server_handling_seconds", "grpc_method"),
                    "s",
                ),
                Panel(
                    "Refused by limits",
                    "Requests that reached a limit, by its setting.",
                    (Query(_rate("tidemill_refusals_total", "limit"), "{{limit}}"),),
                    "reqps",
                ),
                Panel(
                    "Event loop, late by",
                    "How much later than due processes came to their work: stalls of everything that they answer.",
                    _durations("tidemill_loop_lag_seconds", "namespace"),
                    "s",
                ),
                Panel(
                    "Work begun again",
                    "Times the work of a resource began again because a store or a log was away.",
                    (
                        Query(
                            "sum by (kind, name) (increase(tidemill_resource_retries_total{$sel}[5m]))",
                            "{{kind}}/{{name}}",
                        ),
                        Query(
                            "sum(increase(tidemill_compaction_refusals_total{$sel}[5m]))",
                            "compaction",
                        ),
                    ),
                ),
                Panel(
                    "Announcements passed over",
                    "Records of the topic of commits that were none: somebody else writes to tidemill.commits.",
                    (
                        Query(
                            "sum(increase(tidemill_announcements_passed_over_total{$sel}[5m]))",
                            "records",
                        ),
                    ),
                ),
                Panel(
                    "Claims",
                    "Pieces of work that processes with roles have claimed.",
                    (Query("sum by (role) (tidemill_claims_held{$sel})", "{{role}}"),),
                ),
                Panel(
                    "Claims that moved",
                    "Taken over from processes that were gone; lapsed because a process was not heard of "
                    "for a lease.",
                    (
                        Query(
                            "sum by (role) (increase(tidemill_claim_takeovers_total{$sel}[5m]))",
                            "{{role}} taken over",
                        ),
                        Query(
                            "sum by (role) (increase(tidemill_claims_lapsed_total{$sel}[5m]))",
                            "{{role}} lapsed",
                        ),
                    ),
                ),
                Panel(
                    "Time to take over",
                    "From the last sign of life of a process until another one has its work, over the hour.",
                    (
                        Query(
                            "sum by (role) (increase(tidemill_claim_takeover_seconds_total{$sel}[1h]))"
                            " / sum by (role) (increase(tidemill_claim_takeovers_total{$sel}[1h]))",
                            "{{role}}",
                        ),
                    ),
                    "s",
                ),
                Panel(
                    "Orphans deleted",
                    "Objects deleted that no version named: left by writers that died.",
                    (Query("sum(increase(tidemill_orphans_deleted_total{$sel}[1h]))", "objects"),),
                ),
            ),
        ),
    ),
)

_SOURCE = ("source", "tidemill_source_offset_known", "source")

SOURCES = Board(
    "tidemill-sources",
    "Tidemill / Sources",
    "How far each source has been read, bound and made durable, and what could not be read.",
    (
        (
            "Progress",
            (
                Panel(
                    "Not yet durable",
                    "Records that the log has and that are not reclocked yet, by partition.",
                    (
                        Query(
                            "max by (source, partition) (tidemill_source_offset_known{$sel}) - "
                            "max by (source, partition) (tidemill_source_offset_committed{$sel})",
                            "{{source}} {{partition}}",
                        ),
                    ),
                    width=24,
                    height=10,
                ),
                Panel(
                    "Offsets",
                    "What the log has, what is bound to an instant, what is durable.",
                    tuple(
                        Query(
                            f"sum by (source) (max by (source, partition) "
                            f"(tidemill_source_offset_{which}{{$sel}}))",
                            f"{{{{source}}}} {which}",
                        )
                        for which in ("known", "bound", "committed")
                    ),
                ),
                Panel(
                    "Unbound updates",
                    "Rows in memory that wait for a binding.",
                    (
                        Query(
                            "sum by (source) (tidemill_source_unbound_updates{$sel})", "{{source}}"
                        ),
                    ),
                ),
                Panel(
                    "Records",
                    "Records read.",
                    (Query(_rate("tidemill_source_records_total", "source"), "{{source}}"),),
                    "rowsps",
                ),
                Panel(
                    "Bytes",
                    "Bytes read.",
                    (Query(_rate("tidemill_source_bytes_total", "source"), "{{source}}"),),
                    "Bps",
                ),
            ),
        ),
        (
            "Reclocking",
            (
                Panel(
                    "Bindings",
                    "Bindings minted, and mints that somebody else was ahead of.",
                    (
                        Query(
                            _rate("tidemill_remap_bindings_total", "source"), "{{source}} minted"
                        ),
                        Query(_rate("tidemill_mint_retries_total", "source"), "{{source}} lost"),
                    ),
                    "ops",
                ),
                Panel(
                    "Records to durable updates",
                    "Time from records to durable updates, for each append.",
                    _durations("tidemill_reclock_duration_seconds", "source"),
                    "s",
                ),
            ),
        ),
        (
            "Rows that were put aside",
            (
                Panel(
                    "Dead letters",
                    "Records that could not be read, in five minutes.",
                    (
                        Query(
                            "sum by (source) (increase(tidemill_decode_errors_total{$sel}[5m]))",
                            "{{source}}",
                        ),
                    ),
                ),
                Panel(
                    "Late events",
                    "Events that came behind the event frontier, in five minutes.",
                    (
                        Query(
                            "sum by (source) (increase(tidemill_late_events_total{$sel}[5m]))",
                            "{{source}}",
                        ),
                    ),
                ),
                Panel(
                    "Moves of event time",
                    "What moved event frontiers in five minutes: rows, heartbeat, idleTimeout, silence.",
                    (
                        Query(
                            "sum by (source, mover) "
                            "(increase(tidemill_event_time_moves_total{$sel}[5m]))",
                            "{{source}} {{mover}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
    (_SOURCE,),
)


def _of_each(metric: str) -> Query:
    """The reading of the process that knows the collection best."""
    return Query(f"max by (collection) ({metric}{{$sel}})", "{{collection}}")


COLLECTIONS = Board(
    "tidemill-collections",
    "Tidemill / Collections",
    "The two frontiers of every collection, who holds history back, and what it costs to store.",
    (
        ("Freshness", (_LAG,)),
        (
            "Frontiers",
            (
                Panel(
                    "Frontiers",
                    "since ≤ T < upper are the instants for which answers are exact; milliseconds of "
                    "the timeline.",
                    (
                        Query("max by (collection, timeline) (tidemill_collection_since{$sel})"),
                        Query("max by (collection, timeline) (tidemill_collection_upper{$sel})"),
                    ),
                    look="table",
                    width=24,
                ),
                Panel(
                    "Speed of upper",
                    "Seconds of the timeline a second: 1 keeps up with the present, 0 stands still.",
                    (
                        Query(
                            "max by (collection) "
                            "(deriv(tidemill_collection_upper{$sel}[$__rate_interval])) / 1000",
                            "{{collection}}",
                        ),
                    ),
                ),
                Panel(
                    "History that can be asked for",
                    "upper − since.",
                    (_of_each("tidemill_collection_history_seconds"),),
                    "s",
                ),
                Panel(
                    "Age of since",
                    "How far since is behind the present.",
                    (_of_each("tidemill_collection_since_lag_seconds"),),
                    "s",
                ),
                Panel(
                    "Who holds history back",
                    "Holds on since, by holder.",
                    (
                        Query(
                            "max by (collection, holder) (tidemill_read_holds{$sel})",
                            "{{collection}} ← {{holder}}",
                        ),
                    ),
                ),
            ),
        ),
        (
            "Storage",
            (
                Panel("Bytes", "Stored bytes.", (_of_each("tidemill_arrangement_bytes"),), "bytes"),
                Panel(
                    "Updates", "Updates in batches.", (_of_each("tidemill_arrangement_updates"),)
                ),
                Panel(
                    "Batches",
                    "Compaction keeps them few.",
                    (_of_each("tidemill_arrangement_batches"),),
                ),
                Panel(
                    "Rewritten by compaction",
                    "Updates read to be merged.",
                    (
                        Query(
                            _rate("tidemill_compaction_fuel_used_total", "collection"),
                            "{{collection}}",
                        ),
                    ),
                    "ops",
                ),
                Panel(
                    "Appends that lost the race",
                    "Another writer was ahead; the loser takes over what the winner wrote.",
                    (
                        Query(
                            _rate("tidemill_append_mismatches_total", "collection"),
                            "{{collection}}",
                        ),
                    ),
                    "ops",
                ),
            ),
        ),
    ),
    (("collection", "tidemill_collection_upper", "collection"),),
)

VIEWS = Board(
    "tidemill-views",
    "Tidemill / Views",
    "Whether a view is late by itself or because of what it reads.",
    (
        (
            "Lag",
            (
                Panel(
                    "Behind its inputs",
                    "Local lag: what the view itself adds.",
                    (
                        Query(
                            "max by (view) (tidemill_view_local_lag_seconds{$sel})",
                            "{{view}}",
                        ),
                    ),
                    "s",
                    limits=_LAG_S,
                ),
                Panel(
                    "Behind its sources",
                    "Global lag: what it and every view below it add.",
                    (
                        Query(
                            "max by (view) (tidemill_view_global_lag_seconds{$sel})",
                            "{{view}}",
                        ),
                    ),
                    "s",
                    limits=_LAG_S,
                ),
                Panel(
                    "Slowest input",
                    "Which direct input each view waits for.",
                    (Query("max by (view, slowest) (tidemill_view_local_lag_seconds{$sel})"),),
                    "s",
                    "table",
                    24,
                ),
            ),
        ),
        (
            "Evaluation",
            (
                Panel(
                    "Time of a step",
                    "Time to evaluate one window.",
                    _durations("tidemill_view_step_duration_seconds", "view"),
                    "s",
                ),
                Panel(
                    "Windows",
                    "Windows evaluated.",
                    (
                        Query(
                            _rate("tidemill_view_step_duration_seconds_count", "view"), "{{view}}"
                        ),
                    ),
                    "ops",
                ),
                Panel(
                    "Share of a core",
                    "Seconds of evaluation a second.",
                    (Query(_rate("tidemill_view_step_duration_seconds_sum", "view"), "{{view}}"),),
                    "percentunit",
                    width=24,
                ),
            ),
        ),
    ),
    (("view", "tidemill_view_local_lag_seconds", "view"),),
)

ACTIONS = Board(
    "tidemill-actions",
    "Tidemill / Actions",
    "What was told to the outside, what still waits, and what was not told twice.",
    (
        (
            "Actions",
            (
                Panel(
                    "Behind what it watches",
                    "How far the outbox is behind the watched collection.",
                    (Query("max by (action) (tidemill_action_lag_seconds{$sel})", "{{action}}"),),
                    "s",
                    limits=_LAG_S,
                ),
                Panel(
                    "Outbox",
                    "Firings that the sink has not confirmed.",
                    (Query("max by (action) (tidemill_action_outbox{$sel})", "{{action}}"),),
                ),
                Panel(
                    "Fired",
                    "Actions handed to their sink.",
                    (Query(_rate("tidemill_actions_fired_total", "action"), "{{action}}"),),
                    "ops",
                ),
                Panel(
                    "Duplicates suppressed",
                    "Firings that had happened already, after a restart.",
                    (Query(_rate("tidemill_action_duplicates_total", "action"), "{{action}}"),),
                    "ops",
                ),
            ),
        ),
    ),
    (("action", "tidemill_action_outbox", "action"),),
)

BOARDS = (OVERVIEW, SOURCES, COLLECTIONS, VIEWS, ACTIONS, SPARK)
"""Every dashboard that the chart ships."""
