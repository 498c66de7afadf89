"""Which runtime here checks an artifact: its own, or the one that runs the same graphs with the same operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.runtimes import runtime, traits_of

if TYPE_CHECKING:
    from edge.runtimes.base import Runtime


def checking_runtime(name: str) -> Runtime:
    """The runtime that checks artifacts made for ``name``: itself, or the one that its traits name.

    Raises:
        ConfigError: as :func:`edge.runtimes.runtime`.
    """
    return runtime(traits_of(name).checked_by or name)
