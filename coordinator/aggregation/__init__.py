"""Aggregation rules by name. A new rule is one new file here and one line in :data:`AGGREGATIONS`."""

from __future__ import annotations

AGGREGATIONS: dict[str, str] = {
    "entrywise": "coordinator.aggregation.entrywise:EntrywiseMean",
    "krum": "coordinator.aggregation.krum:Krum",
    "median": "coordinator.aggregation.median:EntrywiseMedian",
    "multi_krum": "coordinator.aggregation.multi_krum:MultiKrum",
    "norm_clip": "coordinator.aggregation.norm_clip:NormClip",
    "trimmed_mean": "coordinator.aggregation.trimmed_mean:TrimmedMean",
    "weighted_mean": "coordinator.aggregation.weighted_mean:WeightedMean",
}
"""Name -> ``module:class``, imported when used."""
