"""Which runtime here checks an artifact: its own, or the one that runs the same graphs with the same operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.runtimes import runtime

if TYPE_CHECKING:
    from edge.runtimes.base import Runtime

SAME_GRAPHS = {"onnxruntime_web": "onnxruntime"}
"""Runtimes of agents that are not Python's -> the one here that runs their graphs: artifacts are checked with it, and
never trained."""


def checking_runtime(name: str) -> Runtime:
    """The runtime that checks artifacts made for ``name``: itself, or the one of :data:`SAME_GRAPHS`.

    Raises:
        ConfigError: as :func:`edge.runtimes.runtime`.
    """
    return runtime(SAME_GRAPHS.get(name, name))
