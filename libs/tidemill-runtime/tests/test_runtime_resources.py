"""Resources: what fits becomes typed values, what does not is told with its place.

`wrong_resources/*.yaml` are files with mistakes; their last lines, which begin with `#! `, are the
messages. REWRITE=1 writes the messages anew, to be reviewed as a difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tidemill.errors import UsageError
from tidemill.runtime.documents import laid_out
from tidemill.runtime.durations import Milliseconds
from tidemill.runtime.formats import (
    AvroFormat,
    BytesFormat,
    Column,
    CsvFormat,
    JsonFormat,
    ProtobufFormat,
    RecordFormat,
    TextFormat,
)
from tidemill.runtime.problems import text_of
from tidemill.runtime.resources import (
    KINDS,
    ActionSpec,
    ColumnSpec,
    CsvSpec,
    EventTimeSpec,
    FormatSpec,
    HoldSpec,
    KafkaOrigin,
    LogSinkSpec,
    Resource,
    SinkSpec,
    SourceSpec,
    TableSpec,
    ViewSpec,
    load_resource_files,
    load_resources,
    resource_from,
    schema,
    stored_resource,
)
from tidemill.runtime.resources.decoding import (
    columns_of,
    has_header,
    record_format,
    schema_of,
)
from tidemill.runtime.resources.words import names_secret

WRONG = sorted((Path(__file__).parent / "wrong_resources").glob("*.yaml"))
MARK = "#! "

EVERYTHING = """
# A comment.
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: flights, namespace: air, labels: {team: delays}}
spec:
  kafka: {topic: flights, bootstrap: "127.0.0.1:9092", startOffset: 17}
  format: {csv: {delimiter: ";"}}
  columns: [{name: at, type: int}, {name: until, type: text, nullable: true}]
  timestampInterval: 250ms
  retain: all
  eventTime:
    {column: at, timeline: air, expiresColumn: until, skew: 2h, idleTimeout: 30s, silence: 5s, late: correct, maxAhead: 7d}
  engine: local
---
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: planes}
spec: {columns: [{name: tail, type: text}], timeline: air, retain: 1h}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: alarms}
spec:
  program: |
    late(f) := flights(f, d) if d > 15;
  inputs: {flights: flights, raw: alarms/late}
  outputs: [late]
  columns: {late: [flight]}
  strategy: retraction
