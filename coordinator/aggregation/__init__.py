"""Aggregation rules by name. A new rule is one new file here and one line in :data:`AGGREGATIONS`."""

from __future__ import annotations

AGGREGATIONS: dict[str, str] = {
    "krum": "coordinator.aggregation.krum:Krum",
    "median": "coordinator.aggregation.median:EntrywiseMedian",
    "multi_krum": "coordinator.aggregation.multi_krum:MultiKrum",
    "norm_clip": "coordinator.aggregation.norm_clip:NormClip",
    "trimmed_mean": "coordinator.aggregation.trimmed_mean:TrimmedMean",
}
"""Name of ``[aggregation] rule`` -> ``module:class``, imported when used; ``mean`` is the method's own."""
