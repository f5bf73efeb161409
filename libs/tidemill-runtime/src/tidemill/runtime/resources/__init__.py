"""Resources: the YAML documents with which users declare sources, tables, views, actions and holds.

    resources = load_resource_files([Path("flights.yaml")])
    resources[0].kind, resources[0].name, resources[0].spec.timestamp_interval

The documents are those that kubectl takes. A mistake names file, line, column and field, and says what
to write; all mistakes of all files are told at once.
"""

from tidemill.runtime.resources.loading import load_resource_files, load_resources
from tidemill.runtime.resources.resource import API_VERSION, Resource, resource_from
from tidemill.runtime.resources.specs import (
    ActionSpec,
    AdmissionSpec,
    AnySpec,
    ColumnSpec,
    CsvSpec,
    EventTimeSpec,
    FileOrigin,
    FileSink,
    FormatSpec,
    HoldSpec,
    HttpOrigin,
    HttpSink,
    InferSpec,
    JsonSpec,
    KafkaOrigin,
    LogSink,
    RedisSink,
    SinkSpec,
    SourceSpec,
    SqliteSink,
    TableSpec,
    TickSpec,
    ViewSpec,
)
from tidemill.runtime.resources.validation import KINDS, schema

__all__ = [
    "load_resources",
    "load_resource_files",
    "resource_from",
    "Resource",
    "API_VERSION",
    "KINDS",
    "schema",
    "AnySpec",
    "SourceSpec",
    "KafkaOrigin",
    "FileOrigin",
    "HttpOrigin",
    "FormatSpec",
    "JsonSpec",
    "CsvSpec",
    "ColumnSpec",
    "InferSpec",
    "EventTimeSpec",
    "TableSpec",
    "ViewSpec",
    "TickSpec",
    "AdmissionSpec",
    "ActionSpec",
    "SinkSpec",
    "FileSink",
    "LogSink",
    "SqliteSink",
    "RedisSink",
    "HttpSink",
    "HoldSpec",
]
