"""Which parts can matter to a read, by their statistics alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import UsageError
from tidemill.shard.hashing import key_hashes
from tidemill.shard.listed import PartList
from tidemill.shard.offloading import ROWS_INLINE_MAX
from tidemill.shard.parts import Part
from tidemill.shard.state import Description

Equal = Mapping[str, object]
"""Column → the value it must have; None asks for null."""
Piece = TypeVar("Piece", bound="Part | PartList")
"""Parts, or the parts of a list together."""


def equal_scalars(description: Description, equal: Equal) -> dict[str, pa.Scalar[pa.DataType]]:
    """The values of `equal` as the columns hold them.

    Raises: UsageError for what no column holds.
    """
    scalars: dict[str, pa.Scalar[pa.DataType]] = {}
    for name, value in equal.items():
        at = description.schema.get_field_index(name)
        if at < 0:
            raise UsageError(f"there is no column {name}", reason="UnknownColumn")
        try:
            scalars[name] = pa.scalar(value, description.schema.field(at).type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise UsageError(
                f"the column {name} cannot hold {value!r}: {error}", reason="CodecMismatch"
            ) from error
    return scalars


def parts_equal(
    parts: Sequence[Piece], description: Description, scalars: Mapping[str, pa.Scalar[pa.DataType]]
) -> list[Piece]:
    """Parts that may hold a row with these values: by hash if they fix the key, and by bounds."""
    rest = {}
    for name, scalar in scalars.items():
        if pa.types.is_integer(scalar.type) or pa.types.is_string(scalar.type):
            value = scalar.as_py()
            parts = [part for part in parts if _within(part, name, value)]
        else:
            rest[name] = scalar
    several = len(parts) > 1 or any(isinstance(part, PartList) for part in parts)
    digest = hash_of_key(description, scalars) if several else None
    if digest is not None:
        parts = [part for part in parts if part.hash_min <= digest <= part.hash_max]
    return parts_where(parts, description.schema, all_equal(rest)) if rest else list(parts)


def hash_of_key(
    description: Description, scalars: Mapping[str, pa.Scalar[pa.DataType]]
) -> int | None:
    """The hash of the key that values fix; None if they do not."""
    key = description.key or tuple(description.schema.names)
    if not all(name in scalars for name in key):
        return None
    columns = [pa.array([scalars[name].as_py()], scalars[name].type) for name in key]
    return int(key_hashes(pa.table(columns, names=list(key)), key)[0])


def _within(part: Part | PartList, name: str, value: int | str | None) -> bool:
    """Whether the bounds of a part let a column have a value; texts are ordered as their bytes."""
    if name not in part.bounds:
        return True
    least, greatest, nulls = part.bounds[name]
    if value is None:
        return nulls
    if least is None and greatest is None:
        return not nulls  # with nulls alone; else nothing is known
    return (least is None or least <= value) and (  # type: ignore[operator]  # both of one column
        greatest is None or value <= greatest  # type: ignore[operator]
    )


def all_equal(scalars: Mapping[str, pa.Scalar[pa.DataType]]) -> pc.Expression:
    """Whether each of these columns, of which there are some, has its value; null is a value."""
    return reduce(
        and_,
        (
            pc.field(name) == scalar if scalar.is_valid else pc.field(name).is_null()
            for name, scalar in scalars.items()
        ),
    )


def matching(rows: pa.Table, where: pc.Expression) -> pa.Table:
    """The rows for which `where` is true.

    Few of them are looked at on this thread: others take long to wake.
    """
    if rows.num_rows > ROWS_INLINE_MAX:
        return rows.filter(where)
    # NB: imported here as below: it takes long, and only reads that filter need it.
    from pyarrow import acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(rows))
    chosen = acero.Declaration("filter", acero.FilterNodeOptions(where), [source])
    return chosen.to_table(use_threads=False)


def parts_where(parts: Sequence[Piece], schema: pa.Schema, where: pc.Expression) -> list[Piece]:
    """Parts that may hold a row for which `where` is true.

    Arrow simplifies the expression under what the statistics of each part guarantee; a part for
    which nothing is left is out.
    """
    if not any(part.bounds for part in parts):
        return list(parts)
    # NB: imported here, for it imports pandas, which takes longer than all the rest of a server.
    import pyarrow.dataset as ds
    import pyarrow.fs as fs

    files = ds.ParquetFileFormat()
    nowhere = fs.LocalFileSystem()
    pieces = [
        files.make_fragment(
            str(number), filesystem=nowhere, partition_expression=guarantee(part, schema)
        )
        for number, part in enumerate(parts)
    ]
    dataset = ds.FileSystemDataset(pieces, schema, files)
    return [parts[int(piece.path)] for piece in dataset.get_fragments(where)]


def guarantee(part: Part | PartList, schema: pa.Schema) -> pc.Expression:
    """A condition that holds for every row of a part."""
    return reduce(and_, _bounds(part, schema), pc.scalar(True))


def _bounds(part: Part | PartList, schema: pa.Schema) -> Iterator[pc.Expression]:
    for name, (least, greatest, nulls) in part.bounds.items():
        column, at = pc.field(name), schema.get_field_index(name)
        if at < 0:
            continue
        kind = schema.field(at).type
        if least is None and greatest is None:
            if nulls:
                yield column.is_null()
            continue
        if least is not None:
            bound = column >= pa.scalar(least, kind)
            yield bound | column.is_null() if nulls else bound
        if greatest is not None:
            bound = column <= pa.scalar(greatest, kind)
            yield bound | column.is_null() if nulls else bound