---
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {name: tell}
spec: {view: alarms, goal: "late(f)", sink: {log: {topic: told}}, fireFrom: 2013-07-04T12:00:00+02:00}
---
apiVersion: tidemill.dev/v1alpha1
kind: Hold
metadata: {name: keep}
spec: {collection: alarms/late, frontier: 1372932000000}
"""


def test_every_kind_becomes_a_typed_spec() -> None:
    source, table, view, action, hold = load_resources(EVERYTHING, "all.yaml")
    assert source == Resource(
        "Source",
        "flights",
        SourceSpec(
            kafka=KafkaOrigin(topic="flights", bootstrap="127.0.0.1:9092", start_offset=17),
            format=FormatSpec(csv=CsvSpec(delimiter=";")),
            columns=(
                ColumnSpec(name="at", type="int"),
                ColumnSpec(name="until", type="text", nullable=True),
            ),
            timestamp_interval=Milliseconds(250),
            retain=None,
            event_time=EventTimeSpec(
                column="at",
                timeline="air",
                expires_column="until",
                skew=Milliseconds(7_200_000),
                idle_timeout=Milliseconds(30_000),
                silence=Milliseconds(5_000),
                late="correct",
                max_ahead=Milliseconds(604_800_000),
            ),
            engine="local",
        ),
        namespace="air",
        labels={"team": "delays"},
    )
    assert table.spec == TableSpec(
        columns=(ColumnSpec(name="tail", type="text"),),
        timeline="air",
        retain=Milliseconds(3_600_000),
    )
    assert view.spec == ViewSpec(
        program="late(f) := flights(f, d) if d > 15;\n",
        inputs={"flights": "flights", "raw": "alarms/late"},
        outputs=("late",),
        columns={"late": ("flight",)},
        strategy="retraction",
    )
    assert action.spec == ActionSpec(
        view="alarms",
        goal="late(f)",
        sink=SinkSpec(log=LogSinkSpec(topic="told")),
        fire_from=1_372_932_000_000,
    )
    assert hold.spec == HoldSpec(collection="alarms/late", frontier=1_372_932_000_000)
    assert str(source.position) == "all.yaml:3:1"
    assert str(hold) == "Hold/keep"


def test_a_resource_gives_its_document_back() -> None:
    for resource in load_resources(EVERYTHING):
        assert resource_from(resource.to_document()) == resource
    source = load_resources(EVERYTHING)[0].to_document()
    assert source["spec"]["retain"] == "all"
    assert source["spec"]["eventTime"]["skew"] == "2h"
    assert "late" not in load_resources(EVERYTHING)[1].to_document()["spec"]


def test_defaults_are_those_of_the_design() -> None:
    (source,) = load_resources(
        "{apiVersion: tidemill.dev/v1alpha1, kind: Source, metadata: {name: s},"
        " spec: {kafka: {topic: t}, infer: {}}}"
    )
    assert isinstance(source.spec, SourceSpec)
    assert source.spec.timestamp_interval == 1_000
    assert source.spec.retain == 600_000
    assert source.spec.kafka is not None
    assert source.spec.kafka.start_offset == "earliest"
    assert source.spec.kafka.bootstrap is None
    assert source.spec.infer is not None
    assert source.spec.infer.sample == 200
    assert source.to_document()["spec"] == {"kafka": {"topic": "t"}, "infer": {}}


def told(file: Path, text: str) -> list[str]:
    with pytest.raises(UsageError) as error:
        load_resources(text, file.name)
    assert error.value.details["reason"] == "resources"
    return str(error.value).replace(f"{file.name}:", "").splitlines()


def test_s13_what_is_said_of_a_secret_in_a_document_never_shows_it() -> None:
    file = Path(__file__).parent / "wrong_resources/secrets.yaml"
    text = file.read_text().partition(MARK)[0]
    messages = told(file, text)
    assert text.count("PLANTED") == 10
    assert len(messages) == 15
    assert "PLANTED" not in "\n".join(messages)


SECRET_HEADERS = (
    "Authorization", "X-Authorization", "Proxy-Authorization", "X-Auth", "X-Auth-Key", "authkey",
    "Ocp-Apim-Subscription-Key", "X-Access-Key", "api_key", "API-KEYS", "XApiKey", "X-Goog-Api-Key",
    "X-Key-2", "key", "X-Shopify-Access-Token", "X-Token-V2", "Cookie", "cookie2", "X-Jwt", "X-Sig",
    "CF-Access-Client-Secret", "X-Hub-Signature-256", "X-Signature-Ed25519", "X-Password", "X-Pwd",
    "X-Amz-Credential", "X-Hmac-Sha256",
)  # fmt: skip
OTHER_HEADERS = (
    "Idempotency-Key", "Idempotency-Token", "X-Partition-Key", "Routing-Key", "Surrogate-Keys",
    "X-Key-Of-Row", "X-Auth-User", "CF-Access-Client-Id", "Token-Type", "X-Api-Key-Id", "Author",
    "X-Author", "X-Monkey", "Compass", "X-Mill", "Accept", "Content-Type", "X-Secretary", "Keyed",
)  # fmt: skip


def test_s13_the_last_word_of_a_header_says_whether_its_value_is_a_secret() -> None:
    assert [name for name in SECRET_HEADERS if not names_secret(name)] == []
    assert [name for name in OTHER_HEADERS if names_secret(name)] == []


@pytest.mark.parametrize("file", WRONG, ids=lambda file: file.stem)
def test_a_mistake_is_told_with_its_place_and_what_to_write(file: Path) -> None:
    lines = file.read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith(MARK))
    messages = told(file, text)
    if os.environ.get("REWRITE"):
        file.write_text(text + "".join(f"{MARK}{message}\n" for message in messages))
    assert messages == [
        line.removeprefix(MARK).rstrip("\n")
        for line in file.read_text().splitlines()
        if line.startswith(MARK)
    ]


@pytest.mark.parametrize(
    ("data", "told_"),
    [
        (b"kind: Table\nname: gr\xfcn\n", "2:9: not UTF-8: the byte 0xFC; save the file as UTF-8"),
        ("é: é".encode() + b"\xff", "1:5: not UTF-8: the byte 0xFF; save the file as UTF-8"),
        ("kind: Table\n".encode("utf-16"), "1:1: not UTF-8: the byte 0xFF; this is UTF-16: save"),
    ],
)
def test_a_file_that_is_no_text_is_told_with_its_place(
    data: bytes, told_: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(data)
    for read in (text_of, lambda path: load_resource_files([path])):
        with pytest.raises(UsageError) as refused:
            read(file)
        assert str(refused.value).startswith(f"{file}:{told_}")


def test_all_files_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b.yaml").write_text("kind: Vew\n")
    (tmp_path / "folder" / "a.yml").write_text(EVERYTHING)
    (tmp_path / "folder" / "notes.txt").write_text("not read")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError) as error:
        load_resource_files([tmp_path / "folder", tmp_path / "none.yaml", tmp_path / "empty"])
    lines = str(error.value).replace(f"{tmp_path}/", "").splitlines()
    assert lines[0] == "empty: holds no file that ends in .yaml"
    assert 'folder/b.yaml:1:7: kind: "Vew" is not allowed; did you mean "View"?' in lines
    assert lines[-1] == "none.yaml: cannot be read: No such file or directory"
    assert len(load_resource_files([tmp_path / "folder" / "a.yml"])) == 5


def test_nothing_is_no_resource() -> None:
    assert load_resources("") == ()
    assert load_resources("---\n---\n# only a comment\n") == ()


def test_a_document_from_elsewhere_is_told_with_its_fields() -> None:
    with pytest.raises(UsageError) as error:
        resource_from({"kind": "Hold", "metadata": {"name": "h"}, "spec": {}}, "catalog")
    assert str(error.value) == (
        'catalog: missing field "apiVersion"; the version of the format: tidemill.dev/v1alpha1\n'
        'catalog: spec: missing field "collection";'
        " the collection whose since may not pass the hold"
    )


@pytest.mark.parametrize("kind", [*KINDS, "envelope"])
def test_the_schemas_are_schemas_and_describe_every_field(kind: str) -> None:
    Draft202012Validator.check_schema(schema(kind))
    silent: list[str] = []

    def look(node: object, path: str) -> None:
        if isinstance(node, dict):
            for name, inner in node.get("properties", {}).items():
                if "description" not in inner:
                    silent.append(f"{path}.{name}")
                look(inner, f"{path}.{name}")
            look(node.get("items"), f"{path}[]")

    if kind != "envelope":
        look(schema(kind), kind)
    assert silent == []


words = st.sampled_from(
    ["kind", "spec", "metadata", "name", "Source", "View", "kafka", "columns", "topic", "1s", "", "a"]
)  # fmt: skip
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(KINDS), plain)
@settings(max_examples=100, deadline=None)
def test_whatever_is_written_is_a_resource_or_told(kind: str, spec: object) -> None:
    document = {
        "apiVersion": "tidemill.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": "n"},
        "spec": spec,
    }
    try:
        resource = resource_from(document)
    except UsageError:
        return
    assert resource_from(resource.to_document()) == resource


def source(spec: str) -> SourceSpec:
    head = "apiVersion: tidemill.dev/v1alpha1, kind: Source, metadata: {name: s}"
    (resource,) = load_resources("{" + head + ", spec: {" + spec + "}}")
    assert isinstance(resource.spec, SourceSpec)
    return resource.spec


@pytest.mark.parametrize(
    ("spec", "written", "header"),
    [
        ("kafka: {topic: t}, infer: {}", JsonFormat(), False),
        ("kafka: {topic: t}, infer: {}, format: {csv: {delimiter: ;}}", CsvFormat(";"), False),
        ("file: {path: a.csv, format: csv}, infer: {}", CsvFormat(), True),
        (
            "file: {path: a, format: csv}, format: {csv: {header: false}}, infer: {}",
            CsvFormat(),
            False,
        ),
        ("file: {path: a.parquet, format: parquet}", JsonFormat(texts=True), False),
        ("file: {path: a.jsonl, format: jsonl}, infer: {}", JsonFormat(), False),
        (
            "kafka: {topic: t}, format: {text: {}}, columns: [{name: a, type: text}]",
            TextFormat(),
            False,
        ),
        (
            "kafka: {topic: t}, format: {bytes: {encoding: hex}}, columns: [{name: a, type: text}]",
            BytesFormat("hex"),
            False,
        ),
        (
            "kafka: {topic: t}, columns: [{name: a, type: text}], "
            "format: {avro: {registry: {url: 'http://r'}}}",
            AvroFormat(),
            False,
        ),
        (
            "kafka: {topic: t}, columns: [{name: a, type: text}], "
            "format: {protobuf: {descriptorSet: f, message: M}}",
            ProtobufFormat(b"", "M"),
            False,
        ),
    ],
)
def test_a_source_says_how_its_records_are_decoded(
    spec: str, written: RecordFormat, header: bool
) -> None:
    assert record_format(source(spec)) == written
    assert has_header(source(spec)) == header


def test_columns_become_those_of_the_decoder_and_of_arrow() -> None:
    stated = (ColumnSpec(name="a", type="int"), ColumnSpec(name="b", type="text", nullable=True))
    assert columns_of(stated) == (Column("a", "int"), Column("b", "text", True))
    assert [str(field) for field in schema_of(columns_of(stated))] == [
        "pyarrow.Field<a: int64 not null>", "pyarrow.Field<b: string>",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "begin"),
    [
        ("program: |\n    p(x) :=\n      q(x);\n", (6, 5)),
        ("program: |-\n\n      p(x) := q(x);\n", (6, 7)),
        ("program: |2\n      p(x) := q(x);\n", (6, 5)),
        ("program: >\n    p(x) := q(x);\n", None),
        ('program: "p(x) := q(x);"\n', None),
    ],
)
def test_a_block_of_text_knows_where_its_lines_stand(
    body: str, begin: tuple[int, int] | None
) -> None:
    head = "apiVersion: tidemill.dev/v1alpha1\nkind: View\nmetadata: {name: v}\nspec:\n"
    text = f"{head}  {body}"
    (view,) = load_resources(text, "v.yaml")
    assert isinstance(view.spec, ViewSpec)
    found = view.blocks.get(("spec", "program"))
    assert (found and (found.line, found.column)) == begin
    if found is not None:
        shown = laid_out(view.spec.program, found).rstrip("\n").split("\n")
        written = text.rstrip("\n").split("\n")
        assert shown[found.line - 1 :] == written[found.line - 1 :]
    assert (view.place("spec", "program").line, view.place("spec", "nothing").line) == (5, 5)


TABLE = "apiVersion: tidemill.dev/v1alpha1\nkind: Table\nmetadata: {name: t}\nspec: {columns: %s}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: Tab\x07le\n", "t.yaml:1:10: not YAML: the character U+0007 may not stand in it"),
        ("a: 1\nb: \0\n", "t.yaml:2:4: not YAML: the character U+0000 may not stand in it"),
        ('a: 1\nb: "c\nd: 2\n', "t.yaml:2:4: not YAML: found unexpected end of stream"),
        ("a:\n  b: 1\n c: 2\n", "the keys of one mapping begin in one column"),
        ("a: [1, 2\nb: 3\n", "close the [ with ]"),
        (TABLE % "[{name: a, type: decimal(10, 2)}]", 'in quotes: "decimal(10, 2)"'),
        (TABLE % "[a]", "is not a mapping; write {name: …, type: …}"),
        (TABLE % "{a: int}", "is not a list; write [ ] around it"),
        (TABLE % "[]", "is empty; write at least one"),
    ],
)
def test_a_mistake_of_yaml_is_told_with_its_place_and_what_to_write(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_resources(text, "t.yaml")
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("written", "read"),
    [("spark", "spark"), ("local", "local"), ("auto", "auto"), ("scratch", "auto")],
)
def test_a_stored_view_has_the_engine_that_it_was_given_if_that_is_there_still(
    written: str, read: str
) -> None:
    spec = {"inputs": {"f": "flights"}, "program": "p(x) := f(x);", "engine": written}
    document = {
        "apiVersion": "tidemill.dev/v1alpha1", "kind": "View", "metadata": {"name": "v"},
        "spec": spec,
    }  # fmt: skip
    found = stored_resource(document, "catalog").spec
    assert isinstance(found, ViewSpec)
    assert found.engine == read
