"""From bytes of a record to a row of typed columns, or to a letter that says why not.

    decoder = RowDecoder([Column("id", "int")], JsonFormat())
    rows, letters = decoder.decode(partitions, offsets, values)

`kinds` says how records may be written, `rows` decodes them, `columns` says what fits into a
column. `avro`, `protobuf` and `registry` are imported by whoever needs them.
"""

from tidemill.runtime.formats.columns import (
    NESTING_MAX,
    BadRow,
    Column,
    ColumnKind,
)
from tidemill.runtime.formats.inference import infer_columns
from tidemill.runtime.formats.kinds import (
    AvroFormat,
    BytesFormat,
    CsvFormat,
    JsonFormat,
    ProtobufFormat,
    RecordFormat,
    TextFormat,
)
from tidemill.runtime.formats.rows import LETTER_SCHEMA, DecodedRows, RowDecoder

__all__ = [
    "Column",
    "ColumnKind",
    "RecordFormat",
    "JsonFormat",
    "CsvFormat",
    "TextFormat",
    "BytesFormat",
    "AvroFormat",
    "ProtobufFormat",
    "RowDecoder",
    "DecodedRows",
    "LETTER_SCHEMA",
    "BadRow",
    "NESTING_MAX",
    "infer_columns",
]
