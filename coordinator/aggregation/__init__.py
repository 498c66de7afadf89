"""Aggregation rules by name. A new rule is one new file here and one line in :data:`AGGREGATIONS`."""

from __future__ import annotations

AGGREGATIONS: dict[str, str] = {
    "entrywise": "coordinator.aggregation.entrywise:EntrywiseMean",
    "weighted_mean": "coordinator.aggregation.weighted_mean:WeightedMean",
}
"""Name -> ``module:class``, imported when used."""
