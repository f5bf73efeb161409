"""Compile all loops before any process needs them."""

from tidemill.host.warming.compiling import SIGNATURES, missing, signatures, warm

__all__ = ["SIGNATURES", "missing", "signatures", "warm"]
