"""What a policy allows, in plain sentences, for its owner to read before an agent runs with it."""

from __future__ import annotations

from collections.abc import Iterator

from edge.policy.policy_file import Names, SitePolicy


def sentences(policy: SitePolicy) -> Iterator[str]:
    """A sentence for each rule, and one for what no rule says."""
    if policy.federations is not None:
        yield f"It works for these federations only: {_words(policy.federations)}."
    else:
        yield "It works for any federation."
    yield _names("method", policy.methods)
    yield _names("runtime", policy.runtimes)
    yield from _bytes(policy)
    if policy.memory.max_mb is not None:
        yield f"Training takes at most {policy.memory.max_mb:g} MB of memory, agent and trainer together."
    if policy.disk.features_mb == 0:
        yield "It keeps on disk nothing that a model makes of its examples."
    elif policy.disk.features_mb is not None:
        yield f"What a model makes of its examples takes at most {policy.disk.features_mb:g} MB of its disk."
    hours = policy.rounds.hours
    yield f"It takes orders between {' or '.join(hours)} by its own clock." if hours else "It takes orders at any hour."
    if policy.rounds.per_day is not None:
        yield f"It takes at most {policy.rounds.per_day} orders a day."
    if policy.rounds.cpu_seconds_per_day is not None:
        yield f"It takes no order after {policy.rounds.cpu_seconds_per_day:g} seconds of processor time in a day."
    if policy.orders.require_signed:
        yield "Orders must be signed by a key that the owner gave with --trust."
    if not policy.orders.labels:
        yield "It never tells which classes its examples are of."
    if not policy.orders.scores:
        yield "It never tells how a model does on its examples."
    if not policy.orders.releases:
        yield "It installs no models that are sent to it."
    yield from _privacy(policy)


def _names(what: str, names: Names) -> str:
    if names.allow is None and not names.deny:
        return f"Any {what} may be asked for."
    allowed = "" if names.allow is None else f"these {what}s only: {_words(names.allow)}"
    denied = f"never these {what}s: {_words(names.deny)}" if names.deny else ""
    both = "; ".join(filter(None, (allowed, denied)))
    return f"{both[0].upper()}{both[1:]}."


def _bytes(policy: SitePolicy) -> Iterator[str]:
    rules, said = policy.bytes, False
    for way, per_round, per_day in (
        ("downloads", rules.download_per_round_mb, rules.download_per_day_mb),
        ("uploads", rules.upload_per_round_mb, rules.upload_per_day_mb),
    ):
        limits = [f"{mb:g} MB a {span}" for mb, span in ((per_round, "round"), (per_day, "day")) if mb is not None]
        if limits:
            said = True
            yield f"It {way} at most {' and '.join(limits)}."
    if not said:
        yield "It downloads and uploads as much as it is asked to."


def _privacy(policy: SitePolicy) -> Iterator[str]:
    rules = policy.privacy
    if rules.require_secure_aggregation:
        yield "Its updates leave it masked only (secure aggregation)."
    if rules.min_cohort:
        yield f"A masked update is summed with those of {rules.min_cohort - 1} other devices at least."
    if rules.require_clipping:
        yield "Its updates leave it masked and clipped only."
    if rules == type(rules)():
        yield "Its updates may be asked for one by one, not masked."


def _words(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"
