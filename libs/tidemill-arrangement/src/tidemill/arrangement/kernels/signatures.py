"""Signatures of compiled loops as text: `uint64[1C], const int64[2A], (int64, bool)`.

A record is named by the constant of a module that has its fields.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from numba import typeof, types
from numba.np.numpy_support import as_dtype, from_dtype

Kind: TypeAlias = Any  # Any: numba has no types

_PARTS = re.compile(r"(?:\([^()]*\)|[^,()])+")
_WORD = re.compile(r"(?P<const>const )?(?P<name>[\w.]+)(\[(?P<dimensions>\d)(?P<layout>[CA])\])?")


def signature_text(arguments: tuple[Kind, ...]) -> str:
    """Types of arguments as text. Raises: TypeError for a type that has none."""
    return ", ".join(map(_text, arguments))


def signature_of(text: str) -> tuple[Kind, ...]:
    """Types from their text. Raises: TypeError for a text that is none."""
    return tuple(_type(part.strip()) for part in _PARTS.findall(text))


def _text(kind: Kind) -> str:
    if isinstance(kind, types.BaseTuple):
        text = f"({signature_text(kind.types)})"
    elif isinstance(kind, types.Array):
        text = f"{_name(kind.dtype)}[{kind.ndim}{kind.layout}]"
        text = text if kind.mutable else f"const {text}"
    else:
        text = _name(kind)
    if _type(text) != kind:
        raise TypeError(f"no text says {kind!r}")
    return text


def _name(kind: Kind) -> str:
    if not isinstance(kind, types.Record):
        return str(kind)
    for name, module in sorted(sys.modules.items()):
        if name.startswith("tidemill."):
            for constant, value in vars(module).items():
                if isinstance(value, np.dtype) and value == as_dtype(kind):
                    return f"{name}.{constant}"
    raise TypeError(f"no constant is the record {kind!r}")


def _type(text: str) -> Kind:
    if text.startswith("("):
        return types.BaseTuple.from_types(signature_of(text[1:-1]))
    found = _WORD.fullmatch(text)
    if found is None:
        raise TypeError(f"{text!r} is no type of an argument")
    module, _, name = found["name"].rpartition(".")
    dtype: np.dtype[Any] = getattr(import_module(module), name) if module else np.dtype(name)
    if not found["layout"]:
        return from_dtype(dtype)
    sample = np.empty((4,) * int(found["dimensions"]), dtype)
    sample = sample[..., ::2] if found["layout"] == "A" else sample
    sample.flags.writeable = not found["const"]
    return typeof(sample)
