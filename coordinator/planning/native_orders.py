"""Which runs' orders a device's trainer without Python can carry out, so that plans count on what it weighs.

A device that finds otherwise says so: it refuses an order that its Python trainer has no memory for.
"""

from __future__ import annotations

from coordinator.config.run_config import RunConfig
from coordinator.methods.method import Method


def takes_native_orders(config: RunConfig, method: Method) -> bool:
    """Whether nothing in the run's orders is beyond a trainer without Python (:mod:`edge.flat_orders`)."""
    is_plain = (
        config.updates.encoding == "raw"
        and config.updates.precision == "fp32"
        and not config.privacy.secure_aggregation
        and not config.personal.layers
        and not config.personal.fine_tune
    )
    return is_plain and all(_is_plain(method, level.name) for level in method.levels())
