"""The four column types of the ledger: one name each, as SQLite's STRICT tables and PostgreSQL call them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import REAL, BigInteger, Double, Integer, LargeBinary, Text
from sqlalchemy.types import TypeEngine

TEXT: TypeEngine[Any] = Text().with_variant(Text(collation="C"), "postgresql")
"""Ordered by bytes on both, which is the order of device ids that sums are taken in."""

BLOB: TypeEngine[Any] = LargeBinary()

INTEGER: TypeEngine[Any] = BigInteger().with_variant(Integer(), "sqlite")
"""64 bits on both."""

FLOAT: TypeEngine[Any] = Double().with_variant(REAL(), "sqlite")
"""64 bits on both."""
