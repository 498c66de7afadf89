"""Which defences suit a run's method and its other tables; what does not is refused before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.configuration import RunConfig

WITHOUT_RULE = {
    "ds_fl": "averages probabilities for an open set and no weights, so there is nothing for a rule to do",
}
"""Methods that take no rule but the mean, and why."""


def check_defences(config: RunConfig, problems: list[str]) -> None:
    """Adds to ``problems`` what the rule and the screening of ``config`` cannot be combined with."""
    aggregation, cohort = config.aggregation, config.cohort
    rule = aggregation.rule
    if config.privacy.secure_aggregation and config.defences.quarantine_factor:
        problems.append(
            "$.defences.quarantine-factor: norms of single updates are what $.privacy.secure-aggregation hides; leave "
            "one of the two out"
        )
    if aggregation.mode == "buffered" and config.defences.quarantine_factor:
        problems.append(
            "$.defences.quarantine-factor: compares the updates of one round, and buffered ones come of several; use "
            '$.aggregation.rule = "norm_clip" or "median", or mode = "synchronous"'
        )
    if rule == "mean":
        return
    if reason := WITHOUT_RULE.get(config.method.name):
        problems.append(f"$.aggregation.rule: method {config.method.name} {reason}; use mean")
    if config.privacy.secure_aggregation:
        problems.append(
            f"$.aggregation.rule: {rule} needs every device's values, and with $.privacy.secure-aggregation the "
            "coordinator sees their sum alone; use mean, or leave out secure-aggregation"
        )
    if aggregation.mode == "buffered" and rule in ("krum", "multi_krum"):
        problems.append(
            f"$.aggregation.rule: {rule} compares updates of one model, and buffered ones started from several; use "
            "median, trimmed_mean or norm_clip"
        )
    key, counted = "$.cohort.min-reports", cohort.min_reports
    if aggregation.mode == "buffered" and aggregation.buffer:
        key, counted = "$.aggregation.buffer", aggregation.buffer
    least = least_updates(rule, aggregation.trim)
    if counted < least:
        problems.append(
            f"$.aggregation.rule: {rule} needs {least} updates or more to leave one hostile device without a say, with "
            f"trim {aggregation.trim:g}, and {key} is {counted}; raise it, or use another rule"
        )


def least_updates(rule: str, trim: float) -> int:
    """Updates from which ``rule`` can leave at least one hostile device out."""
    if rule == "trimmed_mean":
        return next((n for n in range(3, 1000) if int(trim * n + 1e-9)), 1000) if trim else 1
    if rule in ("krum", "multi_krum"):
        return next((n for n in range(5, 1000) if int(trim * n + 1e-9)), 1000) if trim else 4
    return 3
