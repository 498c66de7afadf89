"""A device's budget in words."""

from __future__ import annotations

MB = 2**20


def budget_in_words(budget_bytes: int) -> str:
    """``160 MB`` of 2^20 bytes; ``no limit`` for 0, where a device's memory alone binds."""
    return f"{budget_bytes / MB:g} MB" if budget_bytes else "no limit"
