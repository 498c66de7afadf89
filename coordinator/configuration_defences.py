"""``[defences]`` of a run file: what a round does about updates that are unlike the others."""

from __future__ import annotations

import msgspec

from coordinator.configuration_reader import TableReader


class DefencesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[defences]``: which updates are kept out of a sum, and which devices out of later rounds.

    Attributes:
        quarantine_factor: an update whose difference to its weights is this many times the cohort's median norm is set
            aside with the evidence; 0 = none is.
        examples_factor: an update weighs as if of at most this many times the cohort's median number of examples,
            whatever the device says; 0 = as it says.
        bar_after: updates of a device rejected or set aside in a row, after which it is not selected; 0 = never.
        bar_rounds: rounds that such a device sits out.
    """

    quarantine_factor: float = 0.0
    examples_factor: float = 0.0
    bar_after: int = 3
    bar_rounds: int = 10


def read_defences(table: TableReader) -> DefencesConfig:
    """The table's values."""
    default = DefencesConfig()
    defences = DefencesConfig(
        quarantine_factor=table.number("quarantine-factor", default.quarantine_factor, low=0.0),
        examples_factor=table.number("examples-factor", default.examples_factor, low=0.0),
        bar_after=table.integer("bar-after", default.bar_after, low=0, high=1_000_000),
        bar_rounds=table.integer("bar-rounds", default.bar_rounds, low=1, high=1_000_000),
    )
    if 0 < defences.quarantine_factor <= 1:
        table.problem(
            "quarantine-factor", f"{defences.quarantine_factor:g} sets half of all updates aside; give over 1"
        )
    if 0 < defences.examples_factor < 1:
        table.problem(
            "examples-factor", f"{defences.examples_factor:g} makes the median itself weigh less; give 1 or more"
        )
    return defences
