"""The ``apportion`` command: one file per verb. This package alone wires exporters, runtimes and the coordinator."""

from __future__ import annotations

from coordinator.cli.command import main

__all__ = ["main"]
